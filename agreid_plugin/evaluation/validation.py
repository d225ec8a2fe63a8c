"""What every evaluation takes: float32 features, one row an image, every number finite.

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

SHOWN = 3  # images spelled out in a complaint about many


def as_features(features: FeatureArray, side: str, paths: Sequence[str] | None = None) -> Tensor:
    """Return features as (N, D) float32 where they lie, without a copy if they are that already.

    Args:
        features: (N, D) of any number type.
        side: `query` or `gallery`, for complaints.
        paths: the images, for complaints.
    """
    tensor = torch.as_tensor(features).detach()
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise InputError(f"{side} features have shape {tuple(tensor.shape)}, expected (images, width), both above 0")
    tensor = tensor.float()
    _refuse_bad_numbers(tensor, side, paths)
    return tensor


def checked_pair(query: FeatureArray, gallery: FeatureArray, paths: Paths = (None, None)) -> tuple[Tensor, Tensor]:
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
    # The squared length is not finite either if it does not fit float32, and no distance could be made of it.
    squares = torch.linalg.vector_norm(features, dim=1).square()
    bad = (~squares.isfinite()).nonzero()[:, 0].tolist()
    if bad:
        names = [str(paths[row]) if paths is not None else f"row {row}" for row in bad[:SHOWN]]
        more = ", ..." if len(bad) > SHOWN else ""
        raise InputError(
            f"{len(bad)} of {len(features)} {side} features have NaN, infinite or huge numbers, "
            f"nothing was ranked: {', '.join(names)}{more}"
        )
