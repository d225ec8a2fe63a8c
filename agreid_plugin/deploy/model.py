"""Exported model: features of images and sentences from a file of `fastreid export`.

Shapes: N images or sentences, H rows, W columns, L tokens, D width.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from agreid_plugin.deploy.metadata import INTERPOLATIONS, ModelMetadata
from agreid_plugin.deploy.runtimes import open_session
from agreid_plugin.errors import InputError, first_line, require_known, unknown

UNKNOWN = -1  # as in `agreid_plugin.types`, which needs torch
ORDERS = ("RGB", "BGR")


class ExportedModel:
    """A file of `fastreid export`; it may be called from several threads.

    Args:
        path: `.onnx`, `.xml` of OpenVINO or `.torchscript`.
        batch_size: images of one call of the runtime.
        threads: that the runtime may use; 0 leaves that to it.

    Attributes:
        metadata: the description inside the file.
    """

    def __init__(self, path: str | Path, batch_size: int = 64, threads: int = 0):
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size} should be 1 or more")
        session = open_session(path, threads)
        self.metadata: ModelMetadata = session.metadata
        self._run, self._batch_size = session.run, batch_size

    def __call__(self, images: Any, views: Any = None, *, order: str = "RGB") -> np.ndarray:
        """Return one feature an image: (N, D) of float32; none for no image.

        Args:
            images: a path, a PIL image, an array (rows, columns, 3) of uint8, or any number of these.
            views: one for all or one for each: `aerial`, `ground`, `uav`, `cctv`, `wearable`, or a number; None for an
                unknown view, if the file can do without.
            order: of the colors of arrays: `RGB`, or `BGR` as `cv2.imread` gives them.
        """
        if self.metadata.tower != "image":
            raise InputError(f"this file has the {self.metadata.tower} tower, which takes no images: give it tokens")
        require_known("order", order, ORDERS)
        given: Sequence[Any] = [images] if _is_one(images) else list(images)
        labels = self._labels(views, len(given))
        parts = range(0, len(given), self._batch_size)
        return self._join(self._part(given[at : at + self._batch_size], labels, at, order) for at in parts)

    def embed_tokens(self, tokens: np.ndarray) -> np.ndarray:
        """Return one feature a sentence: CLIP's tokens, (N, L) with zeros behind their end -> (N, D)."""
        length, tokens = self.metadata.text_length, np.asarray(tokens, dtype=np.int64)
        if self.metadata.tower != "text" or tokens.ndim != 2 or tokens.shape[1] != length:
            wanted = f"(sentences, {length})" if length else "images: this file has the image tower"
            raise InputError(f"tokens={tokens.shape} should be {wanted}")
        parts = range(0, len(tokens), self._batch_size)
        return self._join(self._run({"tokens": tokens[at : at + self._batch_size]}) for at in parts)

    def pixels(self, image: Any, order: str = "RGB") -> np.ndarray:
        """Return an image as the graph takes it: (3, H, W) of uint8."""
        rows, columns = self.metadata.size
        picture = _picture(image, order)
        return resize(picture, (rows, columns), self.metadata.interpolation)

    def _part(self, images: Sequence[Any], labels: dict[str, np.ndarray], start: int, order: str) -> np.ndarray:
        stop = start + len(images)
        labels_here = {name: values[start:stop] for name, values in labels.items()}
        return self._run({"images": np.stack([self.pixels(image, order) for image in images]), **labels_here})

    def _join(self, parts: Iterable[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.empty((0, self.metadata.width), np.float32), *parts])

    def _labels(self, views: Any, count: int) -> dict[str, np.ndarray]:
        """Return what the graph takes of views and platforms, by the names of its inputs."""
        if "views" not in self.metadata.inputs:
            return {}
        each = [views] * count if views is None or isinstance(views, str | int) else list(views)
        if len(each) != count:
            raise InputError(f"there are {len(each)} views for {count} images: give one for each, or one for all")
        pairs = np.array([self._label(view) for view in each], dtype=np.int64).reshape(count, 2)
        if not self.metadata.unknown_views and (pairs[:, : len(self.metadata.inputs) - 1] == UNKNOWN).any():
            raise InputError(
                f"{self.metadata.method} needs {' and '.join(self.metadata.inputs[1:])} of every image, and this file "
                f"has no view predictor: give views, one of {', '.join(self.metadata.labels)}"
            )
        columns = dict(zip(("views", "platforms"), pairs.T, strict=True))
        return {name: np.ascontiguousarray(columns[name]) for name in self.metadata.inputs[1:]}

    def _label(self, view: Any) -> tuple[int, int]:
        if view is None:
            return UNKNOWN, UNKNOWN
        if isinstance(view, str):
            if view.lower() not in self.metadata.labels:
                raise unknown("view", view, self.metadata.labels)
            return self.metadata.labels[view.lower()]
        if view not in (UNKNOWN, 0, 1):
            raise InputError(f"view {view!r} should be 0 (aerial), 1 (ground), {UNKNOWN} (unknown), or a word")
        return int(view), UNKNOWN


def resize(picture: Image.Image, size: tuple[int, int], interpolation: str) -> np.ndarray:
    """Bring a picture to a size: its pixels, (3, H, W) of uint8."""
    how = Image.Resampling(INTERPOLATIONS.index(interpolation))
    return np.ascontiguousarray(np.asarray(picture.resize(size[::-1], how)).transpose(2, 0, 1))


def _is_one(images: Any) -> bool:
    return isinstance(images, str | os.PathLike | Image.Image) or (isinstance(images, np.ndarray) and images.ndim == 3)


def _picture(image: Any, order: str) -> Image.Image:
    """Return an image as RGB, upright."""
    if isinstance(image, np.ndarray):
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
            raise InputError(f"an array {image.shape} of {image.dtype} is no image: give (rows, columns, 3) of uint8")
        return Image.fromarray(np.ascontiguousarray(image[..., ::-1] if order == "BGR" else image))
    try:
        with Image.open(image) if isinstance(image, str | os.PathLike) else image.copy() as opened:
            return ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, SyntaxError, ValueError, AttributeError, Image.DecompressionBombError) as error:
        name = image if isinstance(image, str | os.PathLike) else type(image).__name__
        raise InputError(f"{name} cannot be read as an image: {first_line(error)}") from None
