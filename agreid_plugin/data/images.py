"""Image reading: files, folders, PIL images, arrays and tensors as RGB, and validation of image files.

Shapes: B images, H rows, W columns.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import repeat, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError
from torch import Tensor
from tqdm import tqdm

from agreid_plugin.data.datasets.custom import parse_view
from agreid_plugin.data.files import list_images
from agreid_plugin.errors import InputError, first_line, printable, require_known
from agreid_plugin.types import UNKNOWN, platform_label, view_label

COLOR_ORDERS = ("RGB", "BGR")
"""Orders of the colors of an array or a tensor: red first, or blue first as in OpenCV."""


class ImageInputError(InputError):
    """An image that does not exist or cannot be read."""


def read_image(path: str | Path) -> Image.Image:
    """Read an image as RGB, rotated upright by its EXIF tag.

    Raises:
        ImageInputError: it does not exist or cannot be read.
    """
    try:
        with Image.open(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except FileNotFoundError:
        raise ImageInputError(f"image {printable(str(path))} does not exist") from None
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        why = f"cannot be read ({error}): replace or remove it"
        raise ImageInputError(f"image {printable(str(path))} {why}") from None


@dataclass(frozen=True)
class Picture:
    """An input image, by its file or its pixels, with its view if known.

    Attributes:
        path: the file; empty for pixels.
        pixels: a PIL image, or (H, W, 3) of uint8, red first; None for a file.
        view: a `View`, or `UNKNOWN`.
        platform: what carries the camera, as its place in `PLATFORMS`, or `UNKNOWN`.
    """

    path: str = ""
    pixels: Image.Image | np.ndarray | None = None
    view: int = UNKNOWN
    platform: int = UNKNOWN

    def read(self) -> Image.Image:
        """Return it as RGB, upright.

        Raises:
            InputError: it cannot be read.
        """
        if self.pixels is None:
            return read_image(self.path)
        if isinstance(self.pixels, np.ndarray):
            return Image.fromarray(np.ascontiguousarray(self.pixels))
        try:
            return ImageOps.exif_transpose(self.pixels).convert("RGB")
        except (OSError, SyntaxError, ValueError) as error:  # PIL reads the file behind an image when it is needed
            raise InputError(f"an image of PIL cannot be read: {first_line(error)}") from None


def iter_pictures(images: Any, views: Any = None, order: str = "RGB") -> Iterator[Picture]:
    """Yield a `Picture` for each of the images, in their order; those of a folder are sorted by path.

    Args:
        images: a file or a folder by its path, a PIL image, an array (H, W, 3) or (B, H, W, 3) of uint8, a tensor
            (3, H, W) or (B, 3, H, W) of uint8, or of floats from 0 to 1; or any number of these.
        views: one for all, or one for each: a `View`, its number, `aerial`, `ground`, `uav`, `cctv`, `wearable`; None
            where it is unknown.
        order: first color of arrays and tensors, see `COLOR_ORDERS`.
    """
    require_known("order", order, COLOR_ORDERS)
    found = _iter_pictures(images, order)
    if views is None:
        return found
    if isinstance(views, str | int):
        return map(_with_view, found, repeat(views))
    return _with_views(found, views)


def _with_views(found: Iterator[Picture], views: Iterable[Any]) -> Iterator[Picture]:
    nothing = object()
    views = views.tolist() if isinstance(views, np.ndarray | Tensor) else views
    for place, (picture, view) in enumerate(zip_longest(found, views, fillvalue=nothing)):
        if not isinstance(picture, Picture) or view is nothing:
            more, fewer = ("images", "views") if view is nothing else ("views", "images")
            raise InputError(f"there are more {more} than {fewer}, of which there are {place}: give one view an image")
        yield _with_view(picture, view)


def _with_view(picture: Picture, view: Any) -> Picture:
    """Return a picture with its view, and its platform if the view's word implies one."""
    if view is None:
        return picture
    if isinstance(view, str):
        return replace(picture, view=int(parse_view(view)), platform=platform_label(view))
    return replace(picture, view=view_label(view))


def _iter_pictures(images: Any, order: str) -> Iterator[Picture]:
    if isinstance(images, str | Path):
        yield from _iter_files(str(images))
    elif isinstance(images, Image.Image):
        yield Picture(pixels=images)
    elif isinstance(images, np.ndarray):
        yield from (Picture(pixels=pixels) for pixels in _as_array_batch(images, order))
    elif isinstance(images, Tensor):
        yield from (Picture(pixels=pixels) for pixels in _as_array_batch(_tensor_to_array(images), order))
    elif isinstance(images, Iterable) and not isinstance(images, bytes | dict):
        for image in images:
            yield from _iter_pictures(image, order)
    else:
        raise InputError(f"a {type(images).__name__} is no image: give a path, a PIL image, an array or a tensor")


def _iter_files(path: str) -> Iterator[Picture]:
    if not os.path.isdir(path):
        yield Picture(path)
        return
    found = list_images(Path(path))
    if not found:
        raise InputError(f"{path} has no images in it: name one of images")
    yield from (Picture(str(each)) for each in found)


def _as_array_batch(images: np.ndarray, order: str) -> np.ndarray:
    """Return images as (B, H, W, 3) of uint8, red first."""
    shaped = images.ndim in (3, 4) and images.shape[-1] == 3 and 0 not in images.shape[-3:]
    if not shaped or images.dtype != np.uint8:
        raise InputError(
            f"an array of {images.dtype} {images.shape} is no image: give (rows, columns, 3) of uint8, "
            "or several of them as (images, rows, columns, 3)"
        )
    images = images if images.ndim == 4 else images[None]
    return images[..., ::-1] if order == "BGR" else images


def _tensor_to_array(images: Tensor) -> np.ndarray:
    if images.ndim not in (3, 4) or images.shape[-3] != 3:
        raise InputError(f"a tensor of {tuple(images.shape)} is no image: give (3, rows, columns) or (B, 3, ...)")
    images = images.detach().cpu().movedim(-3, -1)
    if images.is_floating_point():
        if images.numel() and not (images.min() >= 0 and images.max() <= 1):  # also of NaN
            raise InputError(
                "a tensor of floats has values below 0 or above 1: give the image's own pixels from 0 to 1, "
                "not normalized, or uint8 from 0 to 255"
            )
        images = (images.float() * 255).round().to(torch.uint8)
    return images.numpy()


def find_broken_images(paths: Iterable[str], progress: bool = True) -> dict[str, str]:
    """Decode every image and return path -> what is wrong with it, for those that cannot be."""
    paths = sorted(set(paths))
    # Pillow decodes outside the interpreter's lock, so threads use all cores.
    with _strict_decoding(), ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = tqdm(pool.map(_find_fault, paths), total=len(paths), desc="decoding", unit="img", disable=not progress)
        return {path: fault for path, fault in zip(paths, faults, strict=True) if fault}


@contextmanager
def _strict_decoding() -> Iterator[None]:
    before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def _find_fault(path: str) -> str:
    if not os.path.isfile(path):  # a pipe would never end, a link may lead nowhere
        return "no file"
    try:
        if os.path.getsize(path) == 0:
            return "empty file, 0 bytes"
        with Image.open(path) as image:
            image.load()
    except Exception as error:  # Pillow's decoders raise whatever their format makes them
        return f"unreadable image ({' '.join(str(error).split())})"
    return ""
