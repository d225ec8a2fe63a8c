"""Supervised contrast of images and texts, as CLIP-ReID (AAAI 2023) learns its prompts by.

Shapes: B images, T texts, features of width D.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_within
from agreid_plugin.losses.gathering import gather_features, gather_labels
from agreid_plugin.losses.validation import require_labels, to_full_precision


class SupConLoss(nn.Module):
    """Brings each image to all texts of its person, and each text to all its images.

    -(mean over images of the mean of log p(text | image) over the person's texts) - the same of texts and images

    p is the softmax of the dot products, whose features keep their lengths, over all texts or all images. Features
    without a partner take no part; without any pair the loss is a zero that keeps the graph. Computed in float32 inside
    autocast too.

    Args:
        weight: factor of the whole loss.
        temperature: what dot products are divided by.
        gather: compare the images and texts of all processes rather than each process's own; see `VIAL`.
    """

    def __init__(self, weight: float = 1.0, temperature: float = 1.0, gather: bool = True):
        super().__init__()
        self.weight = require_within("weight", weight, 0, math.inf)
        self.temperature = require_within("temperature", temperature, torch.finfo(torch.float32).tiny, math.inf)
        self.gather = gather

    def forward(self, images: Tensor, texts: Tensor, pids: Tensor, text_pids: Tensor | None = None) -> Tensor:
        """Return the loss of a batch: (B, D), (T, D), (B,), (T,) -> (). Texts are of `pids` by default."""
        text_pids = pids if text_pids is None else text_pids
        _require_features(images, texts, pids, text_pids)
        with torch.autocast(images.device.type, enabled=False):
            images, texts = to_full_precision(images), to_full_precision(texts)
            if self.gather:
                images, texts = gather_features(images), gather_features(texts)
                (pids,), (text_pids,) = gather_labels(pids), gather_labels(text_pids)
            logits = images @ texts.T / self.temperature  # (B, T)
            same = pids[:, None] == text_pids  # (B, T)
            return self.weight * (_toward_partners(logits, same) + _toward_partners(logits.T, same.T))

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return f"weight={self.weight}, temperature={self.temperature}, gather={self.gather}"


def _toward_partners(logits: Tensor, same: Tensor) -> Tensor:
    """Return -log p averaged over each row's partners, then over the rows that have any: (B, T), (B, T) -> ()."""
    logs = logits.log_softmax(dim=1)
    partners = same.sum(dim=1)  # (B,)
    rows = logs.where(same, 0).sum(dim=1) / partners.clamp(min=1)  # (B,)
    return -rows.sum() / partners.count_nonzero().clamp(min=1)


def _require_features(images: Tensor, texts: Tensor, pids: Tensor, text_pids: Tensor) -> None:
    if images.dim() != 2:
        raise InputError(f"images={tuple(images.shape)} should have two dimensions, images and width")
    if texts.dim() != 2 or texts.shape[1] != images.shape[1]:
        raise InputError(f"texts={tuple(texts.shape)} should be texts by {images.shape[1]}, the images' width")
    require_labels(images, pids=pids)
    if text_pids.shape != texts.shape[:1]:
        raise InputError(f"text_pids={tuple(text_pids.shape)} should have one value a text: {len(texts)}")
