"""`MODEL.BACKBONE.FEAT_DIM`: the width of a backbone's features, asked for or checked."""

from __future__ import annotations

import torch
from fastreid.evaluation import inference_context
from fastreid.modeling.backbones import build_backbone
from fastreid.modeling.meta_arch import Baseline

from agreid_plugin.errors import InputError, first_line
from agreid_plugin.hosts.fastreid.config.loading import changed
from agreid_plugin.hosts.fastreid.models.base import HostMethod, method_of


def with_feature_width(cfg):
    """Return the configuration with the width of the backbone's features where `MODEL.BACKBONE.FEAT_DIM` is 0.

    The backbone is built once more to be asked, from random weights that leave the run's own random numbers alone. Our
    meta-architectures take the width from theirs, and need no number.
    """
    if cfg.MODEL.BACKBONE.FEAT_DIM or method_of(cfg) is not HostMethod:
        return cfg
    asked = changed(cfg, "MODEL.BACKBONE.PRETRAIN", False)
    try:
        with torch.random.fork_rng(devices=()):
            width = _feature_width(asked, build_backbone(asked), torch.device("cpu"))
    except RuntimeError as error:
        raise InputError(
            f"MODEL.BACKBONE.FEAT_DIM is 0, but {cfg.MODEL.BACKBONE.NAME} cannot be asked for its width, give it: "
            f"{first_line(error)}"
        ) from error
    return changed(cfg, "MODEL.BACKBONE.FEAT_DIM", width)


def check_feature_width(cfg, model: torch.nn.Module) -> None:
    """Check `MODEL.BACKBONE.FEAT_DIM`, which the host takes on trust, against what the backbone gives."""
    if not isinstance(model, Baseline):
        return
    width = _feature_width(cfg, model.backbone, model.device)
    if width != cfg.MODEL.BACKBONE.FEAT_DIM:
        raise InputError(
            f"MODEL.BACKBONE.FEAT_DIM is {cfg.MODEL.BACKBONE.FEAT_DIM}, but {cfg.MODEL.BACKBONE.NAME} "
            f"{cfg.MODEL.BACKBONE.DEPTH} gives {width}: set it to {width}"
        )


def _feature_width(cfg, backbone: torch.nn.Module, device: torch.device) -> int:
    with inference_context(backbone), torch.no_grad():
        return backbone(torch.zeros(1, 3, *cfg.INPUT.SIZE_TEST, device=device)).shape[1]
