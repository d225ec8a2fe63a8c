"""Explanation of a configuration of mmengine: what it builds; nothing is written or downloaded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image

from agreid_plugin.data.attributes import schema_to_rows
from agreid_plugin.data.datasets import dataset_name
from agreid_plugin.data.datasets.locations import default_root
from agreid_plugin.data.protocols import select
from agreid_plugin.engine.catalog import get_owner
from agreid_plugin.engine.model_rows import Row, built_in_loss_rows, count_operations, gigaflops, size_rows
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.config.checks import BuildErrors
from agreid_plugin.hosts.mmengine.config.dataset_checks import check_identities
from agreid_plugin.hosts.mmengine.config.loading import (
    drop_pretrained,
    each_dict,
    load_config,
    require_model,
    type_name,
)
from agreid_plugin.hosts.mmengine.data.attributes import get_schema
from agreid_plugin.hosts.mmengine.data.datasets import ReIDDataset
from agreid_plugin.hosts.mmengine.inference import Pipeline, comparison, test_images
from agreid_plugin.hosts.mmengine.models.base import ReIDModel
from agreid_plugin.hosts.mmengine.registry import DATASETS
from agreid_plugin.types import Batch, ReIDMethod, View

VIEWS = {"given": "given with every test image", "predicted": "predicted from the image", "": "not needed at test time"}


def explain(config: str | Path, overrides: Iterable[str] = ()) -> dict[str, list[Row]]:
    """Return what a configuration builds, as title -> rows; datasets and weight files need not be there.

    Raises:
        InputError: the configuration cannot be read, names something unknown, or its model cannot be built.
    """
    cfg = load_config(config, overrides)
    require_model(cfg)
    files = _weight_rows(cfg)
    training = [*_training_rows(cfg)]
    unknown_attributes = _leave_out_unknown(cfg)
    model = _build(cfg)
    method = model.method
    return {
        "model": [
            ("architecture", f"{type_name(cfg.model)} ({get_owner(model)})"),
            *_part_rows(cfg),
            *unknown_attributes,
            *files,
        ],
        "losses": [*_objective_rows(method), *built_in_loss_rows(method)],
        "training images": _step_rows(cfg.get("train_dataloader")),
        "test images": _step_rows(cfg.get("test_dataloader")),
        "training sets": training,
        "test sets": [*_test_rows(cfg), ("views", VIEWS[method.view_source])],
        "optimizer": _optimizer_rows(cfg),
        "parameters, and operations for one test image": size_rows(method, _operations(cfg, config, model), classes=1),
    }


def _leave_out_unknown(cfg: Config) -> list[Row]:
    """Write a dataset's attributes into the model's configuration, or none where the dataset is not there."""
    asked = cfg.model.get("attributes")
    if not isinstance(asked, Mapping):
        return []
    try:
        cfg.model["attributes"] = schema_to_rows(get_schema({**asked, "agsynth": None}))  # nothing is made
    except InputError as error:
        cfg.model["attributes"] = None
        return [("attributes", f"not known, explained without them: {error}")]
    return []


def _build(cfg: Config) -> ReIDModel:
    scope = cfg.get("default_scope")
    with BuildErrors(), DefaultScope.overwrite_default_scope(scope) if scope else nullcontext():
        built = MODELS.build(drop_pretrained(cfg.model))
    if not isinstance(built, ReIDModel):
        raise InputError(f"{cfg.filename}: {type(built).__name__} is no model of agreid_plugin, which can be explained")
    return built.eval()


def _weight_rows(cfg: Config) -> list[Row]:
    pretrained = [(f"model.{where}.pretrained", part.get("pretrained")) for where, part in each_dict(cfg.model)]
    named = [*pretrained, ("load_from", cfg.get("load_from"))]
    return [
        (key.replace("..", "."), f"{path} ({'is there' if os.path.isfile(path) else 'is not there'})")
        for key, path in named
        if path
    ]


def _part_rows(cfg: Config) -> Iterator[Row]:
    for name, part in cfg.model.items():
        if isinstance(part, Mapping) and name != "objectives":
            yield name, _format(part)
        elif name == "num_ids":
            yield name, f"{part:,} identities"


def _objective_rows(method: ReIDMethod) -> Iterator[Row]:
    for name, objective in method.objectives.named_children() if getattr(method, "objectives", None) else ():
        yield name, " ".join(repr(objective.loss).split())


def _step_rows(loader: Any) -> list[Row]:
    steps = next((part["pipeline"] for _, part in each_dict(loader or {}) if "pipeline" in part), [])
    return [(str(number), _format(step)) for number, step in enumerate(steps, start=1)]


def _format(part: Any) -> str:
    """Return a `type` dictionary as a call: PadCrop(padding=4)."""
    if not isinstance(part, Mapping):
        return repr(part)
    values = ", ".join(f"{name}={_format(value)}" for name, value in part.items() if name != "type")
    return f"{type_name(part)}({values})" if "type" in part else f"dict({values})"


def _training_rows(cfg: Config) -> Iterator[Row]:
    loader = cfg.get("train_dataloader") or {}
    for part in _datasets(loader):
        name = "+".join(_names(part))
        try:
            dataset = _read(part)
        except InputError as error:
            yield name, _missing(part, error)
            continue
        found = [dataset.get_data_info(index) for index in range(len(dataset))]
        views = ", ".join(f"{sum(info['view'] == view for info in found):,} {view.word}" for view in View)
        cameras = len({info["camera"] for info in found})
        yield name, f"{len(found):,} images ({views}), {dataset.metainfo['num_ids']:,} identities, {cameras} cameras"
        try:
            check_identities(cfg.model, dataset.metainfo)
        except InputError as error:
            yield "refused", str(error)
    if loader.get("sampler"):
        yield "sampler", f"{_format(loader['sampler'])}, {loader.get('batch_size')} images a batch"


def _test_rows(cfg: Config) -> Iterator[Row]:
    for part in _datasets(cfg.get("test_dataloader") or {}):
        try:
            test_set = _read(part).metainfo["test_set"]
        except InputError as error:
            yield "+".join(_names(part)), _missing(part, error)
            continue
        for protocol in test_set.protocols.values():
            sides = select(protocol, test_set.dataset)
            yield str(protocol), f"{len(sides.query):,} queries, {len(sides.gallery):,} gallery images"
    if cfg.get("test_evaluator"):
        yield "compared by", f"{comparison(cfg).metric} distance"


def _datasets(loader: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [part for _, part in each_dict(loader) if type_name(part) == ReIDDataset.__name__]


def _names(part: Mapping[str, Any]) -> list[str]:
    return [part["name"]] if isinstance(part["name"], str) else list(part["name"])


def _read(part: Mapping[str, Any]) -> ReIDDataset:
    with BuildErrors():
        return DATASETS.build({**part, "agsynth": None})  # nothing is made


def _missing(part: Mapping[str, Any], error: InputError) -> str:
    folder = Path(part.get("data_root") or default_root(), dataset_name(_names(part)[0]))
    if folder.exists():
        return f"not usable: {error}"
    if part.get("agsynth"):
        return f"{folder} is not there; 'fastreid train' makes it, AG-Synth: {_format(part['agsynth'])}"
    return f"not there: {error}"


def _optimizer_rows(cfg: Config) -> list[Row]:
    wrapper, schedules = cfg.get("optim_wrapper") or {}, cfg.get("param_scheduler") or []
    schedules = schedules if isinstance(schedules, list | tuple) else [schedules]
    length = (cfg.get("train_cfg") or {}).get("max_epochs")
    rows = [("epochs", str(length))] if length else []
    rows += [("optimizer", _format(wrapper["optimizer"]))] if wrapper.get("optimizer") else []
    return rows + [("schedule", _format(schedule)) for schedule in schedules]


@torch.no_grad()
def _operations(cfg: Config, config: str | Path, model: ReIDModel) -> dict[str, float]:
    """Return the GFLOPs of one test image, by part of the method and in all."""
    image = Pipeline(test_images(cfg, config)[0])(Image.new("RGB", (64, 128)))
    label = torch.zeros(1, dtype=torch.long)
    images = model.data_preprocessor({"inputs": [image]})["inputs"]
    batch = Batch(images=images, views=label, platforms=label).only(model.method.inference_inputs)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)  # the counter stumbles over views of those that learn
    with count_operations() as counter:
        model.method.embed(model.method(batch))
    for parameter in learning:
        parameter.requires_grad_(True)
    return gigaflops(counter)
