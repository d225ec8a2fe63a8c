"""Average query expansion (Chum et al., ICCV 2007), weighted by similarity as in fast-reid.

Shapes: N images of both sides, D width, K neighbors.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from agreid_plugin.evaluation.neighbors import joined, nearest
from agreid_plugin.evaluation.validation import FeatureArray

ROWS = 1024  # images whose neighbors' features are gathered together


def expand(
    query: FeatureArray, gallery: FeatureArray, *, k: int = 10, alpha: float = 3.0, times: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Replace every feature by the mean of its nearest features of both sides, weighted by cosine ** alpha.

    Args:
        query: (Q, D) features.
        gallery: (G, D) features.
        k: how many features make the mean, its own included.
        alpha: the larger, the less a distant neighbor counts; a negative cosine keeps its sign.
        times: how often to do it.

    Returns:
        The new query and gallery features.
    """
    features = joined(query, gallery, normalize=False)
    for _ in range(times):
        features = _expanded(features, k, alpha)
    array = features.numpy(force=True)
    return array[: len(query)], array[len(query) :]


def _expanded(features: Tensor, k: int, alpha: float) -> Tensor:
    squared, places = nearest(F.normalize(features, dim=1), k)
    cosines = 1 - squared / 2
    weights = torch.from_numpy(np.sign(cosines) * np.abs(cosines) ** alpha).to(features)  # (N, K)
    mean = torch.empty_like(features)
    for start in range(0, len(features), ROWS):
        block = slice(start, start + ROWS)
        chosen = features[torch.as_tensor(places[block], device=features.device)]  # (B, K, D)
        mean[block] = torch.einsum("bk,bkd->bd", weights[block], chosen) / weights.shape[1]
    return mean
