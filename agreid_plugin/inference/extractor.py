"""Features of images and sentences in Python, from a configuration and weights of either host.

Shapes: N images or sentences, D width.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from agreid_plugin.data.bad_images import SKIP, listed, name_some
from agreid_plugin.data.captions import clean
from agreid_plugin.data.pictures import Picture, pictures
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.validation import as_features
from agreid_plugin.inference.encoder import Encoder, load_encoder
from agreid_plugin.retrieval.index.entries import unit_vectors
from agreid_plugin.types import Batch, View, view_of

READERS = 4  # threads that read images at most: PIL lets others work meanwhile
AHEAD = 2  # batches that are read before they are needed
IN_MEMORY = "an image in memory"  # what stands for the path of one that has none
WIDE = 1.25  # columns a row above which an image is taken for a frame of a camera; crops of people are rarely as wide
LIKE_FRAMES = "much wider than tall, like a camera's frame"
CUT_OUT = "an image counts as one person: cut people out of frames first, with a detector for example"


@dataclass(frozen=True)
class Extracted:
    """Some images, in their order, and their features.

    Attributes:
        features: (N, D).
        paths: N files, empty for images that are in none.
        views: N views: given, told by the model where it can, or None.
        kept: their places among all images of the stream.
        bad: files that could not be read.
        frames: those of `paths` that look like a camera's whole frame: they are much wider than tall.
    """

    features: np.ndarray
    paths: tuple[str, ...]
    views: tuple[View | None, ...]
    kept: tuple[int, ...]
    bad: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()


class Extractor:
    """Makes features of images as `fastreid eval` does, and of sentences where the model reads them.

    It may be called from several threads, and changes nothing that it is given. Where a method needs the views of
    images (ViSA, SVPR-ReID with `MODEL.VIEW given`), those that nobody gives are told by its own view predictor.

    Args:
        encoder: the model.
        batch_size: images that go through it together; the configuration's without a number.
        normalize: scale features to length 1, whose dot products are cosines; False leaves them as the model has them.
    """

    def __init__(self, encoder: Encoder, batch_size: int | None = None, normalize: bool = True):
        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch_size={batch_size} should be 1 or more")
        self.encoder, self.normalize = encoder, normalize
        self.batch_size = batch_size or encoder.settings.batch_size

    @classmethod
    def from_config(
        cls,
        config: str | Path,
        weights: str | Path | None = None,
        *,
        device: str | None = None,
        batch_size: int | None = None,
        normalize: bool = True,
        overrides: Sequence[str] = (),
    ) -> Extractor:
        """Build the model of a configuration with its weights.

        Args:
            config: a configuration file, `.yml` of fast-reid or `.py` of mmengine; a run's folder has one, too.
            weights: a checkpoint of either host; None takes the one that the configuration names.
            device: `cpu`, `cuda`, `cuda:1`; None takes the configuration's, or the CPU where that is not there.
            batch_size: images that go through the model together; None takes the configuration's.
            normalize: whether features have length 1.
            overrides: `KEY VALUE ...` on top of the configuration, as of the command.

        Raises:
            InputError: something of it is missing or does not fit; see its line.
        """
        return cls(load_encoder(config, weights, overrides, device), batch_size, normalize)

    @property
    def maker(self) -> str:
        """What tells features of this model and its weights from others; it is the same in every process."""
        return self.encoder.settings.maker

    def __call__(self, images: Any, views: Any = None, *, order: str = "RGB") -> np.ndarray:
        """Return one feature an image, (N, D) of float32; N is 1 for a single image.

        Args:
            images: a path of a file or a folder, a PIL image, an array (H, W, 3) or (B, H, W, 3) of uint8, a tensor
                (3, H, W) or (B, 3, H, W) of uint8, or of floats from 0 to 1; or any number of these.
            views: one for all or one for each: `aerial`, `ground`, a `View` or its number; None where nobody knows.
            order: of the colors of arrays and tensors: `RGB`, or `BGR` as `cv2.imread` gives them.

        Raises:
            InputError: there is no image, or one cannot be read.
        """
        found = [part.features for part in self.stream(images, views, order=order)]
        if not found:
            raise InputError("there is no image to make a feature of")
        return np.concatenate(found)

    def stream(
        self, images: Any, views: Any = None, *, order: str = "RGB", skip_bad_images: bool = False
    ) -> Iterator[Extracted]:
        """Give the features of any number of images batch by batch, with their paths and views, in bounded memory.

        Args:
            images: as of a call; an iterator is read as it is needed.
            views: as of a call.
            order: as of a call.
            skip_bad_images: leave out images that cannot be read, and name them in `bad`, instead of refusing them.
        """
        return self.of_pictures(pictures(images, views, order), skip_bad_images)

    def of_pictures(self, found: Iterable[Picture], skip_bad_images: bool = False) -> Iterator[Extracted]:
        """Give the features of pictures; see `stream`."""
        found, waiting, start = iter(found), deque(), 0
        with ThreadPoolExecutor(min(READERS, os.cpu_count() or 1)) as pool:
            try:
                while True:
                    while len(waiting) < AHEAD and (part := list(islice(found, self.batch_size))):
                        waiting.append((part, [pool.submit(self._pixels, picture) for picture in part]))
                    if not waiting:
                        return
                    yield self._extracted(start, *waiting.popleft(), skip_bad_images)
                    start += self.batch_size
            finally:
                pool.shutdown(cancel_futures=True)

    def texts(self, sentences: str | Sequence[str]) -> np.ndarray:
        """Return one feature a sentence, (N, D) of float32, to be compared with those of images (TAG-CLIP, TBPS-CLIP).

        Raises:
            InputError: the model reads no sentences, or one has no words.
        """
        tokenize = self.encoder.tokenizer
        sentences = [sentences] if isinstance(sentences, str) else list(sentences)
        if not sentences:
            raise InputError("there is no sentence to make a feature of")
        tokens = torch.stack([tokenize(cleaned(sentence)) for sentence in sentences])
        return self._finished(self.encoder.embed_texts(tokens), None)

    def _pixels(self, picture: Picture) -> tuple[Tensor, bool]:
        """Return an image as the model takes it, and whether it looks like a frame."""
        image = picture.read()
        return self.encoder.settings.transform(image), image.width >= WIDE * image.height

    def _extracted(
        self, start: int, part: Sequence[Picture], read: Sequence[Future], skip_bad_images: bool
    ) -> Extracted:
        pixels = [_result(each) for each in read]
        kept = [place for place, each in enumerate(pixels) if each is not None]
        bad = tuple(part[place].path or IN_MEMORY for place, each in enumerate(pixels) if each is None)
        if bad and not skip_bad_images:
            raise InputError(f"{listed(bad)}: replace or remove, or {SKIP}")
        if not kept:
            return Extracted(np.empty((0, 0), np.float32), (), (), (), bad)
        good = [part[place] for place in kept]
        features, views = self.encoder.embed_images(batch_of(good, [pixels[place][0] for place in kept]))
        paths = tuple(picture.path for picture in good)
        frames = tuple(part[place].path or IN_MEMORY for place in kept if pixels[place][1])
        told = tuple(map(view_of, views.tolist()))
        places = tuple(start + place for place in kept)
        return Extracted(self._finished(features, paths), paths, told, places, bad, frames)

    def _finished(self, features: Tensor, paths: Sequence[str] | None) -> np.ndarray:
        """Return features as they are given out, none of them without a direction or a number."""
        if self.normalize:
            return unit_vectors(features, "image" if paths else "text", paths)
        return as_features(features, "image" if paths else "text", paths).numpy()


def cleaned(sentence: str) -> str:
    """Return a sentence as models learn to read them."""
    words = clean(sentence)
    if not any(letter.isalnum() for letter in words):
        raise InputError(f"the sentence {sentence!r} has no words: describe a person")
    return words


def format_frames(paths: Sequence[str], images: int) -> str:
    """Say which of so many images look like a camera's frames, and what to do."""
    return f"{LIKE_FRAMES}: {len(paths):,} of {images:,} images, {name_some(paths)}; {CUT_OUT}"


def batch_of(part: Sequence[Picture], pixels: Sequence[Tensor]) -> Batch:
    """Return a batch of pictures, whose pixels are (3, H, W) each, with what is known of them."""
    return Batch(
        images=torch.stack(list(pixels)),
        views=torch.tensor([picture.view for picture in part]),
        platforms=torch.tensor([picture.platform for picture in part]),
    )


def _result(read: Future) -> tuple[Tensor, bool] | None:
    try:
        return read.result()
    except (InputError, Image.DecompressionBombError):
        return None
