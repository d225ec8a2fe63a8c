"""Our methods as meta-architectures of the host."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from fastreid.modeling.backbones import BACKBONE_REGISTRY, build_backbone
from fastreid.modeling.losses.cross_entroy_loss import log_accuracy
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from torch import Tensor, nn

from agreid_plugin.errors import InputError, unknown
from agreid_plugin.hosts.fastreid.adapter import from_host
from agreid_plugin.hosts.fastreid.backbones import HostBackbone
from agreid_plugin.hosts.fastreid.config import Key, declare, said_of
from agreid_plugin.hosts.fastreid.heads import make_head
from agreid_plugin.hosts.fastreid.losses import build_objectives, declare_architecture
from agreid_plugin.methods import vdt, visa
from agreid_plugin.methods.visa import ViSABackbone
from agreid_plugin.nn.decoupled import DecoupledEncoder
from agreid_plugin.types import VIEW_SOURCES, Batch, View

KEYS = (
    Key("MODEL.VIEW", "given", "Where the view of a test image comes from, if the method needs it: given | predicted."),
    Key("MODEL.VDT.VIEW_WEIGHT", 0.001, "VDT: weight of the view classification and of the orthogonality."),
    Key("MODEL.VDT.NECK_SEES_CLS", True, "VDT: let class tokens into the running statistics of the head's norm."),
    Key("MODEL.VISA.VIEW_WEIGHT", 1.0, "ViSA: weight of the view classification and of the orthogonality."),
    Key("MODEL.VISA.BALANCE_WEIGHT", -1.0, "ViSA: lambda, weight of the load balance; -1: 1e-3 paper, 1e-4 released."),
)
declare(KEYS)
declare_architecture("VDT", {"ViewLoss": "MODEL.VDT.VIEW_WEIGHT", "OrthogonalLoss": "MODEL.VDT.VIEW_WEIGHT"})
declare_architecture(
    "ViSA",
    {
        "ViewLoss": "MODEL.VISA.VIEW_WEIGHT",
        "OrthogonalLoss": "MODEL.VISA.VIEW_WEIGHT",
        "LoadBalanceLoss": "MODEL.VISA.BALANCE_WEIGHT",
    },
)


class HostMethod:
    """What stands before a method's class to make it a meta-architecture: the host's dictionaries and normalization."""

    def keep_normalization(self, cfg) -> None:
        """Keep mean and deviation of the pixels, which the host's checkpoints do not hold."""
        for name, values in (("pixel_mean", cfg.MODEL.PIXEL_MEAN), ("pixel_std", cfg.MODEL.PIXEL_STD)):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1), persistent=False)

    @property
    def device(self) -> torch.device:
        """The device that the host moves images to."""
        return self.pixel_mean.device

    def forward(self, inputs: dict[str, Any] | Tensor) -> dict[str, Tensor] | Tensor:
        """Return the losses in training, the features otherwise."""
        if not self.training:
            return self.embed(self.infer(inputs))
        batch = self.normalized(inputs)
        outputs = super().forward(batch)
        log_accuracy(outputs.identity.logits.detach(), batch.pids)
        return self.losses(outputs, batch)

    def infer(self, inputs: dict[str, Any] | Tensor) -> Any:
        """Return the outputs for test images, made of no more than the method may see of them."""
        return super().forward(self.normalized(inputs).only(self.inference_inputs))

    def normalized(self, inputs: dict[str, Any] | Tensor) -> Batch:
        """Return the host's dictionary, or images alone, as a batch for the method."""
        batch = from_host(inputs if isinstance(inputs, dict) else {"images": inputs})
        return batch.with_(images=(batch.images - self.pixel_mean) / self.pixel_std)


@META_ARCH_REGISTRY.register()
class VDT(HostMethod, vdt.VDT):
    """VDT, built from a configuration."""

    def __init__(self, cfg):
        node, core = cfg.MODEL.VDT, core_of(cfg, DecoupledEncoder, "build_vdt_backbone")
        head = partial(make_head, cfg, core.width)
        with said_of("MODEL.VDT"):
            super().__init__(
                core,
                head=head(cfg.MODEL.HEADS.NUM_CLASSES),
                view_head=head(len(View)),
                objectives=build_objectives(cfg),
                view_weight=node.VIEW_WEIGHT,
                neck_sees_cls=node.NECK_SEES_CLS,
            )
        self.keep_normalization(cfg)


@META_ARCH_REGISTRY.register()
class ViSA(HostMethod, visa.ViSA):
    """ViSA, built from a configuration."""

    def __init__(self, cfg):
        if cfg.MODEL.VIEW not in VIEW_SOURCES:
            raise unknown("MODEL.VIEW", cfg.MODEL.VIEW, VIEW_SOURCES)
        node, core = cfg.MODEL.VISA, core_of(cfg, ViSABackbone, "build_visa_backbone")
        with said_of("MODEL.VISA"):
            super().__init__(
                core,
                cfg.MODEL.HEADS.NUM_CLASSES,
                variant=node.VARIANT,
                view=cfg.MODEL.VIEW,
                make_head=partial(make_head, cfg, core.width),
                objectives=build_objectives(cfg),
                view_weight=node.VIEW_WEIGHT,
                balance_weight=None if node.BALANCE_WEIGHT < 0 else node.BALANCE_WEIGHT,
            )
        self.keep_normalization(cfg)


def core_of(cfg, kind: type[nn.Module], builder: str) -> nn.Module:
    """Build the backbone of the configuration and return its core, which must be of a kind."""
    of_host = BACKBONE_REGISTRY.get(cfg.MODEL.BACKBONE.NAME).__module__.startswith("fastreid.")
    backbone = None if of_host else build_backbone(cfg)
    if isinstance(backbone, HostBackbone) and isinstance(backbone.core, kind):
        return backbone.core
    raise InputError(
        f"MODEL.BACKBONE.NAME {cfg.MODEL.BACKBONE.NAME} does not suit MODEL.META_ARCHITECTURE "
        f"{cfg.MODEL.META_ARCHITECTURE}: use {builder}"
    )
