"""Feature extraction with models of fast-reid, and the evaluation sets of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.evaluation.ranking_options import RankingOptions
from agreid_plugin.hosts.fastreid.config import checks
from agreid_plugin.hosts.fastreid.config.loading import load_config, use_cpu_without_gpu, with_value
from agreid_plugin.hosts.fastreid.data.attributes import with_attributes
from agreid_plugin.hosts.fastreid.data.batches import to_host
from agreid_plugin.hosts.fastreid.data.transforms import build_transforms
from agreid_plugin.hosts.fastreid.engine.evaluator import comparison, test_sets
from agreid_plugin.hosts.fastreid.models.backbones import with_activation
from agreid_plugin.hosts.fastreid.models.base import HostMethod, build_for_inference
from agreid_plugin.inference.extractor import ExtractionModel, Settings, compute_fingerprint
from agreid_plugin.inference.weights import load_weights, require_weights
from agreid_plugin.types import Batch

IRRELEVANT = ("WEIGHTS", "DEVICE", "LOSSES")
"""Keys of MODEL that change no feature, or that the content of the weight file stands for."""


class HostModel(ExtractionModel):
    """A model of fast-reid, or a method of ours as one.

    Args:
        network: the model.
        settings: how it is run.
        left_out: names of its tensors that the weight file has nothing for.
    """

    def __init__(self, network: nn.Module, settings: Settings, left_out: Sequence[str] = ()):
        super().__init__(network, settings, network if isinstance(network, HostMethod) else None, left_out)

    def infer(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return features, and predicted views, of images or of sentences."""
        if batch.images is None:
            batch = batch.with_(images=torch.empty(0, 3, 1, 1, device=self.settings.device))
        if self.method is None:
            own = batch.with_(images=batch.images.clone())  # other packages' may normalize in place
            return self.network(to_host(own)), None
        outputs = self.method.infer(to_host(batch))
        return self.method.embed(outputs), None if batch.tokens is not None else self.method.predicted_views(outputs)

    def normalize(self, batch: Batch) -> Batch:
        """Return images as the method takes them."""
        return self.method.normalized(to_host(batch))


def load_model(
    config: str | Path, weights: str | Path | None, overrides: Sequence[str], device: str | None
) -> HostModel:
    """Build the model of a configuration with the weights of its checkpoint; see `Extractor.from_config`."""
    cfg = _configured(config, weights, overrides, device)
    model = build_for_inference(cfg)
    left_out = load_weights(model, cfg.MODEL.WEIGHTS)
    settings = Settings(
        name=cfg.MODEL.META_ARCHITECTURE,
        fingerprint=_compute_fingerprint(cfg),
        transform=build_transforms(cfg, is_train=False),
        device=torch.device(cfg.MODEL.DEVICE),
        batch_size=cfg.TEST.IMS_PER_BATCH,
        flip=cfg.TEST.FLIP.ENABLED,
    )
    return HostModel(model, settings, left_out)


def build_network(config: str | Path, overrides: Sequence[str]) -> nn.Module:
    """Build the model of a configuration without any weights; see `Extractor.make_untrained`."""
    cfg = load_config(config, overrides)
    cfg.MODEL.BACKBONE.PRETRAIN = False
    cfg.MODEL.DEVICE = "cpu"
    return build_for_inference(with_activation(with_attributes(cfg)))


def _configured(config: str | Path, weights: str | Path | None, overrides: Sequence[str], device: str | None):
    cfg = load_config(config, overrides)
    cfg.MODEL.BACKBONE.PRETRAIN = False  # the checkpoint has it all
    cfg.MODEL.WEIGHTS = str(weights or cfg.MODEL.WEIGHTS)
    cfg.MODEL.DEVICE = device or cfg.MODEL.DEVICE
    use_cpu_without_gpu(cfg)
    checks.check_model(cfg)
    require_weights(cfg.MODEL.WEIGHTS)
    return with_activation(with_attributes(cfg))


def _compute_fingerprint(cfg) -> str:
    cfg = with_value(cfg, "MODEL.HEADS.NUM_CLASSES", 0)  # a run writes it down, its recipe does not
    model = {key: value for key, value in cfg.MODEL.items() if key not in IRRELEVANT}
    return compute_fingerprint([model, cfg.INPUT, cfg.TEST.FLIP.ENABLED], cfg.MODEL.WEIGHTS)


def read_test_sets(config: str | Path, overrides: Sequence[str]) -> list[EvaluationSet]:
    """Return the test sets of a configuration."""
    return test_sets(load_config(config, overrides))


def read_comparison(config: str | Path, overrides: Sequence[str]) -> RankingOptions:
    """Return how the configuration wants features compared."""
    return comparison(load_config(config, overrides))
