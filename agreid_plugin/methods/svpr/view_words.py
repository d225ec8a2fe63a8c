"""Which word of the view sentence an image has: by its view, and by what carries the camera where that matters.

Shapes: B images.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from agreid_plugin.errors import InputError, require_known
from agreid_plugin.types import PLATFORMS, UNKNOWN, View

WORDS = {"cctv": "ground", "wearable": "ground", "uav": "aerial"}
"""The paper's two words."""


class ViewWords:
    """A word for each platform. Words are counted in the order cctv, wearable, uav, equal ones once.

    Attributes:
        distinct: the words; a word's place is its label.
        inputs: fields of a `Batch` that tell the word: the views, and the platforms if a worn camera has its own word.

    Example:
        >>> words = ViewWords()
        >>> words.distinct
        ('ground', 'aerial')
        >>> words.labels(views=torch.tensor([View.AERIAL, View.GROUND, UNKNOWN]))
        tensor([ 1,  0, -1])
    """

    def __init__(self, words: Mapping[str, str] = WORDS):
        for platform in words:
            require_known("platform in words", platform, PLATFORMS)
        for platform in WORDS:
            if not words.get(platform, "").strip():
                raise InputError(f"words has none for the platform {platform}: give one to each of {', '.join(WORDS)}")
        self.distinct = tuple(dict.fromkeys(words[platform] for platform in WORDS))
        if len(self.distinct) < 2:
            raise InputError(f"words has {self.distinct[0]!r} for every platform: views should differ in their words")
        self.by_platform = tuple(self.distinct.index(words[platform]) for platform in PLATFORMS)
        self.inputs = frozenset({"views"})
        if words["wearable"] != words["cctv"]:
            self.inputs |= {"platforms"}

    def labels(self, views: Tensor, platforms: Tensor | None = None) -> Tensor:
        """Return each image's word, `UNKNOWN` where nothing tells it: (B,), (B,) -> (B,).

        An aerial image has the word of a drone. A ground image has that of its platform where this counts.
        """
        table = torch.tensor([*self.by_platform, UNKNOWN], device=views.device)  # the last also answers to UNKNOWN
        ground = table[platforms] if "platforms" in self.inputs else table[PLATFORMS.index("cctv")]
        aerial = table[PLATFORMS.index("uav")]
        return ground.where(views == View.GROUND, aerial.where(views == View.AERIAL, UNKNOWN))

    def meant(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the view and the platform that words stand for, the first platform of several: (B,) -> (B,), (B,)."""
        platforms = self._platforms(labels.device)
        return self._views(labels.device)[labels], platforms[labels]

    def fitting(self, logits: Tensor, views: Tensor | None) -> Tensor:
        """Return the logits of words with those out that a known view does not have: (B, words), (B,) -> (B, words)."""
        if views is None:
            return logits
        other = (views[:, None] != UNKNOWN) & (self._views(logits.device) != views[:, None])
        return logits.masked_fill(other, -torch.inf)

    def _platforms(self, device: torch.device) -> Tensor:
        """Return the first platform of each word: (words,)."""
        return torch.tensor([self.by_platform.index(label) for label in range(len(self.distinct))], device=device)

    def _views(self, device: torch.device) -> Tensor:
        """Return the view of each word: (words,)."""
        aerial = self._platforms(device) == PLATFORMS.index("uav")
        return torch.where(aerial, int(View.AERIAL), int(View.GROUND))
