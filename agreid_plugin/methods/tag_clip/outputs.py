"""What TAG-CLIP gives: features of images and of sentences, and how images were routed.

Shapes: B images or sentences; E width of a global feature, W of a local one; C identities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from agreid_plugin.methods.tag_clip.hrmoe import Routed
from agreid_plugin.nn.token_selection import SelectedTokens
from agreid_plugin.types import UNKNOWN


@dataclass(frozen=True)
class Features:
    """What images or sentences are compared by."""

    whole: Tensor  # (B, E) of CLS or EOT, any length
    selected: SelectedTokens | None = None  # of the tokens that matter most; None without TSE

    @property
    def embedding(self) -> Tensor:
        """One feature of length 1, (B, E+W), without TSE (B, E): the dot product of two is the similarity of Eq. 14."""
        if self.selected is None:
            return F.normalize(self.whole, dim=1)
        parts = [F.normalize(part, dim=1) for part in (self.whole, self.selected.features)]
        return math.sqrt(1 / 2) * torch.cat(parts, dim=1)


@dataclass(frozen=True)
class ImageFeatures(Features):
    """Those of images, and how they were routed, by block that has experts."""

    routed: tuple[Routed, ...] = ()


@dataclass(frozen=True)
class TextFeatures(Features):
    """Those of sentences."""


@dataclass(frozen=True)
class TAGCLIPOutputs:
    """What TAG-CLIP makes of a batch; without images or without tokens the parts of theirs are None."""

    images: ImageFeatures | None = None
    texts: TextFeatures | None = None
    image_logits: Tensor | None = None  # (B, C), in training with the identity loss alone
    text_logits: Tensor | None = None  # (B, C)

    def view_accuracy(self, views: Tensor) -> Tensor:
        """Return how often the image-level routers are right, over blocks and images of known view: (B,) -> ().

        It is NaN where no view is known, or nothing routes by view.
        """
        known, routed = views != UNKNOWN, () if self.images is None else self.images.routed
        blocks = [one.logits.argmax(dim=1) for one in routed if one.logits is not None]
        right = [(guess == views)[known].float() for guess in blocks]
        return torch.cat(right).mean() if right else views.new_full((), torch.nan, dtype=torch.float)
