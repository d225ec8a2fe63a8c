"""Cross-entropy to the view (ViSA, CVPR 2026, Eq. 16).

Shapes: B images.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_within
from agreid_plugin.losses.inputs import precise, require_labels
from agreid_plugin.types import UNKNOWN, View


class ViewLoss(nn.Module):
    """Cross-entropy between a view classifier's logits and the views: -(1 / B) sum of v log v_hat (ViSA, Eq. 16).

    Images whose view is `UNKNOWN` take no part and are not counted in B; without any known view the loss is a zero
    that keeps the graph. Computed in float32 inside autocast too.

    Args:
        weight: factor of the whole loss.
    """

    def __init__(self, weight: float = 1.0):
        super().__init__()
        self.weight = require_within("weight", weight, 0, math.inf)

    def forward(self, logits: Tensor, views: Tensor) -> Tensor:
        """Return the loss of a batch: (B, 2), (B,) -> (). A view is its column in the logits: aerial 0, ground 1."""
        if logits.dim() != 2 or logits.shape[1] != len(View):
            raise InputError(f"logits={tuple(logits.shape)} should be images by {len(View)} views")
        require_labels(logits, views=views)
        with torch.autocast(logits.device.type, enabled=False):
            logits = precise(logits)
            total = F.cross_entropy(logits, views.long(), ignore_index=UNKNOWN, reduction="sum")
            return self.weight * total / (views != UNKNOWN).sum().clamp(min=1)

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return f"weight={self.weight}"
