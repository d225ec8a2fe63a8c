"""Triplet loss with hard or weighted mining within the batch (ViSA, CVPR 2026, Eq. 15).

Shapes: B images, features of width D.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_within
from agreid_plugin.losses.gathering import gather_features, gather_labels
from agreid_plugin.losses.validation import require_features, to_full_precision

SMALLEST = 1e-12  # of a squared distance, so that its root has a slope


class TripletLoss(nn.Module):
    """Asks that each image be nearer to its own person's images than to those of others (ViSA, Eq. 15).

    (1 / B) sum of [d(f, f+) - d(f, f-) + margin]_+, or of log(1 + e^(d(f, f+) - d(f, f-))) with a margin of 0

    f+ is the farthest image of the person, which is the image itself for a person seen once, and f- the nearest of
    another person, both within the batch. Where all images are of one person there is no triplet, and the loss is a
    zero that keeps the graph. Computed in float32 inside autocast too.

    The defaults are what the released code runs; `squared=True` with a margin is Eq. 15 as printed.

    Args:
        weight: factor of the whole loss.
        margin: m, by how much the other person should be farther; 0 means the soft margin.
        squared: take squared Euclidean distances, as Eq. 15 prints, rather than their roots.
        normalize: compare directions only, by 2 - 2 cos, as fast-reid's `NORM_FEAT` does. That is the squared
            distance of unit vectors already, so `squared` cannot be asked for as well.
        hard_mining: take the farthest positive and the nearest negative; otherwise the average of all positives
            weighted by e^d and of all negatives weighted by e^-d, as fast-reid does. Its negative weights fade to
            nothing once distances pass 10 or so (it adds 1e-6 to their sum); these do not.
        gather: mine the images of all processes rather than each process's own; see `VIAL`.

    Example:
        People at 0 and 1, and at 3 and 7, on a line: of the four images only that at 3 is too near to another person,
        with 4 - 2 + 0.5 to pay.

        >>> features = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
        >>> TripletLoss(margin=0.5)(features, pids=torch.tensor([0, 0, 1, 1]))
        tensor(0.6250)
    """

    def __init__(
        self,
        weight: float = 1.0,
        margin: float = 0.0,
        squared: bool = False,
        normalize: bool = False,
        hard_mining: bool = True,
        gather: bool = True,
    ):
        super().__init__()
        self.weight = require_within("weight", weight, 0, math.inf)
        self.margin = require_within("margin", margin, 0, math.inf)
        if squared and normalize:
            raise InputError("squared=True should not go with normalize=True, whose distance is squared already")
        self.squared = squared
        self.normalize = normalize
        self.hard_mining = hard_mining
        self.gather = gather

    def forward(self, features: Tensor, pids: Tensor) -> Tensor:
        """Return the loss of a batch: (B, D), (B,) -> ()."""
        require_features(features, pids=pids)
        with torch.autocast(features.device.type, enabled=False):
            features = to_full_precision(features)
            if self.gather:
                features, (pids,) = gather_features(features), gather_labels(pids)
            if len(features) == 0:
                return features.sum()
            same = pids[:, None] == pids  # (B, B)
            mine = mine_hardest if self.hard_mining else mine_weighted
            positive, negative = mine(compute_distances(features, self.squared, self.normalize), same)  # (B,), (B,)
            gap = positive - negative
            losses = F.relu(gap + self.margin) if self.margin else F.softplus(gap)
            complete = ~same.all(dim=1)
            return self.weight * losses.where(complete, 0).sum() / complete.sum().clamp(min=1)

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return (
            f"weight={self.weight}, margin={self.margin}, squared={self.squared}, normalize={self.normalize}, "
            f"hard_mining={self.hard_mining}, gather={self.gather}"
        )


def compute_distances(features: Tensor, squared: bool = False, normalize: bool = False) -> Tensor:
    """Return the distance of every two images; see `TripletLoss` for its kinds: (B, D) -> (B, B).

    An image's distance to itself is constant: rounding would give it a slope that is all noise.
    """
    if normalize:
        directions = F.normalize(features, dim=1)
        apart = 2 - 2 * directions @ directions.T  # (B, B)
    else:
        squares = features.square().sum(dim=1)  # (B,)
        apart = squares[:, None] + squares - 2 * features @ features.T  # (B, B)
    itself = torch.eye(len(features), dtype=torch.bool, device=features.device)
    apart = apart.masked_fill(itself, 0).clamp(min=SMALLEST)
    return apart if squared or normalize else apart.sqrt()


def mine_hardest(distance: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Return each image's farthest positive and nearest negative: (B, B), (B, B) -> (B,), (B,).

    The negative is infinitely far where there is none.
    """
    positive = distance.where(same, -math.inf).max(dim=1).values
    return positive, distance.where(~same, math.inf).min(dim=1).values


def mine_weighted(distance: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Return each image's average distance to positives and negatives, the harder the heavier.

    Weights are e^d over positives and e^-d over negatives, each summing to 1: (B, B), (B, B) -> (B,), (B,). The
    distance to the negatives is that to all images where there is none.
    """
    lowest = torch.finfo(distance.dtype).min  # not -inf, which would make a row without negatives NaN
    of_positives = distance.where(same, lowest).softmax(dim=1)  # (B, B)
    of_negatives = (-distance).where(~same, lowest).softmax(dim=1)  # (B, B)
    return (distance * of_positives).sum(dim=1), (distance * of_negatives).sum(dim=1)
