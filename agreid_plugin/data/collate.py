"""Collate function of both hosts: samples with their labels become a `Batch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from agreid_plugin.types import UNKNOWN, Batch

T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """One image ready for a batch; what is None is None for the whole batch.

    Attributes:
        image: (3, H, W).
        pid: the identity's label.
        camera: the camera's label, or `UNKNOWN`.
        view: a `View`, or `UNKNOWN`.
        platform: what carries the camera, as its place in `PLATFORMS`, or `UNKNOWN`.
        attributes: (M,) value indices, `UNKNOWN` where not known.
        tokens: (L,) the tokens of a caption.
        path: the image file.
    """

    image: Tensor
    pid: int
    camera: int = UNKNOWN
    view: int = UNKNOWN
    platform: int = UNKNOWN
    attributes: Sequence[int] | None = None
    tokens: Tensor | None = None
    path: str = ""


def collate(samples: Sequence[Sample]) -> Batch:
    """Stack samples of one dataset into a batch."""
    attributes = _all_or_none([sample.attributes for sample in samples], samples, "attributes")
    tokens = _all_or_none([sample.tokens for sample in samples], samples, "tokens")
    return Batch(
        images=torch.stack([sample.image for sample in samples]),
        pids=torch.tensor([int(sample.pid) for sample in samples]),
        cameras=torch.tensor([int(sample.camera) for sample in samples]),
        views=torch.tensor([int(sample.view) for sample in samples]),
        platforms=torch.tensor([int(sample.platform) for sample in samples]),
        attributes=None if attributes is None else torch.tensor(attributes),
        tokens=None if tokens is None else torch.stack(tokens),
        paths=tuple(sample.path for sample in samples),
    )


def _all_or_none(values: Sequence[T | None], samples: Sequence[Sample], what: str) -> list[T] | None:
    """Return the values if every sample has one, None if none has."""
    given = [value for value in values if value is not None]
    if given and len(given) < len(values):
        missing = next(sample.path for sample, value in zip(samples, values, strict=True) if value is None)
        raise ValueError(f"{missing} has no {what}, while others of its batch have")
    return given or None
