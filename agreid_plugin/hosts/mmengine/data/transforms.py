"""Transforms for mmengine's pipelines, equal to those of fast-reid pixel by pixel and draw by draw.

Between transforms an image is `results["img"]`, an array of rows, columns and channels (red, green, blue): uint8 until
an augmentation of tensors has made it float32, still from 0 to 255. mmcv's transforms may stand between.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from agreid_plugin.data import transforms as augmentations
from agreid_plugin.data.captions import CaptionAugmentation, CaptionReader
from agreid_plugin.data.images import read_image
from agreid_plugin.data.transforms import pool
from agreid_plugin.data.transforms.base import Augmentation
from agreid_plugin.errors import InputError, require_within, unknown
from agreid_plugin.hosts.mmengine.config.arguments import check_arguments
from agreid_plugin.hosts.mmengine.data.batches import build_sample, find_sample_type
from agreid_plugin.hosts.mmengine.registry import TRANSFORMS
from agreid_plugin.nn.clip import Tokenizer
from agreid_plugin.types import Record

Results = dict[str, Any]
PADDINGS = ("constant", "edge", "reflect", "symmetric")
IMAGENET_MEAN = (123.675, 116.28, 103.53)  # with what fast-reid fills erased rectangles


@TRANSFORMS.register_module()
@check_arguments()
class ReadImage:
    """Reads `img_path` as RGB, upright. An image that cannot be read is named; no other takes its place.

    mmpretrain's inferencers have read the image themselves, name no path, and begin with blue.
    """

    def __init__(self) -> None:
        pass

    def __call__(self, results: Results) -> Results:
        """Return the results with the image."""
        has_path = "img_path" in results or "img" not in results
        image = np.array(read_image(results["img_path"])) if has_path else results["img"][..., ::-1]
        return {**results, "img": image, "img_shape": image.shape[:2], "ori_shape": image.shape[:2]}

    def __repr__(self) -> str:
        return "ReadImage()"


class ImageTransform(ABC):
    """Transform of `results["img"]`.

    Args:
        change: changes a picture or a tensor.
    """

    def __init__(self, change: Callable[[Any], Any]):
        self.change = change

    @abstractmethod
    def apply(self, image: np.ndarray) -> np.ndarray:
        """Return the image apply: (rows, columns, channels)."""

    def __call__(self, results: Results) -> Results:
        """Return the results with the image apply."""
        image = self.apply(_get_image(results, type(self).__name__))
        return {**results, "img": image, "img_shape": image.shape[:2]}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.change})"


class PictureTransform(ImageTransform):
    """Transform of PIL images, of uint8 only."""

    def apply(self, image: np.ndarray) -> np.ndarray:
        """Return the image apply: (rows, columns, channels)."""
        if image.dtype != np.uint8:
            name = type(self).__name__
            raise InputError(f"{name} cannot take an image of {image.dtype}: put it before what mixes or erases pixels")
        return np.array(self.change(Image.fromarray(image)))


class TensorTransform(ImageTransform):
    """Transform of tensors with floating pixels; in fast-reid it stands after ToTensor."""

    def apply(self, image: np.ndarray) -> np.ndarray:
        """Return the image apply: (rows, columns, channels)."""
        return np.ascontiguousarray(self.change(_to_tensor(image)).numpy().transpose(1, 2, 0))


def _get_image(results: Results, transform: str) -> np.ndarray:
    image = results.get("img")
    if isinstance(image, np.ndarray) and image.ndim == 3:
        return image
    what = image.shape if isinstance(image, np.ndarray) else type(image).__name__
    raise InputError(f"{transform}: results['img'] is {what}; it should be (rows, columns, channels)")


def _to_tensor(image: np.ndarray) -> Tensor:
    """Return the pixels as fast-reid's ToTensor does, from 0 to 255: (3, H, W)."""
    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float()


def _check_size(name: str, size: Sequence[int]) -> list[int]:
    if not isinstance(size, Sequence) or len(size) != 2 or not all(isinstance(n, int) and n > 0 for n in size):
        raise InputError(f"{name}: size={size!r} should be the height and the width in pixels")
    return list(size)


@TRANSFORMS.register_module()
@check_arguments()
class Resize(PictureTransform):
    """Brings images to one size.

    Args:
        size: height and width.
        interpolation: `bicubic` as fast-reid does, `bilinear`, or another of PIL's.
    """

    def __init__(self, size: Any, interpolation: str = "bicubic"):  # `_check_size` says what it should be
        known = [mode.value for mode in InterpolationMode]
        if interpolation not in known:
            raise unknown("Resize: interpolation", interpolation, known)
        super().__init__(transforms.Resize(_check_size("Resize", size), InterpolationMode(interpolation)))


@TRANSFORMS.register_module()
@check_arguments()
class HorizontalFlip(PictureTransform):
    """Mirrors some images.

    Args:
        prob: how likely.
    """

    def __init__(self, prob: float = 0.5):
        super().__init__(transforms.RandomHorizontalFlip(require_within("prob", prob, 0, 1)))


@TRANSFORMS.register_module()
@check_arguments()
class PadCrop(PictureTransform):
    """Pads an image on all sides and crops its size at random.

    Args:
        padding: pixels on each side.
        mode: what is there: `constant` (black), `edge`, `reflect` or `symmetric`.
    """

    def __init__(self, padding: int = 10, mode: str = "constant"):
        if mode not in PADDINGS:
            raise unknown("PadCrop: mode", mode, PADDINGS)
        if not isinstance(padding, int) or padding < 0:
            raise InputError(f"padding={padding!r} should be a whole number of pixels, 0 or more")
        self.padding, self.mode = padding, mode
        super().__init__(self.cut)

    def cut(self, picture: Image.Image) -> Image.Image:
        """Return the picture moved."""
        columns, rows = picture.size
        return transforms.RandomCrop((rows, columns), self.padding, padding_mode=self.mode)(picture)

    def __repr__(self) -> str:
        return f"PadCrop(padding={self.padding}, mode={self.mode})"


@TRANSFORMS.register_module()
@check_arguments()
class RandomErasing(TensorTransform):
    """Fills a rectangle of some images with one color.

    Args:
        prob: how likely.
        value: the color, red, green and blue from 0 to 255, or one number for the three.
        scale: least and largest part of the image.
        ratio: least and largest height by width.
    """

    def __init__(
        self,
        prob: float = 0.5,
        value: float | Sequence[float] = IMAGENET_MEAN,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
    ):
        color = [value] * 3 if isinstance(value, int | float) else list(value)
        if len(color) != 3:
            raise InputError(f"value={value!r} should be one number, or red, green and blue")
        for name, bounds, most in (("scale", scale, 1.0), ("ratio", ratio, float("inf"))):
            if len(bounds) != 2 or not 0 < bounds[0] <= bounds[1] <= most:
                raise InputError(f"{name}={bounds!r} should be the least and the largest, above 0")
        require_within("prob", prob, 0, 1)
        super().__init__(transforms.RandomErasing(prob, tuple(scale), tuple(ratio), color))


def _as_transform(kind: type[Augmentation]) -> type[TensorTransform]:
    """Return an `Augmentation` as a transform with its name, arguments and documentation."""

    @check_arguments(kind)
    class Transform(TensorTransform):
        def __init__(self, **options: Any):
            super().__init__(kind(**options))

    for name in ("__name__", "__qualname__", "__doc__"):
        setattr(Transform, name, getattr(kind, name))
    return Transform


PLRM = TRANSFORMS.register_module(module=_as_transform(augmentations.PLRM))
RandomRotation = TRANSFORMS.register_module(module=_as_transform(augmentations.RandomRotation))
PatchShuffle = TRANSFORMS.register_module(module=_as_transform(augmentations.PatchShuffle))
AugmentationPool = TRANSFORMS.register_module(module=_as_transform(pool.AugmentationPool))


@TRANSFORMS.register_module()
@check_arguments()
class Tokenize:
    """Makes tokens, (length,), of one of the `captions`: drawn, cleaned, and changed at random.

    Args:
        length: tokens of a caption; what is longer is cut.
        word_deletion: how likely each word is left out.
        back_translation: how likely a caption that has one among the `translations` is replaced by it.
    """

    def __init__(self, length: int = 77, word_deletion: float = 0.0, back_translation: float = 0.0):
        if not isinstance(length, int) or length < 3:
            raise InputError(f"length={length!r} should be 3 or more: a caption has a first and a last token, too")
        self.tokenizer = Tokenizer(length)
        self.augment = CaptionAugmentation(back_translation, require_within("word_deletion", word_deletion, 0, 1))

    def __call__(self, results: Results) -> Results:
        """Return the results with tokens."""
        if not results.get("captions"):
            raise InputError(f"{results.get('img_path')} comes without captions: give the dataset captions=dict(...)")
        record = Record(results["img_path"], results["pid"], captions=tuple(results["captions"]))
        reader = CaptionReader(self.tokenizer, self.augment, results.get("translations", {}))
        return {**results, "tokens": reader(record)}

    def __repr__(self) -> str:
        return f"Tokenize(length={self.tokenizer.length}, {self.augment})"


@TRANSFORMS.register_module()
@check_arguments()
class Pack:
    """Ends a pipeline: `inputs`, (3, H, W) from 0 to 255, and in `data_samples` what `build_sample` makes."""

    def __init__(self) -> None:
        self._kind = find_sample_type()  # here, as a spawned worker may not have loaded mmpretrain

    def __call__(self, results: Results) -> Results:
        """Return what a loader collates."""
        return {"inputs": _to_tensor(_get_image(results, "Pack")), "data_samples": build_sample(results, self._kind)}

    def __repr__(self) -> str:
        return "Pack()"
