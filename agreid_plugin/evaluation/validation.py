"""Checks of features: two-dimensional, float32, finite, and not collapsed to one vector.

Shapes: N images, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from agreid_plugin.errors import InputError

FeatureArray: TypeAlias = np.ndarray | Tensor
Paths: TypeAlias = tuple[Sequence[str] | None, Sequence[str] | None]

MAX_NAMED = 3  # images named in an error message about many
COLLAPSE_COSINE = 0.9999
"""Cosine above which every pair of features must lie for them to have collapsed."""
MIN_IMAGES = 4
"""Fewer images are not judged: two or three may be alike."""


def as_features(features: FeatureArray, side: str, paths: Sequence[str] | None = None) -> Tensor:
    """Return features as (N, D) float32 where they lie, without a copy if they are that already.

    Args:
        features: (N, D) of any number type.
        side: `query` or `gallery`, for error messages.
        paths: the images, for error messages.
    """
    tensor = torch.as_tensor(features).detach()
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise InputError(f"{side} features have shape {tuple(tensor.shape)}, expected (images, width), both above 0")
    tensor = tensor.float()
    _refuse_bad_numbers(tensor, side, paths)
    return tensor


def check_pair(query: FeatureArray, gallery: FeatureArray, paths: Paths = (None, None)) -> tuple[Tensor, Tensor]:
    """Return the features of both sides as `as_features` does; their widths have to be equal."""
    query, gallery = as_features(query, "query", paths[0]), as_features(gallery, "gallery", paths[1])
    if query.shape[1] != gallery.shape[1]:
        raise InputError(f"query features are {query.shape[1]} wide, gallery features {gallery.shape[1]}")
    return query, gallery


def check_lengths(side: str, images: int, **others: int) -> None:
    """Refuse a side of which there are not as many features as images."""
    for what, count in others.items():
        if count != images:
            raise InputError(f"{side}: {count} {what} for {images} images")


def _refuse_bad_numbers(features: Tensor, side: str, paths: Sequence[str] | None) -> None:
    # The squared length is not finite either if it does not fit float32, and then no distance can be computed.
    squares = torch.linalg.vector_norm(features, dim=1).square()
    bad = (~squares.isfinite()).nonzero()[:, 0].tolist()
    if bad:
        names = [str(paths[row]) if paths is not None else f"row {row}" for row in bad[:MAX_NAMED]]
        more = ", ..." if len(bad) > MAX_NAMED else ""
        raise InputError(
            f"{len(bad)} of {len(features)} {side} features have NaN, infinite or huge numbers, "
            f"nothing was ranked: {', '.join(names)}{more}"
        )


def bound_cosines(features: np.ndarray | Tensor) -> float:
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


def describe_collapse(features: np.ndarray | Tensor) -> str:
    """Return a sentence if features have collapsed to one vector, else an empty string.

    They have if there are `MIN_IMAGES` of them or more, and no two have a cosine below `COLLAPSE_COSINE`. Untrained
    networks are far from it: `bound_cosines` of small ResNets, ViTs and VDTs with random weights was 0.72 at most, of
    ResNets that a hundredfold learning rate had ruined it was 0.99996 or more.
    """
    if len(features) < MIN_IMAGES or (cosine := bound_cosines(features)) < COLLAPSE_COSINE:
        return ""
    return f"the features of {len(features)} different images are all alike (no cosine below {cosine:.6f})"
