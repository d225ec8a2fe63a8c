"""Batches in the host's terms and in ours.

The host passes images as one tensor and all else as a list of data samples. In a test set that is asked with text,
sentences follow the images: samples without an image, which have a `caption_number`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor

from agreid_plugin.errors import InputError
from agreid_plugin.types import UNKNOWN, Batch, view_label

HOST_LABELS = {"label": "pids", "camera": "cameras", "view": "views", "platform": "platforms"}
"""The data samples' name for each label of ours."""


def is_sentence(sample: BaseDataElement) -> bool:
    """Tell whether a sample is a sentence of its own, with no image."""
    return sample.get("caption_number") is not None


def to_batch(images: Tensor | None, samples: Sequence[BaseDataElement]) -> Batch:
    """Return images with what their samples tell; what no sample tells is None.

    Args:
        images: (B, 3, rows, cols); None for sentences alone.
        samples: one an image, or one a sentence.
    """
    if images is not None and samples and len(images) != len(samples):
        raise InputError(f"{len(images)} images came with {len(samples)} data samples: give one an image")
    tokens = _stacked("tokens", samples)
    device = next((each.device for each in (images, tokens) if each is not None), torch.device("cpu"))
    labels = {ours: _labels(name, samples, device) for name, ours in HOST_LABELS.items()}
    return Batch(images=images, attributes=_stacked("attributes", samples), tokens=tokens, **labels)


def _labels(name: str, samples: Sequence[BaseDataElement], device: torch.device) -> Tensor | None:
    values = [_plain(_value(name, sample)) for sample in samples]
    if all(value is None for value in values):
        return None
    label = view_label if name == "view" else int
    return torch.tensor([UNKNOWN if value is None else label(value) for value in values], device=device)


def _value(name: str, sample: BaseDataElement) -> Any:
    """Return a label of a sample; mmpretrain's samples call the identity `gt_label`."""
    value = sample.get(name)
    return sample.get("gt_label") if name == "label" and value is None else value


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _stacked(name: str, samples: Sequence[BaseDataElement]) -> Tensor | None:
    values = [sample.get(name) for sample in samples]
    if all(value is None for value in values):
        return None
    missing = next((sample for sample, value in zip(samples, values, strict=True) if value is None), None)
    if missing is not None:
        raise InputError(f"{missing.get('img_path')} has no {name}, while others of its batch have")
    return torch.stack([torch.as_tensor(value) for value in values])
