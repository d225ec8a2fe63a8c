"""SVPR-ReID at test time: sentences computed for every image, once a batch, and once for all.

All have the same weights and inputs, and each a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from agreid_plugin.data.attributes import QUT_GROUPS, AttributeSchema
from agreid_plugin.errors import require_known
from agreid_plugin.evaluation.processes import in_process
from agreid_plugin.hosts.fastreid.operations import counting
from agreid_plugin.methods.svpr import SVPR, TextSide, ViewText, per_image
from agreid_plugin.nn.clip_build import build_clip
from agreid_plugin.types import Batch, View
from bench.measuring import CLIP_MODELS, Measurement, VariantSetting, measure, table

IDENTITIES, TEXT_LENGTH = 199, 100  # as on AG-ReID, whose 15 attributes the sentences tell


class PerImageText(nn.Module):
    """The text side as the released code runs it: every image's sentences in full length, with every batch."""

    def __init__(self, side: TextSide, batch: int):
        super().__init__()
        self.side, self.batch, self.schema = side, batch, side.schema

    def views(self, labels: Tensor, remember: bool = False) -> ViewText:  # noqa: ARG002
        """Return what the text says of views: (B,)."""
        return per_image(self.side, labels, None)[0]

    def attributes(self, labels: Tensor, remember: bool = False) -> Tensor:  # noqa: ARG002
        """Return what the text says of attributes, at test time one row for all images: (1, M) -> (B, E)."""
        return per_image(self.side, None, labels.expand(self.batch, -1))[1]


def bench_svpr(
    model: str = "base", variant: str = "paper", batch: int = 16, size: tuple[int, int] = (256, 128), repeats: int = 3
) -> Iterator[str]:
    """Measure and yield lines to print, the table last.

    Args:
        model: size of the towers by name.
        variant: `paper` or `released`.
        batch: images in a batch, two or more.
        size: rows and columns of an image.
        repeats: how often to run each; the fastest counts.
    """
    require_known("model", model, CLIP_MODELS)
    setting = VariantSetting(model, batch, size, repeats, torch.get_num_threads(), variant).checked()
    yield f"SVPR-ReID {model}, variant {variant}, {setting}"
    found = {}
    for way in WAYS:
        found[way] = in_process(_measure, setting, way)
        yield f"{way}: {found[way][0].seconds:.3f} s"
    yield _table(found)


def _measure(setting: VariantSetting, way: str) -> tuple[Measurement, float]:
    """Return a measurement, and GFLOPs for one image."""
    torch.set_num_threads(setting.threads)
    run = WAYS[way](setting)
    with torch.no_grad():
        run()  # fills the cache, if there is one
        with counting() as counter:
            run()
        return measure(run, setting.repeats), counter.get_total_flops() / setting.batch / 1e9


def _method(setting: VariantSetting) -> SVPR:
    torch.manual_seed(0)
    clip = build_clip("ViT-B-16", image_size=setting.size, text_length=TEXT_LENGTH, **CLIP_MODELS[setting.model])
    schema = AttributeSchema(QUT_GROUPS)
    method = SVPR(clip.image, clip.text, IDENTITIES, schema, variant=setting.variant)
    return method.requires_grad_(False).eval()


def _runs(setting: VariantSetting, method: SVPR) -> Callable[[], Tensor]:
    images = torch.randn(setting.batch, 3, *setting.size, generator=torch.Generator().manual_seed(1))
    batch = Batch(images=images, views=torch.arange(setting.batch) % len(View))
    return lambda: method.embed(method(batch))


def _every_image(setting: VariantSetting) -> Callable[[], Tensor]:
    method = _method(setting)
    method.backbone.text = PerImageText(method.backbone.text, setting.batch)
    return _runs(setting, method)


def _once_a_batch(setting: VariantSetting) -> Callable[[], Tensor]:
    method = _method(setting)
    method.cache_text = False
    return _runs(setting, method)


def _once(setting: VariantSetting) -> Callable[[], Tensor]:
    return _runs(setting, _method(setting))


WAYS = {"text for every image": _every_image, "text once a batch": _once_a_batch, "text cached": _once}


def _table(found: dict[str, tuple[Measurement, float]]) -> str:
    first = next(iter(found.values()))[0]
    rows = [
        [
            way,
            f"{entry.seconds:.3f}",
            f"{first.seconds / entry.seconds:.2f}x",
            f"{entry.cpu:.3f}",
            f"{first.cpu / entry.cpu:.2f}x",
            f"{operations:.3g}",
            f"{entry.difference(first):.1e}",
        ]
        for way, (entry, operations) in found.items()
    ]
    head = ["", "s", "", "CPU s", "", "GFLOPs an image", "largest difference"]
    return f"{table(rows, head)}\ndifference: of the features to the first row's"
