"""Introspection of a model: expert routing, chosen patches and attention maps of given images.

Shapes: B images, N patches, R x K their grid, M queries, k patches that each chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from agreid_plugin.errors import InputError
from agreid_plugin.inference.evaluation_sets import make_picture
from agreid_plugin.inference.extractor import Extractor, make_batch
from agreid_plugin.nn.clip import ImageTower
from agreid_plugin.nn.expert_usage import UsageByModule, UsageCounter, group_name
from agreid_plugin.nn.vit import VisionTransformer
from agreid_plugin.types import Record, view_label
from agreid_plugin.visualize.experts import ExpertUsageTable
from agreid_plugin.visualize.patches import Choice, PatchView

Hook = Callable[[nn.Module, tuple[Any, ...], Any], None]


def compute_expert_usage(extractor: Extractor, records: Sequence[Record]) -> list[ExpertUsageTable]:
    """Count which experts are asked for the images of each camera, one entry for each group of experts.

    Raises:
        InputError: the model has no experts.
    """
    counter = UsageCounter(extractor.model.network, training=False)
    if not counter.start():
        raise InputError(f"{extractor.settings.name} has no experts; ViSA, SVPR-ReID and TAG-CLIP have")
    by_place: dict[tuple[int, int], list[Record]] = {}
    for record in records:
        by_place.setdefault((view_label(record.view), record.camera), []).append(record)
    try:
        counted: dict[tuple[int, int], UsageByModule] = {}
        with tqdm(total=len(records), desc="asking experts", unit="image", leave=False, disable=None) as bar:
            for place in sorted(by_place):
                for part in extractor.extract_pictures(map(make_picture, by_place[place])):
                    bar.update(len(part.paths))
                counted[place] = counter.take()
    finally:
        counter.stop()
    return _count_shares(counted)


def _count_shares(counted: dict[tuple[int, int], UsageByModule]) -> list[ExpertUsageTable]:
    found = []
    modules = {name: usage for by_module in counted.values() for name, usage in by_module.items()}
    for name, sample in modules.items():
        for number, experts in enumerate(sample.groups):
            columns = {}
            for place, by_module in counted.items():
                _, routed, shares = list(by_module[name].by_group())[number]
                if routed:
                    columns[place] = [shares[expert] for expert in experts]
            if columns:
                group = group_name(number, len(sample.groups))
                found.append(
                    ExpertUsageTable(name, group, tuple(experts), tuple(columns), np.array(list(columns.values())).T)
                )
    return found


@runtime_checkable
class PatchChooser(Protocol):
    """A module that chooses patches for its queries."""

    def chosen_patches(self, inputs: tuple[Any, ...], outputs: Any) -> dict[str, Tensor]:
        """Return the places of the patches by what chose them, (B, M, k), from what it was given and has returned."""


def find_chosen_patches(extractor: Extractor, records: Sequence[Record]) -> list[PatchView]:
    """Return the patches that the queries of each image choose (ViSA's graphs, SVPR-ReID's refinement).

    Raises:
        InputError: the model chooses no patches, or is no transformer of ours.
    """
    model = extractor.model.network
    chooser = next((module for module in model.modules() if isinstance(module, PatchChooser)), None)
    if chooser is None:
        name = extractor.settings.name
        raise InputError(f"{name} chooses no patches: ViSA's DLFM does, and SVPR-ReID's refinement")
    grid, found, views = tuple(_find_transformer(extractor, "patches").grid), [], []

    def keep(module: PatchChooser, inputs: tuple[Any, ...], outputs: Any) -> None:
        found.append(module.chosen_patches(inputs, outputs))

    with _hook_modules([(chooser, keep)]):
        for record, pixels in _run_one_by_one(extractor, records):
            choices = tuple(Choice(name, places[0].cpu().numpy()) for name, places in found[0].items())
            views.append(PatchView(record, pixels, grid, choices=choices))
            found.clear()
    return views


def compute_attention(extractor: Extractor, records: Sequence[Record]) -> list[PatchView]:
    """Return how much CLS attends to each patch in the last block, averaged over heads (ViT and CLIP).

    Raises:
        InputError: the model is no transformer of ours.
    """
    tower, rows, views = _find_transformer(extractor, "attention"), [], []
    with _hook_modules([_record_attention(tower, rows)]):
        for record, pixels in _run_one_by_one(extractor, records):
            attention = rows[0][0].float().cpu().numpy()
            views.append(PatchView(record, pixels, tuple(tower.grid), attention=attention))
            rows.clear()
    return views


def _record_attention(tower: VisionTransformer | ImageTower, rows: list[Tensor]) -> tuple[nn.Module, Hook]:
    """Return the last of a transformer's modules that attend, with what keeps the row of CLS, (B, N)."""

    def keep_vit(attention: nn.Module, arguments: tuple[Any, ...], _: Any) -> None:
        rows.append(attention.cls_attention(arguments[0])[:, -tower.num_patches :])

    def keep_clip(_: nn.Module, arguments: tuple[Any, ...], __: Any) -> None:
        # tokens that a method adds follow the patches
        rows.append(tower.cls_attention(arguments[0])[:, 1 : 1 + tower.num_patches])

    if isinstance(tower, VisionTransformer):
        return tower.blocks[-1].attn, keep_vit
    return tower.blocks[-1], keep_clip


@torch.no_grad()
def _run_one_by_one(extractor: Extractor, records: Iterable[Record]) -> Iterator[tuple[Record, np.ndarray]]:
    """Run the model on single images, mirrored ones last, and give each with its pixels, (H, W, 3)."""
    for record in records:
        picture = make_picture(record)
        image = extractor.settings.transform(picture.read())
        extractor.embed_images(make_batch([picture], [image]))
        yield record, image.clamp(0, 255).byte().movedim(0, -1).numpy()


@contextmanager
def _hook_modules(hooks: Iterable[tuple[nn.Module, Hook]]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _find_transformer(extractor: Extractor, shown: str) -> VisionTransformer | ImageTower:
    """Return the model's transformer, or say what of it cannot be shown."""
    modules = extractor.model.network.modules()
    tower = next((each for each in modules if isinstance(each, VisionTransformer | ImageTower)), None)
    if tower is None:
        name = extractor.settings.name
        raise InputError(f"{name} has no vision transformer of ours, whose {shown} could be shown")
    return tower
