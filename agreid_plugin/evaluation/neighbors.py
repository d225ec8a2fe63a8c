"""Nearest neighbors of features among themselves, without the matrix of all distances.

Shapes: N images, D width, K neighbors, B images of a block.
"""

from __future__ import annotations

import faiss
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from agreid_plugin.evaluation.validation import FeatureArray, checked_pair

ROWS = 256  # images whose distances to all others are made together on a GPU


def joined(query: FeatureArray, gallery: FeatureArray, normalize: bool) -> Tensor:
    """Return the features of both sides in one, queries first, of length 1 if so wanted."""
    features = torch.cat(checked_pair(query, gallery))
    return F.normalize(features, dim=1, out=features) if normalize else features


def nearest(features: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return squared Euclidean distances and places of the K nearest of each image, itself included, (N, K) each.

    There are fewer than `k` if there are fewer images. faiss does it on CPU, torch on any other device.
    """
    k = min(k, len(features))
    return _by_faiss(features, k) if features.device.type == "cpu" else _by_torch(features, k)


def _by_faiss(features: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
    array = np.ascontiguousarray(features.numpy())
    return faiss.knn(array, array, k, metric=faiss.METRIC_L2)


def _by_torch(features: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
    squares = features.square().sum(dim=1)
    found = []
    for rows, own in zip(features.split(ROWS), squares.split(ROWS), strict=True):
        distances = torch.addmm(squares, rows, features.T, alpha=-2) + own[:, None]  # (B, N)
        found.append(distances.topk(k, largest=False))
    values, places = (torch.cat(parts).numpy(force=True) for parts in zip(*found, strict=True))
    return values, places
