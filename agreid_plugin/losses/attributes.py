"""Cross-entropy to the attributes of a person (SVPR-ReID, AAAI 2026, Eq. 11).

Shapes: B images, M attributes, V_m values of attribute m.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_within
from agreid_plugin.losses.gathering import average_count
from agreid_plugin.losses.validation import to_full_precision
from agreid_plugin.types import UNKNOWN


class AttributeLoss(nn.Module):
    """Cross-entropy between each attribute's logits and labels, summed over the attributes (SVPR-ReID, Eq. 11).

    Each attribute's is the mean over the images of all processes whose label is not `UNKNOWN`; an attribute that no
    image has is a zero that keeps the graph. Computed in float32 inside autocast too.

    Args:
        weight: factor of the whole loss, beta in Eq. 12. The paper has 0.1, the released code 0.05.
    """

    def __init__(self, weight: float = 1.0):
        super().__init__()
        self.weight = require_within("weight", weight, 0, math.inf)

    def forward(self, logits: Sequence[Tensor], attributes: Tensor) -> Tensor:
        """Return the loss of a batch: M of (B, V_m), (B, M) -> (). A label is its column in its attribute's logits."""
        _require_attributes(logits, attributes)
        known = average_count((attributes != UNKNOWN).sum(dim=0))  # (M,)
        sums = [_sum_over_known(of_one, labels) for of_one, labels in zip(logits, attributes.T, strict=True)]
        return self.weight * sum(total / count for total, count in zip(sums, known, strict=True))

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return f"weight={self.weight}"


def _sum_over_known(logits: Tensor, labels: Tensor) -> Tensor:
    """Return one attribute's cross-entropy over the images that have it: (B, V_m), (B,) -> ()."""
    with torch.autocast(logits.device.type, enabled=False):
        return F.cross_entropy(to_full_precision(logits), labels.long(), ignore_index=UNKNOWN, reduction="sum")


def _require_attributes(logits: Sequence[Tensor], attributes: Tensor) -> None:
    if not len(logits):
        raise InputError("logits=[] should have one entry an attribute, one or more")
    images = len(logits[0])
    for m, of_one in enumerate(logits):
        if of_one.dim() != 2 or len(of_one) != images:
            raise InputError(f"logits[{m}]={tuple(of_one.shape)} should be {images} images by the attribute's values")
    if attributes.shape != (images, len(logits)):
        shape = tuple(attributes.shape)
        raise InputError(f"attributes={shape} should be {images} images by {len(logits)} attributes")
    _require_values(attributes, [of_one.shape[1] for of_one in logits])


def _require_values(attributes: Tensor, values: list[int]) -> None:
    """Refuse labels that are no value of their attribute. All are looked at together: a GPU is waited for once."""
    wrong = (attributes < UNKNOWN) | (attributes >= torch.tensor(values, device=attributes.device))  # (B, M)
    if wrong.any():
        image, m = wrong.nonzero()[0].tolist()
        label = attributes[image, m].item()
        raise InputError(
            f"attributes[{image}, {m}]={label} should be below {values[m]}, the number of values of attribute {m}, "
            f"or {UNKNOWN} if unknown"
        )
