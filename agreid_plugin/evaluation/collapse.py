"""Are the features of different images still different?

Shapes: N images, D width.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

ALIKE = 0.9999
"""Cosine above which every pair of features must lie for them to have collapsed."""
LEAST = 4
"""Images below which nothing is said: two or three may be alike."""


def least_cosine(features: np.ndarray | Tensor) -> float:
    """Return a number that no cosine between two of the features is below: (N, D).

    It is found from each feature's angle to the mean direction, in one pass: two that are no further than an angle
    from it are no further than twice that from each other. It is 1 for features that are all equal, or all 0, and -1 at
    the least.
    """
    rows = torch.as_tensor(features).detach().double()
    lengths = rows.norm(dim=1, keepdim=True)
    if not lengths.any():
        return 1.0
    rows = rows / lengths.clamp_min(torch.finfo(rows.dtype).tiny)
    mean = rows.mean(dim=0)
    to_mean = (rows @ mean / mean.norm().clamp_min(torch.finfo(rows.dtype).tiny)).clamp(-1.0, 1.0)
    angle = 2 * to_mean.min().arccos()
    return float(angle.cos()) if angle < torch.pi else -1.0


def collapse(features: np.ndarray | Tensor) -> str:
    """Say that features have collapsed to one; nothing if they have not.

    They have if there are `LEAST` of them or more, and no two have a cosine below `ALIKE`. Networks that have learned
    nothing yet are far from it: `least_cosine` of small ResNets, ViTs and VDTs with random weights was 0.72 at most, of
    ResNets that a hundredfold learning rate had ruined it was 0.99996 or more.
    """
    if len(features) < LEAST or (cosine := least_cosine(features)) < ALIKE:
        return ""
    return f"the features of {len(features)} different images are all alike (no cosine below {cosine:.6f})"
