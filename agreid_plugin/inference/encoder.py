"""A trained model as what makes features of images and sentences, whatever the host that it is from.

Shapes: B images, N sentences, L tokens, D width.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from agreid_plugin.errors import InputError
from agreid_plugin.host import host_of, load_host
from agreid_plugin.inference.weights import CLASSIFIERS, PREDICTOR, require_predictor, sha256
from agreid_plugin.nn.clip import Tokenizer
from agreid_plugin.types import UNKNOWN, Batch, ReIDMethod, known_or
from agreid_plugin.version import __version__

LABELS = ("views", "platforms")


@dataclass(frozen=True)
class Settings:
    """How a model is run on test images.

    Attributes:
        name: what messages call the model.
        maker: tells its features from those of other weights, models and sizes of images.
        transform: from a picture to its pixels, (3, H, W) from 0 to 255.
        device: where it is.
        batch_size: images that go through it together.
        flip: whether the feature of an image is the mean of its own and its mirror image's.
        view_key: the key of the configuration that says where views come from.
    """

    name: str
    maker: str
    transform: Callable[[Image.Image], Tensor]
    device: torch.device
    batch_size: int
    flip: bool = False
    view_key: str = "MODEL.VIEW"


class Encoder(ABC):
    """A model with its weights, that embeds test images as an evaluation does.

    Args:
        settings: how it is run.
        method: the method that the model is, or has in it; None for an architecture of the host's own.
        left_out: names of the model's tensors that the weight file has nothing for.
    """

    def __init__(self, settings: Settings, method: ReIDMethod | None, left_out: Sequence[str] = ()):
        self.settings, self.method = settings, method
        untold = [name for name in left_out if PREDICTOR in name]
        self._check_complete([name for name in left_out if name not in untold and not name.endswith(CLASSIFIERS)])
        self.predicts_views = method is not None and method.predicts_views and not untold
        require_predictor(method, untold, settings.view_key)

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

    @torch.no_grad()
    def embed_images(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the features of images, (B, D), and their views, (B,): given, told by the model, or `UNKNOWN`.

        Args:
            batch: images from 0 to 255, (B, 3, H, W), with views and platforms, `UNKNOWN` where nobody knows.
        """
        batch = self._filled(batch.to(self.settings.device))
        features, told = self.features(batch)
        views = batch.views if told is None else known_or(batch.views, told)
        return features.float().cpu(), views.cpu()

    @torch.no_grad()
    def embed_texts(self, tokens: Tensor) -> Tensor:
        """Return the features of sentences: (N, L) -> (N, D)."""
        parts = tokens.split(self.settings.batch_size)
        return torch.cat([self._infer(Batch(tokens=part.to(self.settings.device)))[0].float().cpu() for part in parts])

    def features(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return features, and the views that the model tells, of sentences or of images with all that it needs.

        Nothing is moved, checked or converted: what is traced for an export is this.
        """
        features, told = self._infer(batch)
        if batch.images is not None and self.settings.flip:
            mirrored, _ = self._infer(batch.with_(images=batch.images.flip(dims=[3])))
            features = (features + mirrored) / 2
        return features, told

    def labeled(self, batch: Batch, names: Iterable[str]) -> Batch:
        """Return a batch in which these labels, where they are unknown, are those that the model tells."""
        found = self.method.fill_views(self._normalized(batch))
        return batch.with_(**{name: getattr(found, name) for name in names})

    @abstractmethod
    def _infer(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return features, and the views that the model tells, of images or of sentences alone."""

    @abstractmethod
    def _normalized(self, batch: Batch) -> Batch:
        """Return images as the method takes them."""

    def _filled(self, batch: Batch) -> Batch:
        """Return a batch in which the model knows, or tells itself, all labels that it needs."""
        lacking = [name for name in sorted(self.needs, reverse=True) if bool((getattr(batch, name) == UNKNOWN).any())]
        if not lacking:
            return batch
        if not self.predicts_views:
            raise InputError(
                f"{self.settings.name} needs the {lacking[0][:-1]} of every image, and its weights have no view "
                "predictor that could tell it: give views, aerial or ground"
            )
        return self.labeled(batch, lacking)

    def _check_complete(self, missing: Sequence[str]) -> None:
        if missing:
            raise InputError(
                f"the weights have nothing for {len(missing)} of the model's tensors ({missing[0]}, ...): they were "
                "made for another configuration"
            )


def load_encoder(
    config: str | Path, weights: str | Path | None = None, overrides: Sequence[str] = (), device: str | None = None
) -> Encoder:
    """Build the model of a configuration, of fast-reid or of mmengine as its ending tells, with its weights.

    Args:
        config: the configuration file.
        weights: a checkpoint of either host; None takes the one that the configuration names.
        overrides: `KEY VALUE ...` on top of the configuration.
        device: `cpu`, `cuda`, `cuda:1`; None takes the configuration's, or the CPU where that is not there.

    Raises:
        InputError: something of it is missing or does not fit; see its line.
    """
    _check_device(device)
    host = load_host(host_of(config), "inference")
    return host.load(config, weights, list(overrides), device)


def load_untrained(encoder: Encoder, config: str | Path, overrides: Sequence[str] = (), seed: int = 0) -> Encoder:
    """Return a model as it is before training, drawn from a seed, that is run as another of the same configuration.

    Files that training would start from are not read: it knows nothing.
    """
    host = load_host(host_of(config), "inference")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = host.build(config, list(overrides))
    settings = replace(encoder.settings, maker=f"untrained {seed} {encoder.settings.maker}")
    return type(encoder)(model.to(settings.device), settings, ())


def maker_of(settings: Any, weights: str | Path) -> str:
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
