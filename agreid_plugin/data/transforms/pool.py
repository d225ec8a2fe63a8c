"""The image augmentation of TBPS-CLIP and TAG-CLIP: a few operations drawn for every image.

Pixels are from 0 to 255. Shapes as in `base`; one image is (C, H, W), C being red, green and blue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from agreid_plugin.data.transforms.base import Augmentation, as_floating, cast, happens
from agreid_plugin.data.transforms.plrm import rotation_grid
from agreid_plugin.errors import InputError, require_known

MAX_PIXEL = 255.0
JITTER = 0.1  # of brightness, contrast and saturation, to either side
ANGLE = 15.0  # degrees, to either side
CROP_AREA, CROP_RATIO = (0.9, 1.0), (3 / 4, 4 / 3)  # part of the image; width by height
GRAY, FLIP, ERASE = 0.1, 0.5, 0.5  # how likely
ERASED_AREA, ERASED_RATIO = (0.1, 0.2), (0.3, 3.3)  # part of the image; height by width
MAX_TRIES = 10  # to draw a rectangle that fits
LUMA = (0.2989, 0.587, 0.114)


class AugmentationPool(Augmentation):
    """Applies operations drawn with replacement from a pool of six, after resizing and before normalization.

    `jitter` (brightness, contrast and saturation by up to 10 %, in any order), `rotate` (up to 15 degrees, black
    corners), `crop` (to 90 % or more, brought back to size), `gray` (one in ten), `flip` (every other), `erase` (every
    other: a black rectangle of 10 to 20 %).

    Args:
        number: operations an image.
        operations: names of those in the pool.
        ratio: width by height of crops. The default is that of square images; on 2:1 images nearly every crop is the
            central one, a band as wide as the image.
    """

    def __init__(
        self, number: int = 2, operations: Sequence[str] | None = None, ratio: tuple[float, float] = CROP_RATIO
    ):
        super().__init__()
        if not isinstance(number, int) or number < 0:
            raise InputError(f"number={number!r} should be a whole number of operations, 0 or more")
        if len(ratio) != 2 or not 0 < ratio[0] <= ratio[1]:
            raise InputError(f"ratio={ratio!r} should be the least and the largest width by height")
        self.number, self.ratio = number, (ratio[0], ratio[1])
        self.names = tuple(OPERATIONS if operations is None else operations)
        for name in self.names:
            require_known("operation of the pool", name, OPERATIONS)
        if not self.names:
            raise InputError(f"operations=[] should be one or more of {', '.join(OPERATIONS)}")

    def augment(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Augment every image of a batch by its own draws."""
        return torch.stack([cast(self._augment_one(as_floating(image), generator), image.dtype) for image in images])

    def _augment_one(self, image: Tensor, generator: Generator | None) -> Tensor:
        for place in torch.randint(len(self.names), (self.number,), generator=generator).tolist():
            name = self.names[place]
            further = {"ratio": self.ratio} if name == "crop" else {}
            image = OPERATIONS[name](image, generator, **further)
        return image

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return f"number={self.number}, operations={', '.join(self.names)}, ratio={self.ratio}"


def jitter(image: Tensor, generator: Generator | None) -> Tensor:
    """Change brightness, contrast and saturation, in any order."""
    changes = (_brighten, _change_contrast, _saturate)
    for place in torch.randperm(len(changes), generator=generator).tolist():
        image = changes[place](image, _draw_between(1 - JITTER, 1 + JITTER, generator))
    return image


def rotate(image: Tensor, generator: Generator | None) -> Tensor:
    """Turn the image about its center, each pixel the nearest one of before."""
    angle = image.new_tensor([_draw_between(-ANGLE, ANGLE, generator)])
    grid = rotation_grid(angle, *image.shape[1:])
    return F.grid_sample(image[None], grid, mode="nearest", align_corners=False)[0]


def crop(image: Tensor, generator: Generator | None, ratio: tuple[float, float] = CROP_RATIO) -> Tensor:
    """Cut out most of the image and bring it back to size, bilinearly."""
    height, width = image.shape[1:]
    found = _draw_rectangle(height, width, CROP_AREA, (1 / ratio[1], 1 / ratio[0]), generator)
    top, left, rows, columns = found or _central_rectangle(height, width, ratio)
    part = image[None, :, top : top + rows, left : left + columns]
    return F.interpolate(part, (height, width), mode="bilinear", antialias=True, align_corners=False)[0]


def gray(image: Tensor, generator: Generator | None) -> Tensor:
    """Turn the image gray, or not."""
    return _gray(image).expand_as(image) if happens(GRAY, generator) else image


def flip(image: Tensor, generator: Generator | None) -> Tensor:
    """Mirror the image, or not."""
    return image.flip(2) if happens(FLIP, generator) else image


def erase(image: Tensor, generator: Generator | None) -> Tensor:
    """Blacken a rectangle, or not."""
    if not happens(ERASE, generator):
        return image
    height, width = image.shape[1:]
    found = _draw_rectangle(height, width, ERASED_AREA, ERASED_RATIO, generator)
    if found is None:
        return image
    top, left, rows, columns = found
    erased = image.clone()
    erased[:, top : top + rows, left : left + columns] = 0
    return erased


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    operation.__name__: operation for operation in (jitter, rotate, crop, gray, flip, erase)
}
"""Operations of the pool by name."""


def _draw_rectangle(
    height: int, width: int, area: tuple[float, float], ratio: tuple[float, float], generator: Generator | None
) -> tuple[int, int, int, int] | None:
    """Draw top, left, rows and columns of a rectangle inside the image; `ratio` is height by width."""
    for _ in range(MAX_TRIES):
        pixels = height * width * _draw_between(*area, generator)
        shape = math.exp(_draw_between(math.log(ratio[0]), math.log(ratio[1]), generator))
        rows, columns = round(math.sqrt(pixels * shape)), round(math.sqrt(pixels / shape))
        if 0 < rows <= height and 0 < columns <= width:
            top, left = (int(torch.randint(n + 1, (), generator=generator)) for n in (height - rows, width - columns))
            return top, left, rows, columns
    return None


def _central_rectangle(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """Return the largest rectangle in the middle of the image whose width by height is within bounds."""
    rows, columns = min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def _brighten(image: Tensor, factor: float) -> Tensor:
    return (factor * image).clamp(0, MAX_PIXEL)


def _change_contrast(image: Tensor, factor: float) -> Tensor:
    return (factor * image + (1 - factor) * _gray(image).mean()).clamp(0, MAX_PIXEL)


def _saturate(image: Tensor, factor: float) -> Tensor:
    return (factor * image + (1 - factor) * _gray(image)).clamp(0, MAX_PIXEL)


def _gray(image: Tensor) -> Tensor:
    """Return the brightness of every pixel: (3, H, W) -> (1, H, W)."""
    return (image.new_tensor(LUMA)[:, None, None] * image).sum(0, keepdim=True)


def _draw_between(low: float, high: float, generator: Generator | None) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))
