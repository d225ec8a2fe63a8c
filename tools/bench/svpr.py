"""SVPR-ReID at test time with its text cached, against sentences computed for every image or once a batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from agreid_plugin.data.attributes import QUT_GROUPS, AttributeSchema
from agreid_plugin.methods.svpr import SVPR, SentenceEncoder, ViewText, encode_per_image
from agreid_plugin.nn.clip_build import build_clip
from agreid_plugin.types import Batch, View
from bench.rivals import CLIP_MODELS, Setting, Ways, compare, share

IDENTITIES, TEXT_LENGTH = 199, 100  # as on AG-ReID, whose 15 attributes are in the sentences
RIVAL = "our own model with the text computed for every image, as the released code does it, and once a batch"


class PerImageText(nn.Module):
    """The text side with every image's sentences in full length, computed with every batch."""

    def __init__(self, side: SentenceEncoder, batch: int):
        super().__init__()
        self.side, self.batch, self.schema = side, batch, side.schema

    def views(self, labels: Tensor, use_cache: bool = False) -> ViewText:  # noqa: ARG002
        """Return prompts and keys of views: (B,)."""
        return encode_per_image(self.side, labels, None)[0]

    def attributes(self, labels: Tensor, use_cache: bool = False) -> Tensor:  # noqa: ARG002
        """Return features of attributes, at test time one row for all images: (1, M) -> (B, E)."""
        return encode_per_image(self.side, None, labels.expand(self.batch, -1))[1]


def bench_svpr(setting: Setting, rounds: int) -> Iterator[str]:
    """Measure and yield lines to print, the table last."""
    return compare({"features": _features}, setting, rounds, RIVAL, images=setting.batch)


def _features(setting: Setting) -> Ways:
    torch.manual_seed(0)
    clip = build_clip("ViT-B-16", image_size=setting.size, text_length=TEXT_LENGTH, **CLIP_MODELS[setting.model])
    cached = SVPR(clip.image, clip.text, IDENTITIES, schema=AttributeSchema(QUT_GROUPS)).requires_grad_(False).eval()
    batchwise, every = share(cached), share(cached)
    batchwise.cache_text = False
    every.backbone.text = PerImageText(every.backbone.text, setting.batch)
    images = torch.randn(setting.batch, 3, *setting.size, generator=torch.Generator().manual_seed(1))
    batch = Batch(images=images, views=torch.arange(setting.batch) % len(View))

    @torch.no_grad()
    def embed(method: SVPR) -> Tensor:
        return method.embed(method(batch))

    embed(cached)  # fills the cache
    ways = {"text cached": cached, "text once a batch": batchwise, "text for every image": every}
    return {way: partial(embed, method) for way, method in ways.items()}
