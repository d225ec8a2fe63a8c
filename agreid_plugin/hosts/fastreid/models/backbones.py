"""Our backbones in the host's registry, a ViT and the towers of CLIP, for any of its meta-architectures."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastreid.modeling.backbones import BACKBONE_REGISTRY
from torch import Tensor, nn

from agreid_plugin.errors import InputError, unknown
from agreid_plugin.hosts.fastreid.config.loading import Key, declare, key_error_context, with_value
from agreid_plugin.nn.clip import CLIP, ImageTower, TextTower
from agreid_plugin.nn.clip_build import build_clip, freeze_named
from agreid_plugin.nn.clip_weights import load_clip, needs_quick_gelu
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
CLIP_BACKBONE = "build_clip_backbone"
TEXT_SHAPE = ("TEXT_WIDTH", "TEXT_LAYERS", "TEXT_HEADS", "EMBED_DIM")
CLIP_SHAPE = ("WIDTH", "LAYERS", "HEADS", "PATCH_SIZE", *TEXT_SHAPE)

CLIP_KEYS = (
    Key("MODEL.CLIP.NAME", "ViT-B-16", "CLIP: a ViT by open_clip's name; its stride is MODEL.BACKBONE.STRIDE_SIZE."),
    Key("MODEL.CLIP.WIDTH", 0, "CLIP: width of the image tower; 0: that of NAME."),
    Key("MODEL.CLIP.LAYERS", 0, "CLIP: blocks of the image tower; 0: those of NAME."),
    Key("MODEL.CLIP.HEADS", 0, "CLIP: attention heads of the image tower; 0: those of NAME."),
    Key("MODEL.CLIP.PATCH_SIZE", 0, "CLIP: side of a patch; 0: that of NAME."),
    Key("MODEL.CLIP.TEXT_WIDTH", 0, "CLIP: width of the text tower; 0: that of NAME."),
    Key("MODEL.CLIP.TEXT_LAYERS", 0, "CLIP: blocks of the text tower; 0: those of NAME."),
    Key("MODEL.CLIP.TEXT_HEADS", 0, "CLIP: attention heads of the text tower; 0: those of NAME."),
    Key("MODEL.CLIP.EMBED_DIM", 0, "CLIP: width that both towers are projected to; 0: that of NAME."),
    Key("MODEL.CLIP.TEXT_LENGTH", 77, "CLIP: most tokens of a sentence, its start and end included."),
    Key("MODEL.CLIP.TEXT_PATH", "", "CLIP: weights of the text tower beside another network than CLIP's image tower."),
    Key("MODEL.CLIP.QUICK_GELU", "auto", 'CLIP: OpenAI\'s activation, auto | "yes" | "no"; auto: as the weights need.'),
    Key(
        "MODEL.CLIP.FREEZE",
        [],
        "CLIP: parts that are not trained: text, image, image.stem, image.blocks:0-5.",
        entry="text",
    ),
)
declare((*KEYS, *CLIP_KEYS))


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


@BACKBONE_REGISTRY.register()
def build_clip_backbone(cfg) -> HostBackbone:
    """Build CLIP's image tower; the feature is the class token after the final norm, not projected."""
    clip = _build_clip(cfg, cfg.MODEL.CLIP.TEXT_LENGTH)
    _load_clip(cfg, clip.image)
    freeze_named(clip, cfg.MODEL.CLIP.FREEZE, "MODEL.CLIP.FREEZE")
    clip.image.freeze_projection()
    return HostBackbone(clip.image)


def build_towers(cfg, text_length: int | None = None) -> CLIP:
    """Build both towers with the weights of `MODEL.BACKBONE.PRETRAIN_PATH`, frozen where `MODEL.CLIP.FREEZE` says.

    Args:
        cfg: the configuration.
        text_length: most tokens of a sentence; `MODEL.CLIP.TEXT_LENGTH` without a number.
    """
    clip = _build_clip(cfg, cfg.MODEL.CLIP.TEXT_LENGTH if text_length is None else text_length)
    _load_clip(cfg, clip)
    freeze_named(clip, cfg.MODEL.CLIP.FREEZE, "MODEL.CLIP.FREEZE")
    return clip


def build_text_tower(cfg) -> TextTower:
    """Build the text tower of `MODEL.CLIP`, which stands beside another network than CLIP's image tower."""
    if other := [part for part in cfg.MODEL.CLIP.FREEZE if part != "text"]:
        raise InputError(f"MODEL.CLIP.FREEZE has {other[0]}, but images are encoded by {cfg.MODEL.BACKBONE.NAME}")
    clip = _build_clip(cfg, cfg.MODEL.CLIP.TEXT_LENGTH, TEXT_SHAPE)
    if cfg.MODEL.CLIP.TEXT_PATH and cfg.MODEL.BACKBONE.PRETRAIN:
        _logger.info("pretrained text tower: %s", load_clip(clip.text, cfg.MODEL.CLIP.TEXT_PATH))
    freeze_named(clip, cfg.MODEL.CLIP.FREEZE, "MODEL.CLIP.FREEZE")
    return clip.text


def require_clip_backbone(cfg) -> None:
    """Refuse another backbone's name for a meta-architecture that builds the towers by itself."""
    if cfg.MODEL.BACKBONE.NAME != CLIP_BACKBONE:
        raise InputError(
            f"MODEL.BACKBONE.NAME {cfg.MODEL.BACKBONE.NAME} does not suit MODEL.META_ARCHITECTURE "
            f"{cfg.MODEL.META_ARCHITECTURE}: use {CLIP_BACKBONE}"
        )


def with_activation(cfg):
    """Return the configuration with the activation of CLIP's towers, if it builds them, written into it.

    A checkpoint does not hold it, and where it is evaluated the pretrained weights may be missing.
    """
    if (not _find_weights(cfg) and cfg.MODEL.BACKBONE.NAME != CLIP_BACKBONE) or cfg.MODEL.CLIP.QUICK_GELU != "auto":
        return cfg
    return with_value(cfg, "MODEL.CLIP.QUICK_GELU", "yes" if _quick_gelu(cfg) else "no")


def _find_weights(cfg) -> str:
    """Return the file of weights of CLIP, of its text tower where another network encodes images; empty for none."""
    of_both = cfg.MODEL.BACKBONE.NAME == CLIP_BACKBONE
    return cfg.MODEL.BACKBONE.PRETRAIN_PATH if of_both else cfg.MODEL.CLIP.TEXT_PATH


def _build_clip(cfg, text_length: int, keys: Sequence[str] = CLIP_SHAPE) -> CLIP:
    train, test = list(cfg.INPUT.SIZE_TRAIN), list(cfg.INPUT.SIZE_TEST)
    if train != test:
        raise InputError(f"CLIP needs one image size: INPUT.SIZE_TRAIN is {train}, INPUT.SIZE_TEST {test}")
    shape = {key.lower(): cfg.MODEL.CLIP[key] for key in keys if cfg.MODEL.CLIP[key]}
    quick_gelu = _quick_gelu(cfg)
    with key_error_context("MODEL.CLIP and MODEL.BACKBONE"):
        return build_clip(
            cfg.MODEL.CLIP.NAME,
            image_size=tuple(train),
            stride=tuple(cfg.MODEL.BACKBONE.STRIDE_SIZE) if keys is CLIP_SHAPE else None,
            text_length=text_length,
            quick_gelu=quick_gelu,
            **shape,
        )


def _quick_gelu(cfg) -> bool:
    """Return which activation the weights need.

    The file is read even where it is not loaded: an evaluation loads a checkpoint instead, which holds no activation
    but was trained from that file.
    """
    return needs_quick_gelu(cfg.MODEL.CLIP.QUICK_GELU, _find_weights(cfg), "MODEL.CLIP.QUICK_GELU")


def _load_clip(cfg, towers: CLIP | ImageTower) -> None:
    if cfg.MODEL.BACKBONE.PRETRAIN:
        _logger.info("pretrained CLIP: %s", load_clip(towers, cfg.MODEL.BACKBONE.PRETRAIN_PATH))
