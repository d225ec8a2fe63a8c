"""Everything of ours in mmengine's registries; importing this module puts it there."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from agreid_plugin.data import augment
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.registry import MODELS, TRANSFORMS
from agreid_plugin.losses import (
    NITC,
    RITC,
    VIAL,
    AttributeLoss,
    IdentityLoss,
    LoadBalanceLoss,
    OrthogonalLoss,
    SDMLoss,
    SupConLoss,
    TripletLoss,
    ViewLoss,
)
from agreid_plugin.methods import vdt, visa
from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.nn.decoupled import DecoupledEncoder
from agreid_plugin.nn.vit import VisionTransformer

LOSSES = (
    NITC,
    RITC,
    VIAL,
    AttributeLoss,
    IdentityLoss,
    LoadBalanceLoss,
    OrthogonalLoss,
    SDMLoss,
    SupConLoss,
    TripletLoss,
    ViewLoss,
)
NETWORKS = (BNNeck, VisionTransformer)
"""Classes that are built from plain values, and registered as they are."""


def build_vdt(num_ids: int, vit: dict[str, Any] | None = None, **options: Any) -> vdt.VDT:
    """Build VDT with a BNNeck.

    Args:
        num_ids: number of identities in the training set.
        vit: arguments of the transformer; `type` may name another one than ours.
        **options: further arguments of `VDT`, as `view_weight`.
    """
    backbone = DecoupledEncoder(_vit(vit, extra_tokens=1))
    return vdt.VDT(backbone, BNNeck(backbone.width, num_ids), **options)


def build_visa_backbone(vit: dict[str, Any] | None = None, vab: bool = True, **options: Any) -> visa.ViSABackbone:
    """Build ViSA's backbone.

    Args:
        vit: arguments of the transformer; `type` may name another one than ours.
        vab: view tokens, for which the transformer has one more place.
        **options: further arguments of `agreid_plugin.methods.visa.build_backbone`, as `experts`.
    """
    return visa.build_backbone(_vit(vit, extra_tokens=int(vab)), vab=vab, **options)


def _vit(arguments: dict[str, Any] | None, extra_tokens: int) -> nn.Module:
    return MODELS.build({"type": VisionTransformer.__name__, "extra_tokens": extra_tokens, **(arguments or {})})


class OnImage:
    """An augmentation of tensors, for `results["img"]`: an array of rows, columns and channels, which stays one."""

    kind: type[augment.base.Augmentation]

    def __init__(self, **options: Any):
        self.augmentation = self.kind(**options)

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Return the results with the image changed."""
        image = results.get("img")
        if not isinstance(image, np.ndarray) or image.ndim != 3:
            what = image.shape if isinstance(image, np.ndarray) else type(image).__name__
            raise InputError(f"{self.kind.__name__}: results['img'] is {what}; it should be (rows, columns, channels)")
        tensor = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        return {**results, "img": np.ascontiguousarray(self.augmentation(tensor).numpy().transpose(1, 2, 0))}

    def __repr__(self) -> str:
        return repr(self.augmentation)


class PLRM(OnImage):
    """Patch-Level RotateMix."""

    kind = augment.PLRM


class RandomRotation(OnImage):
    """Rotation of whole images."""

    kind = augment.RandomRotation


class PatchShuffle(OnImage):
    """Shuffled pixels within patches."""

    kind = augment.PatchShuffle


for _kind in (*LOSSES, *NETWORKS):
    MODELS.register_module(module=_kind)
MODELS.register_module(name="VDT", module=build_vdt)
MODELS.register_module(name="ViSABackbone", module=build_visa_backbone)
for _kind in (PLRM, RandomRotation, PatchShuffle):
    TRANSFORMS.register_module(module=_kind)
