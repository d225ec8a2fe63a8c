"""Samples and batches: mmengine's data samples, the preprocessor, and conversion to our batches."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.model import BaseDataPreprocessor
from mmengine.structures import BaseDataElement
from torch import Tensor

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.config.arguments import check_arguments
from agreid_plugin.hosts.mmengine.registry import MODELS
from agreid_plugin.types import UNKNOWN, Batch, view_label

LABELS = ("img_path", "sample_idx", "pid", "camera", "view", "platform", "caption_number")
"""Labels of a sample, by their names in a pipeline."""
STRUCTURES = "mmpretrain.structures"


def build_sample(results: Mapping[str, Any], kind: type[BaseDataElement] = BaseDataElement) -> BaseDataElement:
    """Build the sample of an image of a person, or of a caption as a query, from a pipeline's results.

    Its metainfo:
        img_path: the image file; for a caption that of the image which it describes.
        sample_idx: the place in the dataset.
        pid: the identity in its dataset.
        camera: the camera's number in its dataset, or `UNKNOWN`.
        view: a `View`, or `UNKNOWN`.
        platform: the camera's platform as its place in `PLATFORMS`, or `UNKNOWN`.
        caption_number: the place of a caption among all of the test set; None for an image.

    Its data, where there are any:
        gt_label: the identity numbered from 0 among those to train on; a number, in mmpretrain's samples a tensor (1,).
        tokens: (L,) of a caption.
        attributes: (M,) value indices, `UNKNOWN` where not known.
        feature: (D,) the feature for retrieval, after prediction.

    Args:
        results: the results.
        kind: see `find_sample_type`.
    """
    sample = kind(metainfo={name: results.get(name) for name in LABELS})
    label = results.get("gt_label")
    if label is not None and kind is not BaseDataElement:
        sample.set_gt_label(label)
    elif label is not None:
        sample.set_data({"gt_label": label})
    for name in ("attributes", "tokens"):
        if results.get(name) is not None:
            sample.set_data({name: torch.as_tensor(results[name])})
    return sample


def find_sample_type() -> type[BaseDataElement]:
    """Return mmpretrain's `DataSample`, which its models ask for and write into, in a process that has loaded it."""
    structures = sys.modules.get(STRUCTURES)
    return BaseDataElement if structures is None else structures.DataSample


HOST_LABELS = {"gt_label": "pids", "camera": "cameras", "view": "views", "platform": "platforms"}
"""The data samples' name for each label of ours."""


def is_sentence(sample: BaseDataElement) -> bool:
    """Return whether a sample is a sentence without an image."""
    return sample.get("caption_number") is not None


def to_batch(images: Tensor | None, samples: Sequence[BaseDataElement]) -> Batch:
    """Return images with the labels of their samples; a label that no sample has is None.

    Args:
        images: (B, 3, rows, cols); None where there are only sentences.
        samples: one an image, or one a sentence.
    """
    if images is not None and samples and len(images) != len(samples):
        raise InputError(f"{len(images)} images came with {len(samples)} data samples: give one an image")
    tokens = _stack_field("tokens", samples)
    device = next((each.device for each in (images, tokens) if each is not None), torch.device("cpu"))
    labels = {ours: _stack_labels(name, samples, device) for name, ours in HOST_LABELS.items()}
    return Batch(images=images, attributes=_stack_field("attributes", samples), tokens=tokens, **labels)


def _stack_labels(name: str, samples: Sequence[BaseDataElement], device: torch.device) -> Tensor | None:
    values = [sample.get(name) for sample in samples]
    if all(value is None for value in values):
        return None
    if all(isinstance(value, Tensor) for value in values):  # one by one would have a GPU wait for each
        return torch.stack([value.reshape(()) for value in values]).to(device)
    label = view_label if name == "view" else int
    return torch.tensor([UNKNOWN if value is None else label(value) for value in values], device=device)


def _stack_field(name: str, samples: Sequence[BaseDataElement]) -> Tensor | None:
    values = [sample.get(name) for sample in samples]
    if all(value is None for value in values):
        return None
    missing = next((sample for sample, value in zip(samples, values, strict=True) if value is None), None)
    if missing is not None:
        raise InputError(f"{missing.get('img_path')} has no {name}, while others of its batch have")
    return torch.stack([torch.as_tensor(value) for value in values])


@MODELS.register_module()
@check_arguments()
class ReIDPreprocessor(BaseDataPreprocessor):
    """Stacks images and normalizes them to (image - mean) / std; sentences, which come without one, are left as is.

    Args:
        mean: of the pixels, 0 to 255, red first.
        std: deviation of the pixels.
        bgr_to_rgb: reverse the colors of images that begin with blue, as mmcv loads them.
        non_blocking: move tensors to the device asynchronously.
        batch_augments: what mmpretrain's models pass on of their `train_cfg`; there has to be none.
    """

    def __init__(
        self,
        mean: Sequence[float] = (127.5, 127.5, 127.5),
        std: Sequence[float] = (127.5, 127.5, 127.5),
        bgr_to_rgb: bool = False,
        non_blocking: bool = False,
        batch_augments: Mapping[str, Any] | None = None,
    ):
        super().__init__(non_blocking)
        if batch_augments:
            raise InputError(
                "train_cfg of the model mixes images, which agreid_plugin.ReIDPreprocessor does not: use "
                "mmpretrain.ClsDataPreprocessor, or leave train_cfg out"
            )
        for name, values in (("mean", mean), ("std", std)):
            if len(values) != 3:
                raise InputError(f"{name}={list(values)} should have three values, red, green and blue")
            if name == "std" and min(values) <= 0:
                raise InputError(f"std={list(values)} should be above 0")
            # Not in checkpoints: they are a matter of the configuration, in both hosts.
            self.register_buffer(name, torch.tensor(values, dtype=torch.float).view(1, -1, 1, 1), persistent=False)
        self.bgr_to_rgb = bgr_to_rgb

    def forward(self, data: dict[str, Any], training: bool = False) -> dict[str, Any]:  # noqa: ARG002 - the host's
        """Return `inputs`, (B, 3, rows, cols) or None where there are only sentences, and `data_samples`."""
        data = self.cast_data(data)
        if "inputs" not in data:
            raise InputError("the data loader gives no `inputs`: end the pipeline with agreid_plugin.Pack")
        images = data["inputs"]
        if not isinstance(images, Tensor):
            images = _stack_images([image for image in images if image is not None])
        return {**data, "inputs": None if images is None else self._normalize(images)}

    def _normalize(self, images: Tensor) -> Tensor:
        if images.dim() != 4 or images.shape[1] != 3:
            raise InputError(f"images={tuple(images.shape)} should be (images, 3 colors, rows, columns)")
        return ((images.flip(1) if self.bgr_to_rgb else images).float() - self.mean) / self.std


def _stack_images(images: Sequence[Tensor]) -> Tensor | None:
    sizes = {tuple(image.shape) for image in images}
    if len(sizes) > 1:
        raise InputError(f"images of a batch have different shapes, {sorted(sizes)}: resize them to one")
    return torch.stack(list(images)) if images else None
