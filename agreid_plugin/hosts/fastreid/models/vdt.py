"""VDT as a meta-architecture of the host, and its backbone."""

from __future__ import annotations

from typing import ClassVar

from fastreid.modeling.backbones import BACKBONE_REGISTRY
from torch import nn

from agreid_plugin.hosts.fastreid.config.loading import key_error_context
from agreid_plugin.hosts.fastreid.config.signatures import options_from
from agreid_plugin.hosts.fastreid.models.backbones import HostBackbone, build_vit_from_keys
from agreid_plugin.hosts.fastreid.models.base import OUR_HEAD, HostMethod, register_method
from agreid_plugin.hosts.fastreid.models.released import VIT_SHAPES, ReleasedModelSpec
from agreid_plugin.methods import vdt
from agreid_plugin.nn.view_token_vit import DecoupledEncoder


@BACKBONE_REGISTRY.register()
def build_vdt_backbone(cfg) -> HostBackbone:
    """Build VDT's backbone; the feature is the class token less the view token."""
    return HostBackbone(VDT.build_core(cfg, build_vit_from_keys(cfg, extra_tokens=1)))


@register_method("MODEL.VDT", vdt.build_backbone)
class VDT(HostMethod, vdt.VDT):
    """VDT, built from a configuration: on its own backbone, or on any ViT."""

    core_type, suitable = DecoupledEncoder, "build_vdt_backbone or another ViT"
    own_losses: ClassVar = {"ViewLoss": "VIEW_WEIGHT", "OrthogonalLoss": "VIEW_WEIGHT"}
    released: ClassVar = ReleasedModelSpec("vdt", settings={"MODEL.HEADS.NAME": OUR_HEAD}, shapes=VIT_SHAPES)

    @classmethod
    def count_extra_tokens(cls, _cfg) -> int:
        """Return 1 for the view token."""
        return 1

    @classmethod
    def build_core(cls, cfg, vit: nn.Module) -> nn.Module:
        """Build an encoder with a view token on a ViT."""
        with key_error_context("MODEL.VDT"):
            return vdt.build_backbone(vit, **options_from(cfg.MODEL.VDT, vdt.build_backbone))
