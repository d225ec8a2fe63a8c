"""VIF-AGReID, without VIAL the ViT baseline, as a meta-architecture of the host."""

from __future__ import annotations

from functools import partial

from fastreid.modeling.backbones import build_backbone
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY

from agreid_plugin.hosts.fastreid.config.loading import Key, declare, key_error_context
from agreid_plugin.hosts.fastreid.models.backbones import HostBackbone
from agreid_plugin.hosts.fastreid.models.base import HostMethod, make_head
from agreid_plugin.hosts.fastreid.models.losses import build_objectives, declare_architecture
from agreid_plugin.methods import vif

KEYS = (
    Key("MODEL.VIF.VIAL_WEIGHT", 1.0, "VIF-AGReID: delta, weight of VIAL (Eq. 13); 0: the ViT baseline."),
    Key("MODEL.VIF.LAMBDA", 0.5, "VIF-AGReID: strength of VIAL's penalty (Eq. 8)."),
    Key("MODEL.VIF.BETA", 5.0, "VIF-AGReID: decay of the penalty with the cosine (Eq. 8)."),
    Key("MODEL.VIF.MARGIN", 0.5, "VIF-AGReID: how far below 1 the cosine of different people should be (Eq. 10)."),
    Key("MODEL.VIF.HARD_MINING", True, "VIF-AGReID: take hard negatives too (Eq. 10), not positives only (Eq. 9)."),
    Key("MODEL.VIF.GATHER", True, "VIF-AGReID: pair the images of all processes in VIAL."),
)
declare(KEYS)
declare_architecture("VIF", {"VIAL": "MODEL.VIF.VIAL_WEIGHT"})


@META_ARCH_REGISTRY.register()
class VIF(HostMethod, vif.VIF):
    """VIF-AGReID on any backbone, built from a configuration."""

    def __init__(self, cfg):
        node, backbone = cfg.MODEL.VIF, build_backbone(cfg)
        ours = isinstance(backbone, HostBackbone)
        with key_error_context("MODEL.VIF and MODEL.BACKBONE.FEAT_DIM"):
            super().__init__(
                backbone.core if ours else backbone,
                cfg.MODEL.HEADS.NUM_CLASSES,
                partial(make_head, cfg),
                build_objectives(cfg),
                width=None if ours else cfg.MODEL.BACKBONE.FEAT_DIM,
                vial_weight=node.VIAL_WEIGHT,
                lambda_=node.LAMBDA,
                beta=node.BETA,
                margin=node.MARGIN,
                hard_mining=node.HARD_MINING,
                gather=node.GATHER,
            )
        self.keep_normalization(cfg)
