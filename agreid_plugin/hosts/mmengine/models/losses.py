"""Our losses in the host's registry, for our own models and for mmpretrain's heads."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from agreid_plugin import losses
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.registry import MODELS
from agreid_plugin.losses import objectives


class HostHeadLoss:
    """Mixin before a loss of logits that mmpretrain's heads can call: they give `avg_factor`, the divisor of a sum."""

    def forward(self, values: Tensor, *labels: Tensor, avg_factor: float | None = None) -> Tensor:
        """Return the loss, which is a mean over B images, as one over `avg_factor` of them: (B, D), (B,) -> ()."""
        loss = super().forward(values, *labels)
        return loss if avg_factor is None else loss * (len(values) / avg_factor)


class HostFeatureLoss:
    """Mixin before a loss of features: mmpretrain's classification heads have only logits for their loss."""

    def forward(self, values: Tensor, *labels: Tensor, avg_factor: float | None = None) -> Tensor:
        """Return the loss, or refuse to take logits for features: (B, D), (B,) -> ()."""
        if avg_factor is not None:
            raise InputError(
                f"{type(self).__name__} compares features, and a head of mmpretrain gives its loss logits: list it in "
                "the objectives of agreid_plugin.ReIDHead"
            )
        return super().forward(values, *labels)


class IdentityLoss(HostHeadLoss, losses.IdentityLoss):
    """Cross-entropy to the identity."""


class TripletLoss(HostFeatureLoss, losses.TripletLoss):
    """Triplets mined within the batch."""


class VIAL(HostFeatureLoss, losses.VIAL):
    """View-Invariant Angular Loss of VIF-AGReID."""


class ViewLoss(HostHeadLoss, losses.ViewLoss):
    """Cross-entropy to the view."""


LOGITS, FEATURES = "logits", "features"
INPUTS = {IdentityLoss: LOGITS, TripletLoss: FEATURES, VIAL: FEATURES}
"""The output that a loss of identities is computed on."""


def _list_others() -> Iterator[type]:
    """Yield our losses that have no form of their own here."""
    for kind in (getattr(losses, name) for name in losses.__all__):
        is_loss = isinstance(kind, type) and kind.__module__ != objectives.__name__  # where losses are wrapped
        if is_loss and not any(issubclass(own, kind) for own in (*INPUTS, ViewLoss)):
            yield kind


PART_LOSSES = (ViewLoss, *_list_others())
"""Losses of something else: methods that make such parts have them built in."""

for _kind in (*INPUTS, *PART_LOSSES):
    MODELS.register_module(module=_kind)
