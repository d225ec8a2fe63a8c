"""Our backbones in the host's registry, where any of its meta-architectures finds them."""

from __future__ import annotations

import logging
from typing import Any

from fastreid.modeling.backbones import BACKBONE_REGISTRY
from torch import Tensor, nn

from agreid_plugin.errors import unknown
from agreid_plugin.hosts.fastreid.config.loading import Key, declare, key_error_context
from agreid_plugin.nn.view_token_vit import PlainEncoder
from agreid_plugin.nn.vit import SIZES, VisionTransformer, build_vit
from agreid_plugin.nn.vit_weights import load_pretrained

_logger = logging.getLogger("fastreid.backbone")

KEYS = (
    Key("MODEL.VIT.PATCH_SIZE", 16, "Our ViTs: side of a patch; its stride is MODEL.BACKBONE.STRIDE_SIZE."),
    Key("MODEL.VIT.WIDTH", 0, "Our ViTs: width of a token; 0: that of the size in MODEL.BACKBONE.DEPTH."),
    Key("MODEL.VIT.LAYERS", 0, "Our ViTs: number of blocks; 0: that of the size in MODEL.BACKBONE.DEPTH."),
    Key("MODEL.VIT.HEADS", 0, "Our ViTs: attention heads; 0: those of the size in MODEL.BACKBONE.DEPTH."),
    Key("MODEL.VIT.CHECKPOINTING", False, "Our ViTs: compute blocks again in the backward pass, to save memory."),
)
declare(KEYS)


class HostBackbone(nn.Module):
    """A backbone of ours as the host's meta-architectures call one: images in, a map of one pixel out.

    Our own meta-architectures take `core`, which gives more.
    """

    def __init__(self, core: nn.Module):
        super().__init__()
        self.core = core

    def forward(self, images: Tensor) -> Tensor:
        """Return the features that a head goes on with: (B, 3, rows, cols) -> (B, D, 1, 1)."""
        return self.core(images).feature[..., None, None]


@BACKBONE_REGISTRY.register()
def build_plain_vit_backbone(cfg) -> HostBackbone:
    """Build a ViT whose class token is the feature."""
    return HostBackbone(PlainEncoder(build_vit_from_keys(cfg, extra_tokens=0)))


def build_vit_from_keys(cfg, extra_tokens: int) -> VisionTransformer:
    """Build our ViT as `MODEL.BACKBONE` and `MODEL.VIT` say, pretrained if they do, with tokens beside the class's."""
    backbone, own = cfg.MODEL.BACKBONE, cfg.MODEL.VIT
    if backbone.DEPTH not in SIZES:
        raise unknown(f"MODEL.BACKBONE.DEPTH of {backbone.NAME}", backbone.DEPTH, SIZES)
    shape: dict[str, Any] = {"width": own.WIDTH, "depth": own.LAYERS, "heads": own.HEADS}
    with key_error_context("MODEL.VIT and MODEL.BACKBONE"):
        vit = build_vit(
            backbone.DEPTH,
            **{name: value for name, value in shape.items() if value},
            image_size=tuple(cfg.INPUT.SIZE_TRAIN),
            patch_size=own.PATCH_SIZE,
            stride=tuple(backbone.STRIDE_SIZE),
            drop_path=backbone.DROP_PATH_RATIO,
            extra_tokens=extra_tokens,
            checkpointing=own.CHECKPOINTING,
        )
    if backbone.PRETRAIN:
        _logger.info("pretrained ViT: %s", load_pretrained(vit, backbone.PRETRAIN_PATH))
    return vit
