"""ViSA as a meta-architecture of the host, and its backbone."""

from __future__ import annotations

from typing import ClassVar

from fastreid.modeling.backbones import BACKBONE_REGISTRY
from torch import nn

from agreid_plugin.hosts.fastreid.config.loading import key_error_context
from agreid_plugin.hosts.fastreid.config.signatures import options_from
from agreid_plugin.hosts.fastreid.models.backbones import HostBackbone, build_vit_from_keys
from agreid_plugin.hosts.fastreid.models.base import OUR_HEAD, HostMethod, register_method
from agreid_plugin.hosts.fastreid.models.released import VIT_SHAPES, ReleasedModelSpec
from agreid_plugin.methods import visa


@BACKBONE_REGISTRY.register()
def build_visa_backbone(cfg) -> HostBackbone:
    """Build ViSA's backbone. Only meta-architecture ViSA gives it the views it needs, if VAB or ETGM is on."""
    vit = build_vit_from_keys(cfg, extra_tokens=int(cfg.MODEL.VISA.VAB))
    return HostBackbone(ViSA.build_core(cfg, vit))


@register_method("MODEL.VISA", visa.build_backbone)
class ViSA(HostMethod, visa.ViSA):
    """ViSA, built from a configuration: on its own backbone, on any ViT, and without VAB on any network with a map."""

    core_type = visa.ViSABackbone
    suitable = (
        "build_visa_backbone, a ViT, or with MODEL.VISA.VAB False a network with a map (of another library: "
        "MODEL.BACKBONE.EXTERNAL.OUTPUT map)"
    )
    own_losses: ClassVar = {
        "ViewLoss": "VIEW_WEIGHT",
        "OrthogonalLoss": "VIEW_WEIGHT",
        "LoadBalanceLoss": "BALANCE_WEIGHT",
    }
    computed_with: ClassVar = {
        "view_loss": "view_head",
        "orthogonal_loss": "view_head",
        "predictor_loss": "view_predictor",
        "balance_loss": "backbone.queries.experts",
    }
    released: ClassVar = ReleasedModelSpec(
        "visa",
        settings={
            "MODEL.VISA.VARIANT": "released",
            "MODEL.VISA.VAB": True,
            "MODEL.VISA.ETGM": True,
            "MODEL.VISA.DLFM": True,
            "MODEL.HEADS.NAME": OUR_HEAD,
        },
        shapes={
            **VIT_SHAPES,
            "queries.experts.tokens": "MODEL.VISA.TOKENS or MODEL.VISA.EXPERTS",
            "queries.": "MODEL.VISA.EXPERTS",
        },
        unstored=("MODEL.VISA.TOP_K", "MODEL.VISA.NEIGHBORS"),
    )

    @classmethod
    def count_extra_tokens(cls, cfg) -> int:
        """Return 1 for the view token of VAB."""
        return int(cfg.MODEL.VISA.VAB)

    @classmethod
    def build_core(cls, cfg, vit: nn.Module) -> nn.Module:
        """Build VAB, ETGM and DLFM, as many as `MODEL.VISA` asks for, on a network."""
        with key_error_context("MODEL.VISA"):
            return visa.build_backbone(vit, **options_from(cfg.MODEL.VISA, visa.build_backbone))
