"""Cross-entropy to the identity (ViSA, CVPR 2026, Eq. 14).

Shapes: B images, C identities.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_within
from agreid_plugin.losses.gathering import average_count
from agreid_plugin.losses.validation import require_labels, to_full_precision


class IdentityLoss(nn.Module):
    """Cross-entropy between a classifier's logits and the identities: -(1 / B) sum of log p(y | f) (ViSA, Eq. 14).

    Computed in float32 inside autocast too. An empty batch is a zero that keeps the graph.

    Args:
        weight: factor of the whole loss.
        smoothing: share of the target taken from the true identity and spread evenly over the C - 1 others, as
            fast-reid does.
        over_nonzero: divide by the number of images whose loss is not exactly zero, at least 1, as fast-reid does,
            rather than by B. The two differ once the classifier is certain of some images to the last bit. Images of
            all processes are counted, where fast-reid has each count its own.
        over_all: spread the smoothing over all C, the true identity among them, as torch, CLIP-ReID and SVPR-ReID do.

    Example:
        A classifier that cannot tell four people apart pays log 4, smoothed or not:

        >>> logits, pids = torch.zeros(2, 4), torch.tensor([0, 3])
        >>> IdentityLoss()(logits, pids), IdentityLoss(smoothing=0.1)(logits, pids)
        (tensor(1.3863), tensor(1.3863))
    """

    def __init__(self, weight: float = 1.0, smoothing: float = 0.0, over_nonzero: bool = False, over_all: bool = False):
        super().__init__()
        self.weight = require_within("weight", weight, 0, math.inf)
        self.smoothing = require_within("smoothing", smoothing, 0, 1)
        self.over_nonzero = over_nonzero
        self.over_all = over_all

    def forward(self, logits: Tensor, pids: Tensor) -> Tensor:
        """Return the loss of a batch: (B, C), (B,) -> (). An identity is its column in the logits."""
        self._require_batch(logits, pids)
        with torch.autocast(logits.device.type, enabled=False):
            logits = to_full_precision(logits)
            losses = self._cross_entropies(logits, pids.long())
            images = average_count(losses.count_nonzero()) if self.over_nonzero else max(len(losses), 1)
            return self.weight * losses.sum() / images

    def _cross_entropies(self, logits: Tensor, pids: Tensor) -> Tensor:
        """Return the loss image by image: (B, C), (B,) -> (B,)."""
        log_probs = F.log_softmax(logits, dim=1)  # (B, C)
        true = log_probs.gather(1, pids[:, None]).squeeze(1)  # (B,)
        if not self.smoothing:
            return -true
        total, classes = log_probs.sum(dim=1), logits.shape[1]
        spread = total / classes if self.over_all else (total - true) / (classes - 1)  # (B,)
        return -(1 - self.smoothing) * true - self.smoothing * spread

    def _require_batch(self, logits: Tensor, pids: Tensor) -> None:
        if logits.dim() != 2:
            raise InputError(f"logits={tuple(logits.shape)} should have two dimensions, images and identities")
        if self.smoothing and not self.over_all and logits.shape[1] < 2:
            raise InputError(f"logits={tuple(logits.shape)} should have two identities or more for smoothing")
        require_labels(logits, pids=pids)

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return (
            f"weight={self.weight}, smoothing={self.smoothing}, over_nonzero={self.over_nonzero}, "
            f"over_all={self.over_all}"
        )
