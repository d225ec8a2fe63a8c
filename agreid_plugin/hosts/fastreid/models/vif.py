"""VIF-AGReID, without VIAL the ViT baseline, as a meta-architecture of the host."""

from __future__ import annotations

from typing import Any, ClassVar

from fastreid.modeling.backbones import build_backbone

from agreid_plugin.hosts.fastreid.models.backbones import HostBackbone
from agreid_plugin.hosts.fastreid.models.base import HostMethod, head_parts, register_method
from agreid_plugin.methods import vif


@register_method("MODEL.VIF")
class VIF(HostMethod, vif.VIF):
    """VIF-AGReID on any backbone, built from a configuration."""

    takes_any_backbone = True
    own_losses: ClassVar = {"VIAL": "VIAL_WEIGHT"}

    @classmethod
    def build_parts(cls, cfg) -> tuple[Any, ...]:
        """Return any backbone, ours or another's, whose features are `MODEL.BACKBONE.FEAT_DIM` wide, and head parts."""
        backbone, parts = build_backbone(cfg), head_parts(cfg)
        if isinstance(backbone, HostBackbone):
            return backbone.core, *parts
        return backbone, *parts, cfg.MODEL.BACKBONE.FEAT_DIM
