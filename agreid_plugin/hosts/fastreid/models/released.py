"""Descriptions of released checkpoints, which a method gives for `fastreid convert`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CLIP_GRID = "MODEL.BACKBONE.STRIDE_SIZE, MODEL.CLIP.PATCH_SIZE or INPUT.SIZE_TRAIN"
CLIP_SHAPES = {
    "visual.positional_embedding": CLIP_GRID,
    "text.positional_embedding": "MODEL.CLIP.TEXT_LENGTH",
}
"""Shapes, see `ReleasedModelSpec`, of CLIP's towers."""
VIT_SHAPES = {
    "vit.pos_embed": "MODEL.BACKBONE.STRIDE_SIZE, MODEL.VIT.PATCH_SIZE or INPUT.SIZE_TRAIN",
    "vit.patch_embed": "MODEL.VIT.PATCH_SIZE",
}
"""Shapes, see `ReleasedModelSpec`, of our ViT."""


@dataclass(frozen=True)
class ReleasedModelSpec:
    """The released model of a method.

    Attributes:
        name: of what converts its checkpoints, one of `CONVERTERS`.
        settings: key -> value that a configuration must have to be of that model.
        shapes: part of a tensor's name -> the keys that its shape comes from where its width is right; of several parts
            that a name has, the first counts.
        unstored: keys that its features depend on and no file of weights has, besides those of pixels.
    """

    name: str
    settings: Mapping[str, Any]
    shapes: Mapping[str, str]
    unstored: tuple[str, ...] = ()
