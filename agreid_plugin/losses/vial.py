"""View-Invariant Angular Loss of VIF-AGReID (ICCV 2025, Eqs. 6-10).

Shapes: B embeddings of width D.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import require_within
from agreid_plugin.losses.gathering import gather_features, gather_labels
from agreid_plugin.losses.validation import require_features, to_full_precision
from agreid_plugin.types import UNKNOWN


class VIAL(nn.Module):
    """Pulls images of one person together, the harder the wider their angle, and pushes look-alikes apart.

    (1 / N_T) [sum over positives (1 - cos)(1 + lambda e^(-beta cos)) + sum over hard negatives (cos - (1 - margin))]

    Positives are pairs of different images of one person, whatever their views; hard negatives are pairs of different
    people with cos > 1 - margin, and N_T counts both. Computed in float32 inside autocast too: at cos = -1 the slope
    is -817 with the paper's values. Without any pair the loss is a zero that keeps the graph.

    Table 5's rows: `lambda_=0, hard_mining=False` is the angular loss, `hard_mining=False` is VIAL without HNM (Eq. 9,
    averaged over the positives), the defaults are VIAL with HNM.

    Args:
        weight: factor of the whole loss, delta in Eq. 13; the paper does not print its value.
        lambda_: strength of the view-invariant penalty (Eq. 8).
        beta: its decay with the cosine (Eq. 8).
        margin: M, how far below 1 the cosine of different people should stay (Eq. 10).
        hard_mining: whether hard negatives take part (Eq. 10) or positives only (Eq. 9).
        gather: pair the images of all processes rather than each process's own. Every process must bring as many.
            The value is that of the whole batch, on every process. So is the gradient, once averaged over processes
            as DistributedDataParallel does; `gathering` says why.

    Example:
        Two images of one person at a right angle cost (1 - 0)(1 + 0.5 e^0), whichever comes first:

        >>> VIAL()(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), pids=torch.tensor([5, 5]))
        tensor(1.5000)
    """

    def __init__(
        self,
        weight: float = 1.0,
        lambda_: float = 0.5,
        beta: float = 5.0,
        margin: float = 0.5,
        hard_mining: bool = True,
        gather: bool = True,
    ):
        super().__init__()
        self.weight = require_within("weight", weight, 0, math.inf)
        self.lambda_ = require_within("lambda_", lambda_, 0, math.inf)
        self.beta = require_within("beta", beta, 0, math.inf)
        self.margin = require_within("margin", margin, 0, 2)
        self.hard_mining = hard_mining
        self.gather = gather

    def forward(self, features: Tensor, pids: Tensor, views: Tensor | None = None) -> Tensor:
        """Return the loss of a batch: (B, D), (B,), (B,) -> (). Images whose view is `UNKNOWN` take no part."""
        require_features(features, pids=pids, views=views)
        known = torch.ones_like(pids, dtype=torch.bool) if views is None else views != UNKNOWN
        with torch.autocast(features.device.type, enabled=False):
            features = to_full_precision(features)
            if self.gather:
                features, (pids, known) = gather_features(features), gather_labels(pids, known)
            return self.weight * self._mean_over_pairs(compute_cosines(features), *mark_pairs(pids, known))

    def _mean_over_pairs(self, cos: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Eq. 10, or the average of Eq. 9. Pairs left out are given a cosine that costs nothing."""
        total = self.positive_cost(cos.where(positive, 1)).sum()
        count = positive.sum()
        if self.hard_mining:
            excess = cos - (1 - self.margin)
            hard = negative & (excess > 0)
            total, count = total + excess.where(hard, 0).sum(), count + hard.sum()
        return total / count.clamp(min=1)

    def positive_cost(self, cos: Tensor) -> Tensor:
        """Return what positives of these cosines cost, one by one: Eq. 7 times Eq. 8, the summand of Eq. 9."""
        return (1 - cos) * (1 + self.lambda_ * torch.exp(-self.beta * cos))

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return (
            f"weight={self.weight}, lambda_={self.lambda_}, beta={self.beta}, margin={self.margin}, "
            f"hard_mining={self.hard_mining}, gather={self.gather}"
        )


def compute_cosines(features: Tensor) -> Tensor:
    """Return the cosine of every two embeddings (Eq. 6): (B, D) -> (B, B)."""
    directions = F.normalize(features, dim=1)
    return directions @ directions.T


def mark_pairs(pids: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Mark ordered pairs of known images, one person's and two persons': (B,), (B,) -> (B, B), (B, B)."""
    paired = known[:, None] & known & ~torch.eye(len(pids), dtype=torch.bool, device=pids.device)
    same = pids[:, None] == pids
    return paired & same, paired & ~same
