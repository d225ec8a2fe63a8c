"""Our backbones in the host's registry, where any of its meta-architectures finds them."""

from __future__ import annotations

import logging
from typing import Any

from fastreid.modeling.backbones import BACKBONE_REGISTRY
from torch import Tensor, nn

from agreid_plugin.errors import unknown
from agreid_plugin.hosts.fastreid.config import Key, declare, said_of
from agreid_plugin.hosts.features import feature_of
from agreid_plugin.methods import visa
from agreid_plugin.nn.decoupled import DecoupledEncoder, PlainEncoder
from agreid_plugin.nn.vit import SIZES, VisionTransformer, build_vit
from agreid_plugin.nn.vit_weights import load_pretrained

_logger = logging.getLogger("fastreid.backbone")

KEYS = (
    Key("MODEL.VIT.PATCH_SIZE", 16, "Our ViTs: side of a patch; its stride is MODEL.BACKBONE.STRIDE_SIZE."),
    Key("MODEL.VIT.WIDTH", 0, "Our ViTs: width of a token; 0: that of the size in MODEL.BACKBONE.DEPTH."),
    Key("MODEL.VIT.LAYERS", 0, "Our ViTs: number of blocks; 0: that of the size in MODEL.BACKBONE.DEPTH."),
    Key("MODEL.VIT.HEADS", 0, "Our ViTs: attention heads; 0: those of the size in MODEL.BACKBONE.DEPTH."),
    Key("MODEL.VIT.CHECKPOINTING", False, "Our ViTs: compute blocks again in the backward pass, to save memory."),
    Key("MODEL.VISA.VARIANT", "paper", "ViSA as the `paper` says, or as the `released` code does."),
    Key("MODEL.VISA.VAB", True, "ViSA: view tokens, subtracted from the class token (Table 2)."),
    Key("MODEL.VISA.ETGM", True, "ViSA: queries made by experts; learned tokens without it (Table 2)."),
    Key("MODEL.VISA.DLFM", True, "ViSA: the local feature from graphs of patches (Table 2)."),
    Key("MODEL.VISA.EXPERTS", 8, "ViSA: E, experts in each of the three groups: shared, aerial, ground."),
    Key("MODEL.VISA.TOP_K", 2, "ViSA: k, experts that work for one image in each branch."),
    Key("MODEL.VISA.TOKENS", 16, "ViSA: M, queries that an expert makes."),
    Key("MODEL.VISA.NEIGHBORS", 64, "ViSA: K, patches in a query's graph."),
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
        return feature_of(self.core(images))[..., None, None]


@BACKBONE_REGISTRY.register()
def build_plain_vit_backbone(cfg) -> HostBackbone:
    """Build a ViT whose class token is the feature."""
    return HostBackbone(PlainEncoder(_vit(cfg, extra_tokens=0)))


@BACKBONE_REGISTRY.register()
def build_vdt_backbone(cfg) -> HostBackbone:
    """Build VDT's backbone; the feature is the class token less the view token."""
    return HostBackbone(DecoupledEncoder(_vit(cfg, extra_tokens=1)))


@BACKBONE_REGISTRY.register()
def build_visa_backbone(cfg) -> HostBackbone:
    """Build ViSA's backbone. Only meta-architecture ViSA gives it the views it needs, if VAB or ETGM is on."""
    node = cfg.MODEL.VISA
    vit = _vit(cfg, extra_tokens=int(node.VAB))
    with said_of("MODEL.VISA"):
        core = visa.build_backbone(
            vit,
            variant=node.VARIANT,
            vab=node.VAB,
            etgm=node.ETGM,
            dlfm=node.DLFM,
            experts=node.EXPERTS,
            top_k=node.TOP_K,
            tokens=node.TOKENS,
            neighbors=node.NEIGHBORS,
        )
    return HostBackbone(core)


def _vit(cfg, extra_tokens: int) -> VisionTransformer:
    backbone, own = cfg.MODEL.BACKBONE, cfg.MODEL.VIT
    if backbone.DEPTH not in SIZES:
        raise unknown(f"MODEL.BACKBONE.DEPTH of {backbone.NAME}", backbone.DEPTH, SIZES)
    shape: dict[str, Any] = {"width": own.WIDTH, "depth": own.LAYERS, "heads": own.HEADS}
    with said_of("MODEL.VIT and MODEL.BACKBONE"):
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
