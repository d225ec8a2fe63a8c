"""Objectives: losses with the outputs and labels they are computed on, so that any list of losses fits any head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from agreid_plugin.losses.identity import IdentityLoss
from agreid_plugin.losses.triplet import TripletLoss
from agreid_plugin.types import Batch


class OutputLoss(nn.Module):
    """A loss of outputs, also of those that only some methods have: features of views or texts, logits, routers.

    Args:
        loss: what is computed.
        parts: attributes of the outputs that a method gives its objectives, in the order that the loss takes them.
        labels: fields of the batch that the loss takes after them.
    """

    def __init__(self, loss: nn.Module, parts: Sequence[str], labels: Sequence[str] = ()):
        super().__init__()
        self.loss = loss
        self.parts, self.labels = tuple(parts), tuple(labels)

    def forward(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the loss of a method's outputs, `HeadOutputs` with more attributes or anything else that has them."""
        parts = [getattr(outputs, name) for name in self.parts]
        return self.loss(*parts, *(getattr(batch, name) for name in self.labels))


class LogitLoss(OutputLoss):
    """A loss of a head's class logits and the identities: () from (B, C) and (B,)."""

    def __init__(self, loss: nn.Module):
        super().__init__(loss, ["logits"], ["pids"])


class FeatureLoss(OutputLoss):
    """A loss of a head's features and the identities: () from (B, D) and (B,)."""

    def __init__(self, loss: nn.Module):
        super().__init__(loss, ["features"], ["pids"])


def clip_objectives(margin: float = 0.0) -> nn.ModuleDict:
    """Return identity losses of CLIP methods by name: 0.25 times the smoothed cross-entropy, and batch-hard triplets.

    The smoothing is over all identities; a margin of 0 is the soft one.
    """
    cross_entropy = IdentityLoss(0.25, smoothing=0.1, over_all=True)
    return nn.ModuleDict({"cls": LogitLoss(cross_entropy), "triplet": FeatureLoss(TripletLoss(margin=margin))})


def identity_objectives(over_nonzero: bool = False) -> nn.ModuleDict:
    """Return cross-entropy and batch-hard soft-margin triplets, by name; see `IdentityLoss` for `over_nonzero`."""
    cross_entropy = IdentityLoss(over_nonzero=over_nonzero)
    return nn.ModuleDict({"cls": LogitLoss(cross_entropy), "triplet": FeatureLoss(TripletLoss())})
