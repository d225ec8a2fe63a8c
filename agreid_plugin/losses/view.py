"""Cross-entropy to the view (ViSA, CVPR 2026, Eq. 16).

Shapes: B images, V classes of view.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_within
from agreid_plugin.losses.gathering import average_count
from agreid_plugin.losses.validation import require_labels, to_full_precision
from agreid_plugin.types import UNKNOWN, View


class ViewLoss(nn.Module):
    """Cross-entropy between a view classifier's logits and the views: -(1 / B) sum of v log v_hat (ViSA, Eq. 16).

    Images whose view is `UNKNOWN` take no part and are not counted in B, which is that of all processes; without any
    known view the loss is a zero that keeps the graph. Computed in float32 inside autocast too.

    Args:
        weight: factor of the whole loss.
        classes: V, number of views: aerial and ground, or more where platforms count.
        smoothing: share of the target taken from the true view. Every view, the true one too, gets
            smoothing / smoothed_over.
        smoothed_over: among how many classes the share is divided, V if None. SVPR-ReID's released code smooths its
            views by the number of identities, so that a target sums to less than 1.
    """

    def __init__(
        self,
        weight: float = 1.0,
        classes: int = len(View),
        smoothing: float = 0.0,
        smoothed_over: int | None = None,
    ):
        super().__init__()
        self.weight = require_within("weight", weight, 0, math.inf)
        self.classes = require_within("classes", classes, 1, math.inf)
        self.smoothing = require_within("smoothing", smoothing, 0, 1)
        over = classes if smoothed_over is None else smoothed_over
        self.smoothed_over = require_within("smoothed_over", over, 1, math.inf)

    def forward(self, logits: Tensor, views: Tensor) -> Tensor:
        """Return the loss of a batch: (B, V), (B,) -> (). A view is its column in the logits: aerial 0, ground 1."""
        if logits.dim() != 2 or logits.shape[1] != self.classes:
            raise InputError(f"logits={tuple(logits.shape)} should be images by {self.classes} views")
        require_labels(logits, views=views)
        with torch.autocast(logits.device.type, enabled=False):
            total = self._cross_entropies(to_full_precision(logits), views.long()).sum()
            return self.weight * total / average_count((views != UNKNOWN).sum())

    def _cross_entropies(self, logits: Tensor, views: Tensor) -> Tensor:
        """Return the loss image by image, 0 where the view is unknown: (B, V), (B,) -> (B,)."""
        true = F.cross_entropy(logits, views, ignore_index=UNKNOWN, reduction="none")  # (B,)
        if not self.smoothing:
            return true
        spread = -F.log_softmax(logits, dim=1).sum(dim=1) / self.smoothed_over  # (B,)
        return (1 - self.smoothing) * true + self.smoothing * spread.where(views != UNKNOWN, 0)

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return (
            f"weight={self.weight}, classes={self.classes}, smoothing={self.smoothing}, "
            f"smoothed_over={self.smoothed_over}"
        )
