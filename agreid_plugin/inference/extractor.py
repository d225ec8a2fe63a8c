"""Features of images and sentences in Python, from a configuration and weights of either host.

Shapes: B images, N images or sentences, L tokens, D width.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from agreid_plugin.data.bad_images import SKIP_HINT, describe_images, name_first
from agreid_plugin.data.captions import clean
from agreid_plugin.data.images import Picture, iter_pictures
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.validation import as_features
from agreid_plugin.host import find_host, load_host
from agreid_plugin.inference.weights import CLASSIFIERS, PREDICTOR, require_predictor, sha256
from agreid_plugin.nn.clip import Tokenizer
from agreid_plugin.retrieval.index.entries import unit_vectors
from agreid_plugin.types import UNKNOWN, Batch, ReIDMethod, View, known_or, view_from_label
from agreid_plugin.version import __version__

LABELS = ("views", "platforms")
READERS = 4  # threads that read images at most: PIL lets others work meanwhile
AHEAD = 2  # batches that are read before they are needed
IN_MEMORY = "an image in memory"  # what stands for the path of one that has none
WIDE = 1.25  # columns a row above which an image is taken for a frame of a camera; crops of people are rarely as wide
LIKE_FRAMES = "much wider than tall, like a camera's frame"
CUT_OUT = "an image counts as one person: cut people out of frames first, with a detector for example"


@dataclass(frozen=True)
class Settings:
    """How a model is run on test images.

    Attributes:
        name: what messages call the model.
        fingerprint: tells its features from those of other weights, models and sizes of images.
        transform: from a picture to its pixels, (3, H, W) from 0 to 255.
        device: where it is.
        batch_size: images that go through it together.
        flip: whether the feature of an image is the mean of its own and its mirror image's.
        view_key: the key of the configuration that says where views come from.
    """

    name: str
    fingerprint: str
    transform: Callable[[Image.Image], Tensor]
    device: torch.device
    batch_size: int
    flip: bool = False
    view_key: str = "MODEL.VIEW"


class ExtractionModel(ABC):
    """A host's model with its weights; each host derives its own.

    Args:
        network: the model as a module.
        settings: how it is run.
        method: the method that the model is, or has in it; None for an architecture of the host's own.
        left_out: names of the model's tensors that the weight file has nothing for.
    """

    def __init__(self, network: nn.Module, settings: Settings, method: ReIDMethod | None, left_out: Sequence[str] = ()):
        self.network, self.settings, self.method = network.to(settings.device).eval(), settings, method
        without_predictor = [name for name in left_out if PREDICTOR in name]
        _require_complete(
            [name for name in left_out if name not in without_predictor and not name.endswith(CLASSIFIERS)]
        )
        self.predicts_views = method is not None and method.predicts_views and not without_predictor
        require_predictor(method, without_predictor, settings.view_key)

    @property
    def needs(self) -> frozenset[str]:
        """What of views and platforms the method has to be given with test images."""
        return frozenset() if self.method is None else self.method.inference_inputs.intersection(LABELS)

    @property
    def tokenizer(self) -> Tokenizer:
        """What makes tokens of sentences."""
        if self.method is None or "tokens" not in self.method.inference_inputs:
            raise InputError(f"{self.settings.name} reads no sentences; TAGCLIP does")
        return Tokenizer(self.method.text.length)

    def embed(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return features, and predicted views, of sentences or of images with all that the model needs.

        Nothing is moved, checked or converted: what is traced for an export is this.
        """
        features, views = self.infer(batch)
        if batch.images is not None and self.settings.flip:
            mirrored, _ = self.infer(batch.with_(images=batch.images.flip(dims=[3])))
            features = (features + mirrored) / 2
        return features, views

    def predict_labels(self, batch: Batch, names: Iterable[str]) -> Batch:
        """Return a batch in which these labels, where they are unknown, are predicted ones."""
        found = self.method.fill_views(self.normalize(batch))
        return batch.with_(**{name: getattr(found, name) for name in names})

    @abstractmethod
    def infer(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return features, and predicted views, of images or of sentences."""

    @abstractmethod
    def normalize(self, batch: Batch) -> Batch:
        """Return images as the method takes them."""


def _require_complete(missing: Sequence[str]) -> None:
    if missing:
        raise InputError(
            f"the weights have nothing for {len(missing)} of the model's tensors ({missing[0]}, ...): they were "
            "made for another configuration"
        )


@dataclass(frozen=True)
class ExtractedBatch:
    """Some images, in their order, and their features.

    Attributes:
        features: (N, D).
        paths: N files, empty for images that are in none.
        views: N views: given, predicted by the model where it can, or None.
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
    images (ViSA, SVPR-ReID with `MODEL.VIEW given`), unknown ones are predicted by its own view predictor.

    Args:
        model: the model with its weights.
        batch_size: images that go through it together; the configuration's without a number.
        normalize: scale features to length 1, whose dot products are cosines; False leaves them as the model has them.
    """

    def __init__(self, model: ExtractionModel, batch_size: int | None = None, normalize: bool = True):
        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch_size={batch_size} should be 1 or more")
        self.model, self.normalize = model, normalize
        self.batch_size = batch_size or model.settings.batch_size

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
        _check_device(device)
        host = load_host(find_host(config), "inference")
        return cls(host.load_model(config, weights, list(overrides), device), batch_size, normalize)

    def make_untrained(self, config: str | Path, overrides: Sequence[str] = (), seed: int = 0) -> Extractor:
        """Return an extractor whose model is as before training, drawn from a seed, and run as this one's.

        Files that training would start from are not read: it knows nothing.
        """
        host = load_host(find_host(config), "inference")
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            network = host.build_network(config, list(overrides))
        settings = replace(self.settings, fingerprint=f"untrained {seed} {self.fingerprint}")
        return Extractor(type(self.model)(network, settings))

    @property
    def settings(self) -> Settings:
        """How the model is run."""
        return self.model.settings

    @property
    def fingerprint(self) -> str:
        """What tells features of this model and its weights from others; it is the same in every process."""
        return self.settings.fingerprint

    def __call__(self, images: Any, views: Any = None, *, order: str = "RGB") -> np.ndarray:
        """Return one feature an image, (N, D) of float32; N is 1 for a single image.

        Args:
            images: a path of a file or a folder, a PIL image, an array (H, W, 3) or (B, H, W, 3) of uint8, a tensor
                (3, H, W) or (B, 3, H, W) of uint8, or of floats from 0 to 1; or any number of these.
            views: one for all or one for each: `aerial`, `ground`, a `View` or its number; None where it is not known.
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
    ) -> Iterator[ExtractedBatch]:
        """Give the features of any number of images batch by batch, with their paths and views, in bounded memory.

        Args:
            images: as of a call; an iterator is read as it is needed.
            views: as of a call.
            order: as of a call.
            skip_bad_images: leave out images that cannot be read, and name them in `bad`, instead of refusing them.
        """
        return self.extract_pictures(iter_pictures(images, views, order), skip_bad_images)

    def extract_pictures(self, found: Iterable[Picture], skip_bad_images: bool = False) -> Iterator[ExtractedBatch]:
        """Give the features of pictures; see `stream`."""
        found, waiting, start = iter(found), deque(), 0
        with ThreadPoolExecutor(min(READERS, os.cpu_count() or 1)) as pool:
            try:
                while True:
                    while len(waiting) < AHEAD and (part := list(islice(found, self.batch_size))):
                        waiting.append((part, [pool.submit(self._pixels, picture) for picture in part]))
                    if not waiting:
                        return
                    yield self._extract_batch(start, *waiting.popleft(), skip_bad_images)
                    start += self.batch_size
            finally:
                pool.shutdown(cancel_futures=True)

    def texts(self, sentences: str | Sequence[str]) -> np.ndarray:
        """Return one feature a sentence, (N, D) of float32, to be compared with those of images (TAG-CLIP, TBPS-CLIP).

        Raises:
            InputError: the model reads no sentences, or one has no words.
        """
        tokenize = self.model.tokenizer
        sentences = [sentences] if isinstance(sentences, str) else list(sentences)
        if not sentences:
            raise InputError("there is no sentence to make a feature of")
        tokens = torch.stack([tokenize(clean_sentence(sentence)) for sentence in sentences])
        return self._finish(self._embed_texts(tokens), None)

    @torch.no_grad()
    def embed_images(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the features of images, (B, D), and their views, (B,): given, predicted, or `UNKNOWN`.

        Args:
            batch: images from 0 to 255, (B, 3, H, W), with views and platforms, `UNKNOWN` where they are not known.
        """
        batch = self._fill_labels(batch.to(self.settings.device))
        features, predicted = self.model.embed(batch)
        views = batch.views if predicted is None else known_or(batch.views, predicted)
        return features.float().cpu(), views.cpu()

    @torch.no_grad()
    def _embed_texts(self, tokens: Tensor) -> Tensor:
        """Return the features of sentences: (N, L) -> (N, D)."""
        parts = tokens.to(self.settings.device).split(self.settings.batch_size)
        return torch.cat([self.model.infer(Batch(tokens=part))[0].float().cpu() for part in parts])

    def _fill_labels(self, batch: Batch) -> Batch:
        """Return a batch in which the model knows, or predicts itself, all labels that it needs."""
        needs = sorted(self.model.needs, reverse=True)
        lacking = [name for name in needs if bool((getattr(batch, name) == UNKNOWN).any())]
        if not lacking:
            return batch
        if not self.model.predicts_views:
            raise InputError(
                f"{self.settings.name} needs the {lacking[0][:-1]} of every image, and its weights have no view "
                "predictor that could tell it: give views, aerial or ground"
            )
        return self.model.predict_labels(batch, lacking)

    def _pixels(self, picture: Picture) -> tuple[Tensor, bool]:
        """Return an image as the model takes it, and whether it looks like a frame."""
        image = picture.read()
        return self.settings.transform(image), image.width >= WIDE * image.height

    def _extract_batch(
        self, start: int, part: Sequence[Picture], read: Sequence[Future], skip_bad_images: bool
    ) -> ExtractedBatch:
        pixels = [_result(each) for each in read]
        kept = [place for place, each in enumerate(pixels) if each is not None]
        bad = tuple(part[place].path or IN_MEMORY for place, each in enumerate(pixels) if each is None)
        if bad and not skip_bad_images:
            raise InputError(f"{describe_images(bad)}: replace or remove, or {SKIP_HINT}")
        if not kept:
            return ExtractedBatch(np.empty((0, 0), np.float32), (), (), (), bad)
        good = [part[place] for place in kept]
        features, views = self.embed_images(make_batch(good, [pixels[place][0] for place in kept]))
        paths = tuple(picture.path for picture in good)
        frames = tuple(part[place].path or IN_MEMORY for place in kept if pixels[place][1])
        seen = tuple(map(view_from_label, views.tolist()))
        places = tuple(start + place for place in kept)
        return ExtractedBatch(self._finish(features, paths), paths, seen, places, bad, frames)

    def _finish(self, features: Tensor, paths: Sequence[str] | None) -> np.ndarray:
        """Return features as they are given out, none of them without a direction or a number."""
        if self.normalize:
            return unit_vectors(features, "image" if paths else "text", paths)
        return as_features(features, "image" if paths else "text", paths).numpy()


def clean_sentence(sentence: str) -> str:
    """Return a sentence as models learn to read them."""
    words = clean(sentence)
    if not any(letter.isalnum() for letter in words):
        raise InputError(f"the sentence {sentence!r} has no words: describe a person")
    return words


def format_frames(paths: Sequence[str], images: int) -> str:
    """Say which of so many images look like a camera's frames, and what to do."""
    return f"{LIKE_FRAMES}: {len(paths):,} of {images:,} images, {name_first(paths)}; {CUT_OUT}"


def make_batch(part: Sequence[Picture], pixels: Sequence[Tensor]) -> Batch:
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


def compute_fingerprint(settings: Any, weights: str | Path) -> str:
    """Return what tells features made by these settings and this weight file from others."""
    return sha256(weights, json.dumps([__version__, settings], sort_keys=True, default=str).encode())


def _check_device(device: str | None) -> None:
    if device is None:
        return
    try:
        kind = torch.device(device)
    except RuntimeError:
        raise InputError(f"device {device!r} unknown: write cpu, cuda or cuda:1") from None
    if kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {device} is not there: this machine has {torch.cuda.device_count()} GPUs")
