"""ViSA as a meta-architecture of the host, and its backbone."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from fastreid.modeling.backbones import BACKBONE_REGISTRY
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY

from agreid_plugin.hosts.fastreid.commands.released_checkpoints import OF_VIT, Released
from agreid_plugin.hosts.fastreid.config.loading import Key, declare, key_error_context
from agreid_plugin.hosts.fastreid.models.backbones import HostBackbone, build_own_vit
from agreid_plugin.hosts.fastreid.models.base import OURS, HostMethod, core_of, make_head, view_source
from agreid_plugin.hosts.fastreid.models.losses import build_objectives, declare_architecture
from agreid_plugin.methods import visa
from agreid_plugin.methods.visa import ViSABackbone

KEYS = (
    Key("MODEL.VISA.VARIANT", "paper", "ViSA as the `paper` says, or as the `released` code does."),
    Key("MODEL.VISA.VAB", True, "ViSA: view tokens, subtracted from the class token (Table 2)."),
    Key("MODEL.VISA.ETGM", True, "ViSA: queries made by experts; learned tokens without it (Table 2)."),
    Key("MODEL.VISA.DLFM", True, "ViSA: the local feature from graphs of patches (Table 2)."),
    Key("MODEL.VISA.EXPERTS", 8, "ViSA: E, experts in each of the three groups: shared, aerial, ground."),
    Key("MODEL.VISA.TOP_K", 2, "ViSA: k, experts that work for one image in each branch."),
    Key("MODEL.VISA.TOKENS", 16, "ViSA: M, queries that an expert makes."),
    Key("MODEL.VISA.NEIGHBORS", 64, "ViSA: K, patches in a query's graph."),
    Key("MODEL.VISA.VIEW_WEIGHT", 1.0, "ViSA: weight of the view classification and of the orthogonality."),
    Key("MODEL.VISA.BALANCE_WEIGHT", -1.0, "ViSA: lambda, weight of the load balance; -1: 1e-3 paper, 1e-4 released."),
)
declare(KEYS)
declare_architecture(
    "ViSA",
    {
        "ViewLoss": "MODEL.VISA.VIEW_WEIGHT",
        "OrthogonalLoss": "MODEL.VISA.VIEW_WEIGHT",
        "LoadBalanceLoss": "MODEL.VISA.BALANCE_WEIGHT",
    },
)


@BACKBONE_REGISTRY.register()
def build_visa_backbone(cfg) -> HostBackbone:
    """Build ViSA's backbone. Only meta-architecture ViSA gives it the views it needs, if VAB or ETGM is on."""
    node = cfg.MODEL.VISA
    vit = build_own_vit(cfg, extra_tokens=int(node.VAB))
    with key_error_context("MODEL.VISA"):
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


@META_ARCH_REGISTRY.register()
class ViSA(HostMethod, visa.ViSA):
    """ViSA, built from a configuration."""

    computed_with: ClassVar = {
        "view_loss": "view_head",
        "orthogonal_loss": "view_head",
        "predictor_loss": "view_predictor",
        "balance_loss": "backbone.queries.experts",
    }
    released: ClassVar = Released(
        "visa",
        settings={
            "MODEL.VISA.VARIANT": "released",
            "MODEL.VISA.VAB": True,
            "MODEL.VISA.ETGM": True,
            "MODEL.VISA.DLFM": True,
            "MODEL.HEADS.NAME": OURS,
        },
        shapes={
            **OF_VIT,
            "queries.experts.tokens": "MODEL.VISA.TOKENS or MODEL.VISA.EXPERTS",
            "queries.": "MODEL.VISA.EXPERTS",
        },
        unstored=("MODEL.VISA.TOP_K", "MODEL.VISA.NEIGHBORS"),
    )

    def __init__(self, cfg):
        view = view_source(cfg)
        node, core = cfg.MODEL.VISA, core_of(cfg, ViSABackbone, build_visa_backbone.__name__)
        with key_error_context("MODEL.VISA"):
            super().__init__(
                core,
                cfg.MODEL.HEADS.NUM_CLASSES,
                variant=node.VARIANT,
                view=view,
                make_head=partial(make_head, cfg, core.width),
                objectives=build_objectives(cfg),
                view_weight=node.VIEW_WEIGHT,
                balance_weight=None if node.BALANCE_WEIGHT < 0 else node.BALANCE_WEIGHT,
            )
        self.keep_normalization(cfg)
