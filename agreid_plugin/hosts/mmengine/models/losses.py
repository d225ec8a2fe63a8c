"""Our losses in the host's registry, for our own models and for mmpretrain's heads."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from agreid_plugin import losses
from agreid_plugin.hosts.mmengine.registry import MODELS
from agreid_plugin.losses import objectives


class OnHead:
    """What stands before a loss to have mmpretrain's heads call it: they give `avg_factor`, what to divide a sum by."""

    def forward(self, values: Tensor, *labels: Tensor, avg_factor: float | None = None) -> Tensor:
        """Return the loss, which is a mean over B images, as one over `avg_factor` of them: (B, D), (B,) -> ()."""
        loss = super().forward(values, *labels)
        return loss if avg_factor is None else loss * (len(values) / avg_factor)


class IdentityLoss(OnHead, losses.IdentityLoss):
    """Cross-entropy to the identity."""


class TripletLoss(OnHead, losses.TripletLoss):
    """Triplets mined within the batch."""


class VIAL(OnHead, losses.VIAL):
    """View-invariant alignment loss of VIF-AGReID."""


class ViewLoss(OnHead, losses.ViewLoss):
    """Cross-entropy to the view."""


LOGITS, FEATURES = "logits", "features"
INPUTS = {IdentityLoss: LOGITS, TripletLoss: FEATURES, VIAL: FEATURES}
"""What losses of identities are computed on."""


def _others() -> Iterator[type]:
    """Yield our losses that have no form of their own here."""
    for kind in (getattr(losses, name) for name in losses.__all__):
        is_loss = isinstance(kind, type) and kind.__module__ != objectives.__name__  # where losses are wrapped
        if is_loss and not any(issubclass(own, kind) for own in (*INPUTS, ViewLoss)):
            yield kind


OF_PARTS = (ViewLoss, *_others())
"""Losses of something else: methods that make such parts have them built in."""

for _kind in (*INPUTS, *OF_PARTS):
    MODELS.register_module(module=_kind)
