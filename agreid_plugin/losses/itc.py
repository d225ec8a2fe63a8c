"""Image-text contrast of TAG-CLIP (AAAI 2026, Eqs. 1-2), as in TBPS-CLIP (AAAI 2024), N-ITC and R-ITC; and IRRA's SDM.

Shapes: B pairs of an image and a text, features of width D.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import require_within
from agreid_plugin.losses.gathering import gather_features, gather_labels
from agreid_plugin.losses.validation import require_pairs, to_full_precision

MOST_SCALE = 100.0  # of a cosine, as CLIP has it; a learned scale is held below it where it is used


class PairContrast(nn.Module):
    """Base of the two losses: scaled cosines of images and texts, and which of them are of one person.

    Features need not have length 1. Computed in float32 inside autocast too. An empty batch is a zero that keeps the
    graph.

    Args:
        weight: factor of the whole loss.
        temperature: what cosines are divided by where `forward` is given no scale, 0.01 or more. The default is where
            CLIP's own has come to rest, and TAG-CLIP's starts.
        gather: pair the images and texts of all processes rather than each process's own; see `VIAL`.
    """

    def __init__(self, weight: float = 1.0, temperature: float = 1 / MOST_SCALE, gather: bool = True):
        super().__init__()
        self.weight = require_within("weight", weight, 0, math.inf)
        self.temperature = require_within("temperature", temperature, 1 / MOST_SCALE, math.inf)
        self.gather = gather

    def compare(
        self, images: Tensor, texts: Tensor, pids: Tensor, scale: Tensor | float | None
    ) -> tuple[Tensor, Tensor]:
        """Return logits of texts by images and the shares of one person: (B, D), (B, D), (B,) -> (B, B), (B, B)."""
        images, texts = to_full_precision(images), to_full_precision(texts)
        if self.gather:
            images, texts, (pids,) = gather_features(images), gather_features(texts), gather_labels(pids)
        logits = self._scale(scale) * F.normalize(images, dim=1) @ F.normalize(texts, dim=1).T
        return logits, same_person(pids).to(logits.dtype)

    def _scale(self, scale: Tensor | float | None) -> Tensor | float:
        if isinstance(scale, Tensor):
            return to_full_precision(scale).clamp(max=MOST_SCALE)
        return min(1 / self.temperature if scale is None else scale, MOST_SCALE)

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return f"weight={self.weight}, temperature={self.temperature}, gather={self.gather}"


class NITC(PairContrast):
    """Brings each image to the texts of its person and each text to the images: N-ITC, with soft labels.

    1/2 (mean CE(target, softmax of an image's logits) + the same of a text's), with target =
    soft_label * softmax of the same logits, held fixed + (1 - soft_label) * Q, Q sharing 1 among those of one person

    Without soft labels and with everyone once it is CLIP's own loss.

    Args:
        weight: factor of the whole loss.
        soft_label: share of the target that the network gives itself. The released code has it grow from 0 to 0.5 over
            the first epoch: give `forward` the present one.
        temperature: what cosines are divided by where `forward` is given no scale, 0.01 or more.
        gather: pair the images and texts of all processes rather than each process's own; see `VIAL`.
    """

    def __init__(
        self,
        weight: float = 1.0,
        soft_label: float = 0.5,
        temperature: float = 1 / MOST_SCALE,
        gather: bool = True,
    ):
        super().__init__(weight, temperature, gather)
        self.soft_label = require_within("soft_label", soft_label, 0, 1)

    def forward(
        self,
        images: Tensor,
        texts: Tensor,
        pids: Tensor,
        scale: Tensor | float | None = None,
        soft_label: float | None = None,
    ) -> Tensor:
        """Return the loss of a batch of pairs: (B, D), (B, D), (B,) -> ().

        Args:
            images: features of the images.
            texts: features of their texts, in the same order.
            pids: the identities of the pairs.
            scale: what cosines are multiplied by, at most 100: the exponential of a learned parameter, for example.
            soft_label: instead of the one given at first.
        """
        require_pairs(images, texts, pids)
        share = self.soft_label if soft_label is None else require_within("soft_label", soft_label, 0, 1)
        with torch.autocast(images.device.type, enabled=False):
            logits, same = self.compare(images, texts, pids, scale)
            return self.weight * (_toward(logits, same, share) + _toward(logits.T, same, share)) / 2

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return f"soft_label={self.soft_label}, {super().extra_repr()}"


class RITC(PairContrast):
    """Takes each image away from the texts of others, and each text from their images: R-ITC.

    1/2 (mean KL(softmax of an image's logits || Q + smoothing) + the same of a text's): Q shares 1 among a person's

    Args:
        weight: factor of the whole loss.
        smoothing: what is added to every entry of Q, which would be 0 for other people; the sum is left above 1.
        temperature: what cosines are divided by where `forward` is given no scale, 0.01 or more.
        gather: pair the images and texts of all processes rather than each process's own; see `VIAL`.
    """

    def __init__(
        self, weight: float = 1.0, smoothing: float = 0.01, temperature: float = 1 / MOST_SCALE, gather: bool = True
    ):
        super().__init__(weight, temperature, gather)
        self.smoothing = require_within("smoothing", smoothing, torch.finfo(torch.float32).tiny, 1)

    def forward(self, images: Tensor, texts: Tensor, pids: Tensor, scale: Tensor | float | None = None) -> Tensor:
        """Return the loss of a batch of pairs: (B, D), (B, D), (B,) -> (); see `NITC.forward`."""
        require_pairs(images, texts, pids)
        with torch.autocast(images.device.type, enabled=False):
            logits, same = self.compare(images, texts, pids, scale)
            target = (same + self.smoothing).log()
            return self.weight * (_divergence(logits, target) + _divergence(logits.T, target)) / 2

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return f"smoothing={self.smoothing}, {super().extra_repr()}"


def same_person(pids: Tensor) -> Tensor:
    """Share 1 evenly among those of one person, row by row: (B,) -> (B, B)."""
    same = (pids[:, None] == pids).float()
    return same / same.sum(dim=1, keepdim=True)


def _toward(logits: Tensor, same: Tensor, soft_label: float) -> Tensor:
    """Return the mean cross-entropy of rows to their partly soft targets: (B, B), (B, B) -> ()."""
    target = soft_label * logits.detach().softmax(dim=1) + (1 - soft_label) * same
    return -(target * logits.log_softmax(dim=1)).sum() / max(len(logits), 1)


def _divergence(logits: Tensor, log_target: Tensor) -> Tensor:
    """Return the mean divergence of rows from their targets: (B, B), (B, B) -> ()."""
    logs = logits.log_softmax(dim=1)
    return (logs.exp() * (logs - log_target)).sum() / max(len(logits), 1)


class SDMLoss(RITC):
    """Has cosines of images and texts distributed as those of one person are: SDM.

    mean KL(softmax of an image's logits || Q + smoothing) + the same of a text's: Q shares 1 among a person's

    R-ITC is half of it with a softer target: there the two directions are averaged, and the smoothing is 0.01.

    Args:
        weight: factor of the whole loss.
        smoothing: what is added to every entry of Q, which would be 0 for other people.
        temperature: what cosines are divided by; IRRA does not learn it.
        gather: pair the images and texts of all processes rather than each process's own; see `VIAL`.
    """

    def __init__(self, weight: float = 1.0, smoothing: float = 1e-8, temperature: float = 0.02, gather: bool = True):
        super().__init__(weight, smoothing, temperature, gather)

    def forward(self, images: Tensor, texts: Tensor, pids: Tensor, scale: Tensor | float | None = None) -> Tensor:
        """Return the loss of a batch of pairs: (B, D), (B, D), (B,) -> (); see `NITC.forward`."""
        return 2 * super().forward(images, texts, pids, scale)
