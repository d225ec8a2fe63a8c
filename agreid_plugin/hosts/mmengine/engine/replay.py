"""A training step of mmengine's, taken again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import MODELS
from torch import Tensor

from agreid_plugin.engine.steps import Step, taken_again
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.config.checks import BuildErrors
from agreid_plugin.hosts.mmengine.config.loading import load_config, require_model, without_pretrained
from agreid_plugin.hosts.mmengine.data.batches import HOST_LABELS, PersonSample
from agreid_plugin.hosts.mmengine.engine.guard import terms_of
from agreid_plugin.types import Batch


def replay(step: Step, config_file: str | None = None) -> list[str]:
    """Take a step again and return what to say of it; a configuration of the user's replaces the step's own."""
    cfg = _given(config_file) if config_file else _own(step)
    with BuildErrors():
        model = MODELS.build({"_scope_": cfg.get("default_scope") or "mmengine", **without_pretrained(cfg.model)})
    model.to(get_device())

    def losses_of(batch: Batch) -> Mapping[str, Tensor]:
        data = model.data_preprocessor(as_loaded(batch), True)
        return terms_of(model(**data, mode="loss"))

    return taken_again(step, model, losses_of)


def _given(config_file: str) -> Config:
    cfg = load_config(config_file)
    require_model(cfg)
    return cfg


def _own(step: Step) -> Config:
    """Return the step's own configuration: plain values, of which nothing is run."""
    try:
        content = json.loads(step.config)
        return Config({"model": {**content["model"]}, "default_scope": content.get("default_scope")})
    except (ValueError, LookupError, TypeError, AttributeError):
        raise InputError("the configuration in the step is damaged: name one with --config") from None


def as_loaded(batch: Batch) -> dict[str, Any]:
    """Return a batch as a loader gives it."""
    labels = {host: getattr(batch, ours) for host, ours in HOST_LABELS.items() if getattr(batch, ours) is not None}
    samples = []
    for place in range(len(batch)):
        known = {name: int(values[place]) for name, values in labels.items()}
        sample = PersonSample(metainfo={**known, "img_path": batch.paths[place] if batch.paths else ""})
        for name in ("attributes", "tokens"):
            if getattr(batch, name) is not None:
                sample.set_data({name: getattr(batch, name)[place]})
        if "label" in known:  # as mmpretrain's models take it
            sample.set_data({"gt_label": torch.tensor([known["label"]])})
        samples.append(sample)
    return {"inputs": list(batch.images), "data_samples": samples}
