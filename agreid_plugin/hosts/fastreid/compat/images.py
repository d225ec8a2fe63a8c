"""Images, from the file to a normalized tensor."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from agreid_plugin.hosts.fastreid.compat.names import host, replace
from agreid_plugin.hosts.host_fixes import HostFixes

HOST_FIXES = HostFixes()
fix = partial(HOST_FIXES.add, "fastreid")


def _normalizes_in_place() -> bool:
    images = torch.ones(1, 3, 1, 1)
    model = SimpleNamespace(pixel_mean=torch.ones(1, 3, 1, 1), pixel_std=torch.ones(1, 3, 1, 1), device="cpu")
    host("modeling.meta_arch").Baseline.preprocess_image(model, images)
    return bool((images == 0).all())


@fix(
    "images are normalized in place: flip testing and a second prediction see them normalized twice",
    _normalizes_in_place,
)
def normalize_out_of_place() -> None:
    """Normalize a copy, on the model's device."""

    def preprocess_image(self, batched_inputs):
        images = batched_inputs["images"] if isinstance(batched_inputs, dict) else batched_inputs
        if not torch.is_tensor(images):
            raise TypeError(f"batched_inputs must be dict or torch.Tensor, but get {type(batched_inputs)}")
        return (images.to(self.device) - self.pixel_mean) / self.pixel_std

    architectures = host("modeling.meta_arch")
    for name in ("Baseline", "MGN"):
        getattr(architectures, name).preprocess_image = preprocess_image


def _affine_is_outdated() -> bool:
    try:
        host("data.transforms.build").T.RandomAffine(10, resample=False, fillcolor=0)
    except TypeError:
        return True
    return False


@fix("torchvision's RandomAffine lost `resample` and `fillcolor`", _affine_is_outdated)
def random_affine_arguments() -> None:
    """Translate the two old arguments; only the host sees the translation."""
    transforms = host("data.transforms.build")
    native = transforms.T

    def random_affine(*args: Any, resample: Any = None, fillcolor: Any = 0, **kwargs: Any):  # noqa: ARG001
        return native.RandomAffine(*args, fill=fillcolor, **kwargs)

    transforms.T = SimpleNamespace(**{**vars(native), "RandomAffine": random_affine})


def _bilevel_image_fails() -> bool:
    from PIL import Image

    try:
        host("data.transforms.transforms").to_tensor(Image.new("1", (1, 1)))
    except ValueError:
        return True
    return False


@fix("numpy 2 refuses np.array(..., copy=False) for black-and-white images", _bilevel_image_fails)
def bilevel_images() -> None:
    """Read a one-bit image as gray."""
    native = host("data.transforms.functional").to_tensor

    def to_tensor(pic):
        return native(pic.convert("L") if getattr(pic, "mode", "") == "1" else pic)

    replace("to_tensor", to_tensor, "data.transforms.functional", "data.transforms.transforms")
