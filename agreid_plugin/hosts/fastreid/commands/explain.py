"""What a configuration builds, told before anything is trained: nothing is written, nothing is downloaded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from fastreid.modeling import build_model
from torch import nn

from agreid_plugin.data.protocols import protocol, select
from agreid_plugin.engine.model_rows import Row, own_loss_rows, size_rows, times
from agreid_plugin.errors import InputError, first_line
from agreid_plugin.hosts.fastreid.commands.explain_model import (
    loss_rows,
    model_rows,
    operations,
)
from agreid_plugin.hosts.fastreid.commands.explain_solver import solver_text
from agreid_plugin.hosts.fastreid.config import batches, checks, feature_width
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data import loaders
from agreid_plugin.hosts.fastreid.data.attributes import NONE, with_attributes
from agreid_plugin.hosts.fastreid.data.datasets import dataset_of, dataset_root, source_of
from agreid_plugin.hosts.fastreid.data.text import learned_items
from agreid_plugin.hosts.fastreid.data.transforms import build_transforms
from agreid_plugin.hosts.fastreid.engine.evaluator import test_sets
from agreid_plugin.types import View

PLAIN_REPR = re.compile(r"<(?:\w+\.)*(\w+) object at 0x\w+>")


def explain(config: str | Path, overrides: Iterable[str] = ()) -> dict[str, list[Row]]:
    """Tell what a configuration builds.

    Args:
        config: the configuration file.
        overrides: `KEY VALUE ...` on top of it.

    Returns:
        Title -> rows of what is told and how it is. Datasets and weight files that are not there are told, too.

    Raises:
        InputError: the configuration cannot be read, names something unknown, or its model cannot be built.
    """
    cfg = load_config(config, overrides)
    pretrained = _pretrained(cfg)
    cfg.MODEL.BACKBONE.PRETRAIN, cfg.MODEL.BACKBONE.PRETRAIN_PATH, cfg.MODEL.DEVICE = False, "", "cpu"
    checks.check_config(cfg)
    cfg, attributes = _with_attributes(cfg)
    training, items = _training_sets(cfg)
    learned, refused = _learned_from(cfg, items)
    classes = cfg.MODEL.HEADS.NUM_CLASSES or len({item[1] for item in learned})
    cfg.MODEL.HEADS.NUM_CLASSES = classes or 1
    model, gflops = _built(cfg)
    return {
        "model": [
            *model_rows(cfg, model, classes),
            *attributes,
            ("pretrained", pretrained),
            ("weights", _file(cfg.MODEL.WEIGHTS)),
        ],
        "losses": [*loss_rows(cfg, model), *own_loss_rows(model)],
        "training images": _transforms(cfg, is_train=True),
        "test images": _transforms(cfg, is_train=False),
        "training sets": [*training, ("sampler", _sampler(cfg)), *refused],
        "test sets": [*_test_sets(cfg), ("compared by", _comparison(cfg)), ("views", _views(model))],
        "optimizer": [(cfg.SOLVER.OPT, solver_text(cfg, len(learned) // cfg.SOLVER.IMS_PER_BATCH))],
        "parameters, and operations for one test image": size_rows(model, gflops, classes),
    }


def _pretrained(cfg) -> str:
    backbone = cfg.MODEL.BACKBONE
    if not backbone.PRETRAIN:
        return "none"
    return _file(backbone.PRETRAIN_PATH) if backbone.PRETRAIN_PATH else "MODEL.BACKBONE.PRETRAIN_PATH names no file"


def _file(path: str) -> str:
    return f"{path} ({'is there' if os.path.isfile(path) else 'is not there'})" if path else "none"


def _with_attributes(cfg) -> tuple[Any, list[Row]]:
    """Return the configuration with the attributes that its model learns, and tell them; nothing if it learns none."""
    try:
        resolved = with_attributes(cfg)
    except InputError as error:
        resolved = cfg.clone()
        resolved.MODEL.SVPR.ATTRIBUTES = NONE
        return resolved, [("attributes", f"not known, told without them: {error}")]
    rows = resolved.MODEL.SVPR.ATTRIBUTES
    if resolved is cfg or not rows:
        return resolved, []
    told = "none" if rows == NONE else ", ".join(f"{name} ({len(values)} values)" for name, values in rows)
    return resolved, [("attributes", told)]


def _built(cfg) -> tuple[nn.Module, dict[str, float]]:
    """Build the model and run it once; returns it with its operations."""
    try:
        cfg = feature_width.with_feature_width(cfg)
        model = build_model(cfg).eval()
        feature_width.check_feature_width(cfg, model)
        size = cfg.INPUT.CROP.SIZE if cfg.INPUT.CROP.ENABLED else cfg.INPUT.SIZE_TEST
        return model, operations(model, torch.zeros(1, 3, *size))
    except InputError:
        raise
    except (AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        # The host's own builders fail in these ways on a size or an option that they do not know.
        raise InputError(f"the model cannot be built: {type(error).__name__}: {first_line(error)}") from error


def _transforms(cfg, is_train: bool) -> list[Row]:
    found = build_transforms(cfg, is_train).transforms
    return [(str(number), _shown(transform)) for number, transform in enumerate(found, start=1)]


def _shown(transform: object) -> str:
    """Return what an object prints, in one line; of one that does not say what it is, the class."""
    return PLAIN_REPR.sub(r"\1", " ".join(repr(transform).split()))


def _training_sets(cfg) -> tuple[list[Row], list[tuple]]:
    """Tell the datasets to train on, and return their images; none if one of them is not there."""
    rows, found, whole = [], [], True
    for name in cfg.DATASETS.NAMES:
        try:
            items = loaders.training_set(cfg, name).train
        except InputError as error:
            rows.append((name, _missing(cfg, name, error)))
            whole = False
            continue
        rows.append((name, _counts(items)))
        found += items
    return rows, found if whole else []


def _counts(items: Sequence[tuple]) -> str:
    people, cameras = len({item[1] for item in items}), len({item[2] for item in items})
    counts = [sum(loaders.item_view(item) == view for item in items) for view in View]
    views = ", ".join(f"{count:,} {view.word}" for view, count in zip(View, counts, strict=True) if count)
    return f"{len(items):,} images{views and f' ({views})'}, {people:,} identities, {cameras} cameras"


def _learned_from(cfg, items: list[tuple]) -> tuple[list[tuple], list[Row]]:
    """Return what an epoch shows, and tell why a training in one process would refuse to start, if it would."""
    if not items:
        return [], []
    try:
        items = learned_items(cfg, items)
        batches.check_batches(cfg, len(items), len({item[1] for item in items}), world_size=1)
    except InputError as error:
        return items, [("refused", str(error))]
    return items, []


def _missing(cfg, name: str, error: InputError) -> str:
    synth, folder = cfg.DATASETS.AGSYNTH, Path(dataset_root(cfg)) / dataset_of(name)
    if folder.exists():
        return f"not usable: {error}"
    if synth.IDS:
        made = f"{synth.IDS} people, {synth.IMAGES_PER_ID} images each, {times(synth.SIZE)}"
        return f"{folder} is not there; 'fastreid train' makes it, AG-Synth: {made}"
    return f"not there: {error}"


def _sampler(cfg) -> str:
    name, batch, each = cfg.DATALOADER.SAMPLER_TRAIN, cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_INSTANCE
    if "Identity" not in name:
        return f"{name}, {batch} images a batch"
    return f"{name}, {batch // each} identities x {each} images = {batch // each * each} a batch"


def _test_sets(cfg) -> Iterator[Row]:
    by_source: dict[str, list[str]] = {}
    for name in cfg.DATASETS.TESTS:
        by_source.setdefault(dataset_of(name), []).append(name)
    for source, names in by_source.items():
        for wanted in cfg.TEST.PROTOCOLS if source_of(names[0]) else ():
            protocol(source, wanted)  # an unknown one is refused, whether the dataset is there or not
        own = cfg.clone()
        own.DATASETS.TESTS = tuple(names)
        try:
            (test_set,) = test_sets(own)
        except InputError as error:
            yield ", ".join(names), _missing(cfg, names[0], error)
            continue
        for each in test_set.protocols.values():
            sides = select(each, test_set.dataset)
            yield str(each), f"{len(sides.query):,} queries, {len(sides.gallery):,} gallery images"


def _comparison(cfg) -> str:
    test = cfg.TEST
    extras = {"flipped images too": test.FLIP, "query expansion": test.AQE, "re-ranking": test.RERANK}
    return ", ".join([f"{test.METRIC} distance", *(name for name, node in extras.items() if node.ENABLED)])


def _views(model: nn.Module) -> str:
    told = {"given": "given with every test image", "predicted": "predicted from the image"}
    source = getattr(model, "view_source", "")
    return told.get(source, source) or "not needed at test time"
