"""From what a data loader gives to what a model takes: on its device, stacked, normalized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.model import BaseDataPreprocessor
from torch import Tensor

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.config.arguments import checked
from agreid_plugin.hosts.mmengine.registry import MODELS


@MODELS.register_module()
@checked()
class ReIDPreprocessor(BaseDataPreprocessor):
    """Stacks images and normalizes them to (image - mean) / std; sentences, which come without one, are left as is.

    Args:
        mean: of the pixels, 0 to 255, red first.
        std: deviation of the pixels.
        bgr_to_rgb: turn images around whose first color is blue, as mmcv loads them.
        non_blocking: move tensors to the device while the program goes on.
    """

    def __init__(
        self,
        mean: Sequence[float] = (127.5, 127.5, 127.5),
        std: Sequence[float] = (127.5, 127.5, 127.5),
        bgr_to_rgb: bool = False,
        non_blocking: bool = False,
    ):
        super().__init__(non_blocking)
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
            images = _stack([image for image in images if image is not None])
        return {**data, "inputs": None if images is None else self._normalized(images)}

    def _normalized(self, images: Tensor) -> Tensor:
        if images.dim() != 4 or images.shape[1] != 3:
            raise InputError(f"images={tuple(images.shape)} should be (images, 3 colors, rows, columns)")
        return ((images.flip(1) if self.bgr_to_rgb else images).float() - self.mean) / self.std


def _stack(images: Sequence[Tensor]) -> Tensor | None:
    sizes = {tuple(image.shape) for image in images}
    if len(sizes) > 1:
        raise InputError(f"images of a batch have different shapes, {sorted(sizes)}: resize them to one")
    return torch.stack(list(images)) if images else None
