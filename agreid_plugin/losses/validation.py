"""Input validation of losses: precision, shapes and labels."""

from __future__ import annotations

import torch
from torch import Tensor

from agreid_plugin.errors import InputError


def to_full_precision(values: Tensor) -> Tensor:
    """Return values in float32, or in float64 if they are: half precision is too coarse for a loss."""
    return values if values.dtype == torch.float64 else values.float()


def require_labels(values: Tensor, **labels: Tensor | None) -> None:
    """Refuse labels that are not one an image."""
    for name, given in labels.items():
        if given is not None and given.shape != values.shape[:1]:
            raise InputError(f"{name}={tuple(given.shape)} should have one value an image: {len(values)}")


def require_features(features: Tensor, **labels: Tensor | None) -> None:
    """Refuse features that are not one vector an image, and labels that are not one an image."""
    if features.dim() != 2:
        raise InputError(f"features={tuple(features.shape)} should have two dimensions, images and width")
    require_labels(features, **labels)


def require_pairs(images: Tensor, texts: Tensor, pids: Tensor) -> None:
    """Refuse features of images and texts that are not one of each a person's label."""
    for name, features in (("images", images), ("texts", texts)):
        if features.dim() != 2:
            raise InputError(f"{name}={tuple(features.shape)} should have two dimensions, {name} and width")
    if texts.shape != images.shape:
        raise InputError(f"texts={tuple(texts.shape)} should have the shape of images: {tuple(images.shape)}")
    require_labels(images, pids=pids)
