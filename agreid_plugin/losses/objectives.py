"""A loss together with what it is computed on, so that any list of losses fits any head."""

from __future__ import annotations

from torch import Tensor, nn

from agreid_plugin.losses.identity import IdentityLoss
from agreid_plugin.losses.triplet import TripletLoss
from agreid_plugin.types import Batch, HeadOutputs


class OnLogits(nn.Module):
    """A loss of class logits and identities."""

    def __init__(self, loss: nn.Module):
        super().__init__()
        self.loss = loss

    def forward(self, head: HeadOutputs, batch: Batch) -> Tensor:
        """Return the loss of a head's logits: () from (B, C) and (B,)."""
        return self.loss(head.logits, batch.pids)


class OnFeatures(nn.Module):
    """A loss of features and identities."""

    def __init__(self, loss: nn.Module):
        super().__init__()
        self.loss = loss

    def forward(self, head: HeadOutputs, batch: Batch) -> Tensor:
        """Return the loss of a head's features: () from (B, D) and (B,)."""
        return self.loss(head.features, batch.pids)


def identity_objectives(over_nonzero: bool = False) -> nn.ModuleDict:
    """Cross-entropy and batch-hard soft-margin triplets, by name; see `IdentityLoss` for `over_nonzero`."""
    cross_entropy = IdentityLoss(over_nonzero=over_nonzero)
    return nn.ModuleDict({"cls": OnLogits(cross_entropy), "triplet": OnFeatures(TripletLoss())})
