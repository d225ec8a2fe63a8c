"""Types that all rooms share: views, records, batches, outputs of heads, and the contract of a method.

Shapes: B images, M attributes, L caption tokens, D width, C identities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_known

UNKNOWN = -1
"""Label of an unknown view, platform, camera or attribute, in records and in batches."""


PLATFORMS = ("uav", "cctv", "wearable")
"""Carriers of a camera; a batch has the index in this list."""


VIEW_SOURCES = ("given", "predicted")
"""Sources of the view of a test image, for methods that need it.

A `view_head` supervises a method's view token in training; a `view_predictor` guesses the view of a test image.
"""


class View(IntEnum):
    """View of a person, from the air or from the ground. A wearable camera is ground; its record's `platform` says so.

    Example:
        >>> View.AERIAL, View["GROUND"]
        (<View.AERIAL: 0>, <View.GROUND: 1>)
        >>> torch.tensor([View.GROUND, View.AERIAL, UNKNOWN])  # as a batch has them
        tensor([ 1,  0, -1])
        >>> View.GROUND.word
        'ground'
    """

    AERIAL = 0
    GROUND = 1

    @property
    def word(self) -> str:
        """Name in files and messages: `aerial` or `ground`."""
        return self.name.lower()


def view_word(view: View | None) -> str:
    """Return a view's word, empty for an unknown view."""
    return "" if view is None else view.word


def view_label(view: View | str | int | None) -> int:
    """Return the label of a view or of its word, as in batches: its number, `UNKNOWN` for None.

    Example:
        >>> view_label(View.GROUND), view_label("aerial"), view_label(None)
        (1, 0, -1)
    """
    if view is None or isinstance(view, View):  # first: loaders ask for every image
        return UNKNOWN if view is None else int(view)
    if isinstance(view, str):
        return int(View[require_known("view", view.lower(), [each.word for each in View]).upper()])
    if view not in (UNKNOWN, *View):
        raise InputError(f"view {view!r} should be 0 (aerial), 1 (ground), {UNKNOWN} (unknown), or a word")
    return int(view)


def view_from_label(label: int) -> View | None:
    """Return the view of a label, None for `UNKNOWN`.

    Example:
        >>> view_from_label(view_label(View.GROUND)), view_from_label(view_label(None))
        (<View.GROUND: 1>, None)
    """
    return None if label == UNKNOWN else View(label)


@dataclass(frozen=True)
class Record:
    """One image of one person, as a dataset's parser reads it.

    Attributes:
        path: the image file.
        pid: the identity, unique within its dataset.
        camera: the camera's number in the dataset, `UNKNOWN` without one.
        view: aerial or ground, None if unknown.
        platform: carrier of the camera, one of `PLATFORMS`, another word of the user, or empty.
        split: `train`, `val`, `query`, `gallery`; text sets have `test` instead of the last two.
        attributes: name -> value, for example `{"hair": "long"}`; unknown ones are left out.
        captions: sentences describing the person.
        tags: further values that a protocol may filter by: time of day, scene, altitude.
    """

    path: str
    pid: int
    camera: int = UNKNOWN
    view: View | None = None
    platform: str = ""
    split: str = "train"
    attributes: Mapping[str, str] = field(default_factory=dict)
    captions: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)


def platform_label(platform: str) -> int:
    """Return a platform's index in `PLATFORMS`, `UNKNOWN` for any other word; case does not matter."""
    return PLATFORMS.index(platform.lower()) if platform.lower() in PLATFORMS else UNKNOWN


@dataclass(frozen=True)
class Batch:
    """Images with their labels: a field without values is None, a label that an image lacks is `UNKNOWN`.

    Views may also be a list of words or members of `View`, one for each image, with None for unknown ones.

    Example:
        >>> batch = Batch(images=torch.zeros(2, 3, 256, 128), pids=torch.tensor([7, 9]))
        >>> len(batch), list(batch.present())
        (2, ['images', 'pids'])
        >>> Batch(views=["aerial", View.GROUND, None]).views
        tensor([ 0,  1, -1])
    """

    images: Tensor | None = None  # (B, 3, H, W)
    pids: Tensor | None = None  # (B,)
    views: Tensor | None = None  # (B,) View or UNKNOWN
    platforms: Tensor | None = None  # (B,) index in PLATFORMS or UNKNOWN
    cameras: Tensor | None = None  # (B,)
    attributes: Tensor | None = None  # (B, M) value index or UNKNOWN
    tokens: Tensor | None = None  # (B, L)
    paths: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        views: Any = self.views
        if views is not None and not isinstance(views, Tensor):
            object.__setattr__(self, "views", _view_labels(views).to(getattr(self.images, "device", "cpu")))

    def __len__(self) -> int:
        for value in self.present().values():
            return len(value)
        return 0

    def present(self) -> dict[str, Tensor | tuple[str, ...]]:
        """Return the fields that are not None."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def only(self, names: frozenset[str] | set[str]) -> Batch:
        """Return a batch with only the named fields, so that a model cannot see the others.

        Example:
            >>> batch = Batch(images=torch.zeros(2, 3, 256, 128), pids=torch.tensor([7, 9]))
            >>> list(batch.only({"images", "views"}).present())
            ['images']
        """
        return replace(self, **dict.fromkeys(self.present().keys() - names))

    def with_(self, **values: Any) -> Batch:
        """Return a copy with some fields replaced.

        Example:
            >>> batch = Batch(pids=torch.tensor([7, 9]))
            >>> batch.with_(views=torch.tensor([View.AERIAL, UNKNOWN])).views
            tensor([ 0, -1])
        """
        return replace(self, **values)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Return a copy with every tensor on `device`."""
        moved = {
            name: value.to(device, non_blocking=non_blocking)
            for name, value in self.present().items()
            if isinstance(value, Tensor)
        }
        return self.with_(**moved)


def _view_labels(views: Iterable[View | str | int | None]) -> Tensor:
    """Return the labels of views: (B,)."""
    if isinstance(views, str | int):
        raise InputError(f"views={views!r} should be a list: one view for each image")
    return torch.tensor([view_label(view) for view in views])


@dataclass(frozen=True)
class HeadOutputs:
    """Outputs of a head, from one feature for each image."""

    features: Tensor  # (B, D) that distances are learned on
    embedding: Tensor  # (B, D) that images are compared by
    logits: Tensor | None = None  # (B, C) of the classes


@dataclass(frozen=True)
class AttributeGuess:
    """A predicted attribute of an image, with the confidence from 0 to 1."""

    name: str
    value: str
    confidence: float


class ReIDMethod(nn.Module, ABC):
    """A method of re-identification, independent of the toolbox that trains it.

    `forward` turns a batch into named tensors, from which `losses` are computed and, by `embed`, features to compare.

    Attributes:
        training_inputs: the fields of a `Batch` that it learns from, without `UNKNOWN` labels.
        inference_inputs: the fields of a `Batch` the method may see at test time. Evaluators pass
            `batch.only(method.inference_inputs)`, so that no label leaks into a test feature.
        view_source: source of the view of a test image, `given` or `predicted`; empty if it needs none.
    """

    training_inputs: frozenset[str] = frozenset({"images", "pids"})
    inference_inputs: frozenset[str] = frozenset({"images"})
    view_source: str = ""

    @abstractmethod
    def forward(self, batch: Batch) -> Any:
        """Return the outputs, a dataclass of named tensors."""

    @abstractmethod
    def losses(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the weighted terms to minimize; every name starts with `loss_`."""

    @abstractmethod
    def embed(self, outputs: Any) -> Tensor:
        """Return the features to compare images by: (B, D)."""

    @property
    def predicts_views(self) -> bool:
        """Whether it learns to predict the views of images."""
        return False

    def predicted_views(self, outputs: Any) -> Tensor | None:  # noqa: ARG002 - of those that predict
        """Return the views predicted for test images, (B,); None where they were given, or are not predicted."""
        return None

    def fill_views(self, batch: Batch) -> Batch:
        """Return a batch in which predicted views stand for unknown ones, if the method needs views."""
        return batch


def known_or(labels: Tensor | None, others: Tensor) -> Tensor:
    """Return labels with `others` in the place of `UNKNOWN`, or of all if there are none: (B,), (B,) -> (B,)."""
    return others if labels is None else labels.where(labels != UNKNOWN, others.to(labels))
