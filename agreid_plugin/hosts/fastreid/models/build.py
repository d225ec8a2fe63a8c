"""Models from configurations, with the width of their features found out or checked."""

from __future__ import annotations

import torch
from fastreid import modeling
from fastreid.evaluation import inference_context
from fastreid.modeling.backbones import build_backbone
from fastreid.modeling.meta_arch import Baseline

from agreid_plugin.errors import InputError, first_line
from agreid_plugin.hosts.fastreid.config.loading import with_value
from agreid_plugin.hosts.fastreid.models.base import HostMethod, get_method_class, set_chunk


def build_model(cfg) -> torch.nn.Module:
    """Build the model of a configuration as the host does, the width of its features asked for or checked."""
    cfg = with_feature_width(cfg)
    model = modeling.build_model(cfg)
    check_feature_width(cfg, model)
    set_chunk(cfg, model)
    return model


def build_for_inference(cfg) -> torch.nn.Module:
    """Build the model of a configuration; without a number of classes its classifier, which is not used, has one."""
    return build_model(with_value(cfg, "MODEL.HEADS.NUM_CLASSES", cfg.MODEL.HEADS.NUM_CLASSES or 1))


def with_feature_width(cfg):
    """Return the configuration with the width of the backbone's features where `MODEL.BACKBONE.FEAT_DIM` is 0.

    The backbone is built once more to be asked, from random weights that do not touch the random numbers of the run.
    Our meta-architectures take the width from theirs, and need no number.
    """
    if cfg.MODEL.BACKBONE.FEAT_DIM or get_method_class(cfg) is not HostMethod:
        return cfg
    asked = with_value(cfg, "MODEL.BACKBONE.PRETRAIN", False)
    try:
        with torch.random.fork_rng(devices=()):
            width = _feature_width(asked, build_backbone(asked), torch.device("cpu"))
    except RuntimeError as error:
        raise InputError(
            f"MODEL.BACKBONE.FEAT_DIM is 0, but {cfg.MODEL.BACKBONE.NAME} cannot be asked for its width, give it: "
            f"{first_line(error)}"
        ) from error
    return with_value(cfg, "MODEL.BACKBONE.FEAT_DIM", width)


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
