"""Feature extraction with models of mmengine, and the evaluation sets of a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.device import get_device
from mmengine.registry import METRICS, MODELS, DefaultScope
from PIL import Image
from torch import Tensor

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.evaluation.ranking_options import RankingOptions
from agreid_plugin.hosts.mmengine.config.checks import BuildErrors, default_scopes, find_type
from agreid_plugin.hosts.mmengine.config.loading import (
    each_dict,
    load_config,
    require_model,
    to_plain,
    type_name,
    without_pretrained,
)
from agreid_plugin.hosts.mmengine.data.datasets import ReIDDataset
from agreid_plugin.hosts.mmengine.data.transforms import ReadImage
from agreid_plugin.hosts.mmengine.engine.metrics import MultiProtocolMetric
from agreid_plugin.hosts.mmengine.models.base import ReIDModel
from agreid_plugin.hosts.mmengine.registry import DATASETS
from agreid_plugin.hosts.mmengine.registry import METRICS as OWN_METRICS
from agreid_plugin.inference.extractor import ExtractionModel, Settings, compute_fingerprint
from agreid_plugin.inference.weights import load_weights, require_weights
from agreid_plugin.types import Batch

USED = ("model", "test_dataloader")
"""Keys of a configuration that extraction goes by."""
BATCH = 64  # images, where the configuration has no loader that says it


class HostModel(ExtractionModel):
    """A model of ours in mmengine.

    Args:
        network: the model.
        settings: how it is run.
        left_out: names of its tensors that the weight file has nothing for.
    """

    def __init__(self, network: ReIDModel, settings: Settings, left_out: Sequence[str] = ()):
        super().__init__(network, settings, network.method, left_out)

    def infer(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return features, and predicted views, of images or of sentences."""
        sentences = batch.images is None
        outputs = self.method((batch if sentences else self.normalize(batch)).only(self.method.inference_inputs))
        return self.method.embed(outputs), None if sentences else self.method.predicted_views(outputs)

    def normalize(self, batch: Batch) -> Batch:
        """Return images as the method takes them."""
        return batch.with_(images=self.network.data_preprocessor({"inputs": batch.images})["inputs"])


class Pipeline:
    """The transforms of a test image, behind its reading.

    Args:
        steps: their configurations, the first of which reads the image.
    """

    def __init__(self, steps: Sequence[Mapping[str, Any]]):
        if not steps or type_name(steps[0]) != ReadImage.__name__:
            first = type_name(steps[0]) if steps else "nothing"
            raise InputError(f"the test pipeline begins with {first}, not with agreid_plugin.ReadImage: let it")
        self._rest = Compose(list(steps[1:]))

    def __call__(self, picture: Image.Image) -> Tensor:
        """Return the pixels of a picture: (3, H, W), from 0 to 255."""
        image = np.array(picture)
        shape = image.shape[:2]
        return self._rest({"img": image, "img_path": "", "img_shape": shape, "ori_shape": shape})["inputs"]


def load_model(
    config: str | Path, weights: str | Path | None, overrides: Sequence[str], device: str | None
) -> HostModel:
    """Build the model of a configuration with the weights of its checkpoint; see `Extractor.from_config`."""
    cfg = load_config(config, overrides, USED)
    weights = weights or cfg.get("load_from")
    require_weights(weights)
    require_model(cfg)
    cfg.model = without_pretrained(cfg.model)  # the checkpoint has it all
    steps, batch = test_images(cfg, config)
    scope = cfg.get("default_scope")
    with BuildErrors(), DefaultScope.overwrite_default_scope(scope) if scope else nullcontext():
        model, transform = MODELS.build(cfg.model), Pipeline(steps)
    if not isinstance(model, ReIDModel):
        raise InputError(f"{config}: {type(model).__name__} is no model of agreid_plugin, which alone makes features")
    settings = Settings(
        name=type(model).__name__,
        fingerprint=compute_fingerprint([to_plain(cfg.model), to_plain(steps)], weights),
        transform=transform,
        device=torch.device(device or get_device()),
        batch_size=batch,
        view_key="model.view",
    )
    return HostModel(model, settings, load_weights(model, weights))


def build_network(config: str | Path, overrides: Sequence[str]) -> ReIDModel:
    """Build the model of a configuration without any weights; see `Extractor.make_untrained`."""
    cfg = load_config(config, overrides, USED)
    scope = cfg.get("default_scope")
    with BuildErrors(), DefaultScope.overwrite_default_scope(scope) if scope else nullcontext():
        return MODELS.build(without_pretrained(cfg.model))


def test_images(cfg: Config, config: str | Path) -> tuple[Sequence[Mapping[str, Any]], int]:
    """Return the transforms of test images, and how many go through the model together."""
    loader = cfg.get("test_dataloader") or {}
    steps = next((part["pipeline"] for _, part in each_dict(loader) if "pipeline" in part), None)
    if steps is None:
        raise InputError(f"{config} has no test_dataloader with a pipeline, which says what is done to test images")
    return steps, loader.get("batch_size") or BATCH


def read_test_sets(config: str | Path, overrides: Sequence[str]) -> list[EvaluationSet]:
    """Return the test sets of a configuration."""
    cfg = load_config(config, overrides)
    parts = [part for _, part in each_dict(cfg.get("test_dataloader")) if type_name(part) == ReIDDataset.__name__]
    if not parts:
        raise InputError(
            f"{config} has no test_dataloader with an agreid_plugin.ReIDDataset, which says what to look at"
        )
    with BuildErrors():
        return [DATASETS.build(part).metainfo["test_set"] for part in parts]


def read_comparison(config: str | Path, overrides: Sequence[str]) -> RankingOptions:
    """Return how the configuration wants features compared."""
    return comparison(load_config(config, overrides))


def comparison(cfg: Config) -> RankingOptions:
    """Return how the configuration's metric of ours compares features."""
    parts = find_metrics(cfg)
    if not parts:
        raise InputError("test_evaluator has no agreid_plugin.MultiProtocolMetric, which evaluates features")
    with BuildErrors():
        return METRICS.build(parts[0]).comparison


def find_metrics(cfg: Config) -> list[dict]:
    """Return the metrics that are ours, or made of ours."""
    scopes = default_scopes(cfg)
    parts = [part for _, part in each_dict(cfg.get("test_evaluator"))]
    parts = [(part, find_type(OWN_METRICS, part.get("type"), scopes)) for part in parts]
    return [part for part, kind in parts if isinstance(kind, type) and issubclass(kind, MultiProtocolMetric)]
