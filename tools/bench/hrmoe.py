"""HR-MoE as we run it, an expert for the images of its views alone, against every expert on every token.

Both have the same weights, inputs and random draws, and each measurement a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from agreid_plugin.errors import require_known
from agreid_plugin.evaluation.processes import in_process
from agreid_plugin.hosts.fastreid.operations import counting
from agreid_plugin.methods.tag_clip import TAGCLIP, HRMoEBlock
from agreid_plugin.methods.tag_clip.literal import run_densely
from agreid_plugin.nn.clip import EOT, SOT
from agreid_plugin.nn.clip_build import build_clip
from agreid_plugin.types import Batch, View
from bench.measuring import (
    CLIP_MODELS,
    DRAWS,
    Measurement,
    Setting,
    measure,
    table,
    training_step,
)

IDENTITIES, TEXT_LENGTH = 4840, 77  # as on TAG-PEDES
WORDS = 40  # of a caption, in tokens
BLOCKS = {"tiny": (0, 1)}  # that have experts; of the others 6 to 8
TRAINING = "training step"
SPREAD = 0.02  # of the experts, which start as copies: if equal, any routing would give the same


@dataclass(frozen=True)
class ExpertSetting(Setting):
    """With how many experts a token."""

    top_k: int


def bench_hrmoe(
    model: str = "base", top_k: int = 5, batch: int = 16, size: tuple[int, int] = (224, 224), repeats: int = 3
) -> Iterator[str]:
    """Measure and yield lines to print, the table last.

    Args:
        model: size of the towers by name.
        top_k: experts of a token, 5 at most: these are all that its image's view has.
        batch: images in a batch, two or more.
        size: rows and columns of an image.
        repeats: how often to run each; the fastest counts.
    """
    require_known("model", model, CLIP_MODELS)
    setting = ExpertSetting(model, batch, size, repeats, torch.get_num_threads(), top_k).checked()
    yield f"TAG-CLIP {model}, top {top_k} of 6 experts, {setting}"
    found = {}
    for name in TASKS:
        for densely in (False, True):
            found[name, densely] = in_process(_measure, setting, name, densely)
            entry = found[name, densely][0]
            yield f"{name}, {'all experts' if densely else 'ours'}: {entry.seconds:.3f} s, {entry.peak:.0f} MB"
    yield _table(found)


def _measure(setting: ExpertSetting, name: str, densely: bool) -> tuple[Measurement, float | None]:
    """Return a measurement, and GFLOPs for one image; None for a step of training, whose backward is not counted."""
    torch.set_num_threads(setting.threads)
    run = TASKS[name](setting, densely)
    measured = measure(run, setting.repeats)  # before anything else has had its memory
    if name == TRAINING:
        return measured, None
    with counting() as counter:
        run()
    return measured, counter.get_total_flops() / setting.batch / 1e9


def _method(setting: ExpertSetting, densely: bool) -> TAGCLIP:
    """Build the same method in every process, its experts told apart."""
    torch.manual_seed(0)
    clip = build_clip("ViT-B-16", image_size=setting.size, text_length=TEXT_LENGTH, **CLIP_MODELS[setting.model])
    at = BLOCKS.get(setting.model, (6, 7, 8))
    method = TAGCLIP(clip, IDENTITIES, at=at, top_k=setting.top_k, text_dropout=0.0)
    for number in at:
        for parameter in method.image.tower.blocks[number].experts.parameters():
            parameter.data += SPREAD * torch.randn_like(parameter)
    if densely:
        run_densely(method)
    return method


def _batch(setting: ExpertSetting) -> Batch:
    generator, numbers = torch.Generator().manual_seed(1), torch.arange(setting.batch)
    images = torch.randn(setting.batch, 3, *setting.size, generator=generator)
    tokens = torch.zeros(setting.batch, TEXT_LENGTH, dtype=torch.long)
    tokens[:, 1 : 1 + WORDS] = torch.randint(1, SOT, (setting.batch, WORDS), generator=generator)
    tokens[:, 0], tokens[:, 1 + WORDS] = SOT, EOT
    return Batch(images=images, tokens=tokens, pids=numbers // 4, views=numbers % len(View))


def _experts(setting: ExpertSetting, densely: bool) -> Callable[[], Tensor]:
    """Run the experts of one block alone, on tokens that are sent half and half."""
    method = _method(setting, densely).requires_grad_(False)
    block: HRMoEBlock = next(module for module in method.modules() if isinstance(module, HRMoEBlock))
    shape = (setting.batch, method.image.tower.num_patches + 2, block.width)  # with class and view token
    hidden = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    routed = block.route(hidden)
    return lambda: block.mix(hidden, routed)


def _image_tower(setting: ExpertSetting, densely: bool) -> Callable[[], Tensor]:
    """Encode images as in training, where views are drawn: all might have the same from an untrained router."""
    method, images = _method(setting, densely).requires_grad_(False), _batch(setting).images

    def run() -> Tensor:
        torch.manual_seed(DRAWS)
        return method.image(images).tokens

    return run


def _training_step(setting: ExpertSetting, densely: bool) -> Callable[[], Tensor]:
    return partial(training_step, _method(setting, densely), _batch(setting))


TASKS = {"experts alone": _experts, "image tower": _image_tower, TRAINING: _training_step}


def _table(found: dict[tuple[str, bool], tuple[Measurement, float | None]]) -> str:
    rows = []
    for name in TASKS:
        (ours, *operations), (dense, *all_operations) = found[name, False], found[name, True]
        times = [f"{ours.seconds:.3f}", f"{dense.seconds:.3f}", f"{dense.seconds / ours.seconds:.2f}x"]
        cpu_times = [f"{ours.cpu:.3f}", f"{dense.cpu:.3f}", f"{dense.cpu / ours.cpu:.2f}x"]
        peaks = [f"{ours.peak:.0f}", f"{dense.peak:.0f}"]
        counts = ["" if count is None else f"{count:.4g}" for count in (*operations, *all_operations)]
        rows.append([name, *times, *cpu_times, *peaks, *counts, f"{ours.difference(dense):.1e}"])
    head = ["", "ours s", "all experts s", "", "ours CPU s", "all experts CPU s", "", "ours MB", "all experts MB"]
    head += ["GFLOPs an image, ours", "all experts", "largest difference"]
    return (
        f"{table(rows, head)}\nMB: peak beyond that of building the model; difference: of the outputs, in training of "
        "losses and norms of all gradients"
    )
