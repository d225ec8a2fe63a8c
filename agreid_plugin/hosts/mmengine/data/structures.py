"""What mmengine carries beside an image's pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from mmengine.structures import BaseDataElement

LABELS = ("img_path", "sample_idx", "pid", "camera", "view", "platform", "caption_number")
"""What a sample tells under the name that it has in a pipeline."""


class PersonSample(BaseDataElement):
    """One image of a person, or one caption to ask with, and what a model makes of it.

    Metainfo:
        img_path: the image file; for a caption that of the image which it describes.
        sample_idx: the place in the dataset.
        pid: the identity in its dataset.
        camera: the camera's number in its dataset, or `UNKNOWN`.
        view: a `View`, or `UNKNOWN`.
        platform: what carries the camera, as its place in `PLATFORMS`, or `UNKNOWN`.
        label: the identity numbered from 0 among those to train on; None at test time.
        caption_number: the place of a caption among all of the test set; None for an image.

    Data:
        tokens: (L,) of a caption, where captions are read.
        attributes: (M,) value indices, `UNKNOWN` where not known, where attributes are learned.
        feature: (D,) what the model compares by, once it has predicted.
    """


def sample_of(results: Mapping[str, Any]) -> PersonSample:
    """Return the sample of what a pipeline has gathered of an image or a caption."""
    known = {name: results.get(name) for name in LABELS}
    sample = PersonSample(metainfo={**known, "label": results.get("gt_label")})
    for name in ("attributes", "tokens"):
        if results.get(name) is not None:
            sample.set_data({name: torch.as_tensor(results[name])})
    return sample
