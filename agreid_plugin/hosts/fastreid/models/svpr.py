"""SVPR-ReID as a meta-architecture of the host."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from fastreid.modeling.meta_arch import META_ARCH_REGISTRY

from agreid_plugin.hosts.fastreid.commands.released_checkpoints import CLIP_GRID, OF_CLIP, Released
from agreid_plugin.hosts.fastreid.config.loading import Key, declare, key_error_context
from agreid_plugin.hosts.fastreid.data.attributes import get_schema
from agreid_plugin.hosts.fastreid.models.base import OURS, HostMethod, make_head, view_source
from agreid_plugin.hosts.fastreid.models.clip import build_towers, require_clip_backbone
from agreid_plugin.hosts.fastreid.models.losses import build_objectives, declare_architecture
from agreid_plugin.methods import svpr
from agreid_plugin.types import AttributeGuess

KEYS = (
    Key("MODEL.SVPR.VARIANT", "paper", "SVPR-ReID as the `paper` says, or as the `released` code does."),
    Key("MODEL.SVPR.VDFE", True, "SVPR-ReID: a token of the view, and features that shed it (Table 5)."),
    Key("MODEL.SVPR.ASMOE", True, "SVPR-ReID: experts for attributes; without attributes there are none (Table 5)."),
    Key("MODEL.SVPR.CVPR", True, "SVPR-ReID: progressive refinement of patches (Table 5)."),
    Key("MODEL.SVPR.STAGES", 3, "SVPR-ReID: N, stages of refinement (Fig. 4)."),
    Key("MODEL.SVPR.INJECT_AT", -1, "SVPR-ReID: i, block that first sees the view token; -1: the last."),
    Key("MODEL.SVPR.PROMPTS", 4, "SVPR-ReID: learned words in a sentence."),
    Key("MODEL.SVPR.EXPERTS", 4, "SVPR-ReID: experts for attributes."),
    Key("MODEL.SVPR.EXPERT_TOP_K", 0, "SVPR-ReID: experts that count for an attribute; 0: all, released 3."),
    Key("MODEL.SVPR.ATTRIBUTE_RATIO", 0.7, "SVPR-ReID: share of the attributes that an image keeps (Eq. 7)."),
    Key("MODEL.SVPR.KEEP", 0.5, "SVPR-ReID: share of the patches that a stage keeps."),
    Key("MODEL.SVPR.MOMENTUM", 0.1, "SVPR-ReID: gamma, share of the refined in a stage's result (Eq. 8)."),
    Key("MODEL.SVPR.VIEW_WEIGHT", 1.0, "SVPR-ReID: alpha, weight of the view losses (Eq. 12)."),
    Key("MODEL.SVPR.ATTRIBUTE_WEIGHT", -1.0, "SVPR-ReID: beta of Eq. 12; -1: 0.1 paper, 0.05 released."),
    Key("MODEL.SVPR.ORTHOGONALITY", "cosine", "SVPR-ReID: mean |cosine|, or `dot` for the sum that Eq. 10 prints."),
    Key("MODEL.SVPR.SENTENCES", "", "SVPR-ReID: paper | released | released-cp2108, style of text; empty: VARIANT's."),
    Key(
        "MODEL.SVPR.DROP_ATTRIBUTES",
        0.0,
        "SVPR-ReID: share of training images whose sentence names no attribute, as at test time.",
    ),
    Key("MODEL.SVPR.CACHE_TEXT", True, "SVPR-ReID: compute a sentence once at test time, not with every batch."),
    Key("MODEL.SVPR.VIEW_WORDS.CCTV", "ground", "SVPR-ReID: word of the view of a fixed ground camera."),
    Key("MODEL.SVPR.VIEW_WORDS.WEARABLE", "ground", "SVPR-ReID: word of the view of a worn camera."),
    Key("MODEL.SVPR.VIEW_WORDS.UAV", "aerial", "SVPR-ReID: word of the view from a drone."),
)
declare(KEYS)
declare_architecture(
    "SVPR",
    {
        "ViewLoss": "MODEL.SVPR.VIEW_WEIGHT",
        "OrthogonalLoss": "MODEL.SVPR.VIEW_WEIGHT",
        "AttributeLoss": "MODEL.SVPR.ATTRIBUTE_WEIGHT",
    },
)


@META_ARCH_REGISTRY.register()
class SVPR(HostMethod, svpr.SVPR):
    """SVPR-ReID, built from a configuration."""

    computed_with: ClassVar = {
        "view_loss": "view_head",
        "orthogonal_loss": "view_head",
        "predictor_loss": "view_predictor",
        "attribute_loss": "backbone.asmoe",
    }
    released: ClassVar = Released(
        "svpr",
        settings={
            "MODEL.SVPR.VARIANT": "released",
            "MODEL.SVPR.VDFE": True,
            "MODEL.SVPR.ASMOE": True,
            "MODEL.SVPR.CVPR": True,
            "MODEL.HEADS.NAME": OURS,
        },
        shapes={**OF_CLIP, "cvpr.local_weight": CLIP_GRID},
        unstored=(
            *("MODEL.CLIP.NAME", "MODEL.CLIP.QUICK_GELU", "MODEL.SVPR.STAGES", "MODEL.SVPR.KEEP"),
            *("MODEL.SVPR.ATTRIBUTE_RATIO", "MODEL.SVPR.VIEW_WORDS.CCTV", "MODEL.SVPR.VIEW_WORDS.WEARABLE"),
            "MODEL.SVPR.VIEW_WORDS.UAV",
        ),
    )

    def __init__(self, cfg):
        view = view_source(cfg)
        require_clip_backbone(cfg)
        node, towers = cfg.MODEL.SVPR, build_towers(cfg)
        with key_error_context("MODEL.SVPR"):
            super().__init__(
                towers.image,
                towers.text,
                cfg.MODEL.HEADS.NUM_CLASSES,
                get_schema(cfg) if node.ASMOE else None,
                variant=node.VARIANT,
                view=view,
                words={platform.lower(): word for platform, word in node.VIEW_WORDS.items()},
                vdfe=node.VDFE,
                asmoe=node.ASMOE,
                cvpr=node.CVPR,
                stages=node.STAGES,
                inject_at=None if node.INJECT_AT < 0 else node.INJECT_AT,
                prompts=node.PROMPTS,
                experts=node.EXPERTS,
                expert_top_k=node.EXPERT_TOP_K or None,
                attribute_ratio=node.ATTRIBUTE_RATIO,
                keep=node.KEEP,
                momentum=node.MOMENTUM,
                make_head=partial(make_head, cfg),
                objectives=build_objectives(cfg),
                view_weight=node.VIEW_WEIGHT,
                attribute_weight=None if node.ATTRIBUTE_WEIGHT < 0 else node.ATTRIBUTE_WEIGHT,
                orthogonality=node.ORTHOGONALITY,
                sentences=node.SENTENCES or None,
                drop_attributes=node.DROP_ATTRIBUTES,
            )
        self.cache_text = node.CACHE_TEXT
        self.keep_normalization(cfg)

    @classmethod
    def learns_attributes(cls, cfg) -> bool:
        """Tell whether there are experts for attributes."""
        return cfg.MODEL.SVPR.ASMOE

    def describe(self, inputs: dict[str, Any]) -> list[list[AttributeGuess]]:
        """Return what the model takes each image's attributes for, from the host's dictionary of a test batch."""
        return self.predict_attributes(self.infer(inputs))
