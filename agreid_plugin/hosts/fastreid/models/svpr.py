"""SVPR-ReID as a meta-architecture of the host."""

from __future__ import annotations

from typing import Any, ClassVar

from agreid_plugin.hosts.fastreid.config.loading import Key, declare
from agreid_plugin.hosts.fastreid.data.attributes import get_schema
from agreid_plugin.hosts.fastreid.models.base import (
    OUR_HEAD,
    HostMethod,
    find_towers,
    head_parts,
    register_method,
    view_source,
)
from agreid_plugin.hosts.fastreid.models.released import CLIP_GRID, CLIP_SHAPES, ReleasedModelSpec
from agreid_plugin.methods import svpr
from agreid_plugin.types import AttributeGuess

KEYS = (
    Key("MODEL.SVPR.VIEW_WORDS.CCTV", "ground", "SVPR-ReID: word of the view of a fixed ground camera."),
    Key("MODEL.SVPR.VIEW_WORDS.WEARABLE", "ground", "SVPR-ReID: word of the view of a worn camera."),
    Key("MODEL.SVPR.VIEW_WORDS.UAV", "aerial", "SVPR-ReID: word of the view from a drone."),
)
declare(KEYS)


@register_method("MODEL.SVPR", left_out=("words",))
class SVPR(HostMethod, svpr.SVPR):
    """SVPR-ReID, built from a configuration: on CLIP's towers, or on any network beside CLIP's text tower."""

    suitable = "build_clip_backbone, a ViT, or with MODEL.SVPR.VDFE False a network with a map"
    own_losses: ClassVar = {
        "ViewLoss": "VIEW_WEIGHT",
        "OrthogonalLoss": "VIEW_WEIGHT",
        "AttributeLoss": "ATTRIBUTE_WEIGHT",
    }
    computed_with: ClassVar = {
        "view_loss": "view_head",
        "orthogonal_loss": "view_head",
        "predictor_loss": "view_predictor",
        "attribute_loss": "backbone.asmoe",
    }
    released: ClassVar = ReleasedModelSpec(
        "svpr",
        settings={
            "MODEL.SVPR.VARIANT": "released",
            "MODEL.SVPR.VDFE": True,
            "MODEL.SVPR.ASMOE": True,
            "MODEL.SVPR.CVPR": True,
            "MODEL.HEADS.NAME": OUR_HEAD,
        },
        shapes={**CLIP_SHAPES, "cvpr.local_weight": CLIP_GRID},
        unstored=(
            *("MODEL.CLIP.NAME", "MODEL.CLIP.QUICK_GELU", "MODEL.SVPR.STAGES", "MODEL.SVPR.KEEP"),
            *("MODEL.SVPR.ATTRIBUTE_RATIO", "MODEL.SVPR.VIEW_WORDS.CCTV", "MODEL.SVPR.VIEW_WORDS.WEARABLE"),
            "MODEL.SVPR.VIEW_WORDS.UAV",
        ),
    )

    @classmethod
    def build_parts(cls, cfg) -> tuple[Any, ...]:
        """Return both towers, head parts, and the attributes to learn."""
        view_source(cfg)  # before towers are built, which takes long
        towers = find_towers(cfg, cls, needs_tokens=cfg.MODEL.SVPR.VDFE)
        return towers.image, towers.text, *head_parts(cfg), get_schema(cfg) if cfg.MODEL.SVPR.ASMOE else None

    @classmethod
    def read_options(cls, cfg) -> dict[str, Any]:
        """Return the constructor's options from their keys, and the words of views by platform."""
        words = {platform.lower(): word for platform, word in cfg.MODEL.SVPR.VIEW_WORDS.items()}
        return super().read_options(cfg) | {"words": words}

    @classmethod
    def learns_attributes(cls, cfg) -> bool:
        """Return whether there are experts for attributes."""
        return cfg.MODEL.SVPR.ASMOE

    def describe(self, inputs: dict[str, Any]) -> list[list[AttributeGuess]]:
        """Return what the model takes each image's attributes for, from the host's dictionary of a test batch."""
        return self.predict_attributes(self.infer(inputs))
