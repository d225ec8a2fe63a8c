"""Orthogonality of identity and view features (ViSA, CVPR 2026, Eq. 17; SVPR-ReID, AAAI 2026, Eq. 10).

Shapes: B images, features of width D.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_known, require_within
from agreid_plugin.losses.gathering import count_processes
from agreid_plugin.losses.validation import to_full_precision

KINDS = ("cosine", "dot")


class OrthogonalLoss(nn.Module):
    """Mean absolute cosine between identity and view features: (1 / B) sum of |cos(f_inv, f_spe)| (ViSA, Eq. 17).

    Computed in float32 inside autocast too. An empty batch is a zero that keeps the graph.

    Args:
        weight: factor of the whole loss.
        kind: `cosine` (ViSA, and SVPR-ReID's released code) or `dot`, the sum of |<f_inv, f_spe>| over the batch that
            SVPR-ReID prints (Eq. 10). The sum grows with the batch and the features' lengths. With several processes
            each gives its own sum times their number, whose average is the whole batch's sum.

    Example:
        The cosines are 0 and (3 * 4 + 4 * 3) / (5 * 5) = 0.96:

        >>> identity, view = torch.tensor([[1.0, 0.0], [3.0, 4.0]]), torch.tensor([[0.0, 2.0], [4.0, 3.0]])
        >>> OrthogonalLoss()(identity, view)
        tensor(0.4800)
    """

    def __init__(self, weight: float = 1.0, kind: str = "cosine"):
        super().__init__()
        self.weight = require_within("weight", weight, 0, math.inf)
        self.kind = require_known("kind of orthogonality", kind, KINDS)

    def forward(self, identity: Tensor, view: Tensor) -> Tensor:
        """Return the loss of a batch: (B, D), (B, D) -> (). The gradient reaches both."""
        if identity.dim() != 2:
            raise InputError(f"identity={tuple(identity.shape)} should have two dimensions, images and width")
        if view.shape != identity.shape:
            raise InputError(f"view={tuple(view.shape)} should have the shape of identity: {tuple(identity.shape)}")
        with torch.autocast(identity.device.type, enabled=False):
            identity, view = to_full_precision(identity), to_full_precision(view)
            if self.kind == "dot":
                return self.weight * count_processes() * (identity * view).sum(dim=1).abs().sum()
            cos = F.cosine_similarity(identity, view, dim=1)  # (B,)
            return self.weight * cos.abs().sum() / max(len(cos), 1)

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return f"weight={self.weight}, kind={self.kind!r}"
