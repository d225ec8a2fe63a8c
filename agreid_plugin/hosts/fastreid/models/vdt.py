"""VDT as a meta-architecture of the host, and its backbone."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from fastreid.modeling.backbones import BACKBONE_REGISTRY
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY

from agreid_plugin.hosts.fastreid.commands.released_checkpoints import OF_VIT, Released
from agreid_plugin.hosts.fastreid.config.loading import Key, declare, key_error_context
from agreid_plugin.hosts.fastreid.models.backbones import HostBackbone, build_own_vit
from agreid_plugin.hosts.fastreid.models.base import OURS, HostMethod, core_of, make_head
from agreid_plugin.hosts.fastreid.models.losses import build_objectives, declare_architecture
from agreid_plugin.methods import vdt
from agreid_plugin.nn.view_token_vit import DecoupledEncoder
from agreid_plugin.types import View

KEYS = (
    Key("MODEL.VDT.VIEW_WEIGHT", 0.001, "VDT: weight of the view classification and of the orthogonality."),
    Key("MODEL.VDT.NECK_SEES_CLS", True, "VDT: let class tokens into the running statistics of the head's norm."),
)
declare(KEYS)
declare_architecture("VDT", {"ViewLoss": "MODEL.VDT.VIEW_WEIGHT", "OrthogonalLoss": "MODEL.VDT.VIEW_WEIGHT"})


@BACKBONE_REGISTRY.register()
def build_vdt_backbone(cfg) -> HostBackbone:
    """Build VDT's backbone; the feature is the class token less the view token."""
    return HostBackbone(DecoupledEncoder(build_own_vit(cfg, extra_tokens=1)))


@META_ARCH_REGISTRY.register()
class VDT(HostMethod, vdt.VDT):
    """VDT, built from a configuration."""

    released: ClassVar = Released("vdt", settings={"MODEL.HEADS.NAME": OURS}, shapes=OF_VIT)

    def __init__(self, cfg):
        node, core = cfg.MODEL.VDT, core_of(cfg, DecoupledEncoder, build_vdt_backbone.__name__)
        head = partial(make_head, cfg, core.width)
        with key_error_context("MODEL.VDT"):
            super().__init__(
                core,
                head=head(cfg.MODEL.HEADS.NUM_CLASSES),
                view_head=head(len(View)),
                objectives=build_objectives(cfg),
                view_weight=node.VIEW_WEIGHT,
                neck_sees_cls=node.NECK_SEES_CLS,
            )
        self.keep_normalization(cfg)
