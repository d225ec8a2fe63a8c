"""Captions for fast-reid: choice of those to learn from, tokens, and batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from fastreid.data import samplers
from fastreid.data.datasets.bases import ImageDataset
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from fastreid.utils import comm
from torch.utils.data import BatchSampler

from agreid_plugin.data.captions import CaptionAugmentation, CaptionReader, clean, list_captions, split_captions
from agreid_plugin.engine import caption_report
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.hosts.fastreid.config.loading import Key, declare, key_error_context
from agreid_plugin.hosts.fastreid.data.batches import DeviceLoader
from agreid_plugin.hosts.fastreid.data.datasets import RecordDataset, RecordItem
from agreid_plugin.nn.clip import Tokenizer
from agreid_plugin.types import Record

_logger = logging.getLogger("fastreid.data")

CAPTIONS = ("all", "one")
CAPTION_NUMBERS = "captions"
"""Key of a batch of sentences: their numbers among all captions of the test set."""
KEYS = (
    Key("INPUT.CAPTIONS", "all", "Each caption of an image once an epoch, or one of them, drawn anew: all | one."),
    Key("INPUT.TEXT.BACK_TRANSLATION", 0.0, "How likely a training caption is replaced by its `captions_bt`."),
    Key("INPUT.TEXT.WORD_DELETION", 0.0, "How likely each word of a training caption is left out."),
)
declare(KEYS)


def reads_captions(cfg) -> bool:
    """Return whether the model of a configuration reads sentences."""
    return "tokens" in getattr(META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE), "inference_inputs", ())


def check_text(cfg) -> None:
    """Check the keys of captions."""
    if cfg.INPUT.CAPTIONS not in CAPTIONS:
        raise unknown("INPUT.CAPTIONS", cfg.INPUT.CAPTIONS, CAPTIONS)
    _build_augmentation(cfg)


def select_items(cfg, items: Sequence[tuple]) -> list[tuple]:
    """Return the items of an epoch: all training images, or those with captions if the model reads captions.

    With `INPUT.CAPTIONS: all` the latter have an item for each pair of an image and one of its captions.

    Raises:
        InputError: the model reads captions, but no image has any.
    """
    if not reads_captions(cfg):
        return list(items)
    captioned = [item for item in items if _has_captions(item)]
    if not captioned:
        raise InputError(
            f"{cfg.MODEL.META_ARCHITECTURE} learns from captions, but {', '.join(cfg.DATASETS.NAMES)} has none: train "
            "on a text set, TAG-PEDES for example"
        )
    if cfg.INPUT.CAPTIONS == "one":
        return captioned
    return [RecordItem(*item, record) for item in captioned for record in split_captions([item.record])]


def _has_captions(item: tuple) -> bool:
    return isinstance(item, RecordItem) and bool(item.record.captions)


def select_captions(
    cfg, items: Sequence[tuple], datasets: Sequence[ImageDataset]
) -> tuple[list[tuple], CaptionReader | None]:
    """Return the items to learn from and the reader of their captions; no reader for a model without captions."""
    learned = select_items(cfg, items)
    if not reads_captions(cfg):
        return learned, None
    silent = sum(not _has_captions(item) for item in items)
    if silent:
        _logger.info("%d of %d training images have no caption and are left out", silent, len(items))
    reader = CaptionReader(
        Tokenizer(cfg.MODEL.CLIP.TEXT_LENGTH), _build_augmentation(cfg), _load_translations(cfg, datasets)
    )
    log_long_captions(cfg, [item.record for item in learned], "training")
    return learned, reader


def log_long_captions(cfg, records: Sequence[Record], which: str) -> None:
    """Log how many captions of these records are too long, if any are."""
    if comm.is_main_process():
        caption_report.log_long_captions(Tokenizer(cfg.MODEL.CLIP.TEXT_LENGTH), records, which, _logger)


class ImagesThenCaptions:
    """Test loader that shows the images of the records and then their captions.

    Every process reads its share of both. A batch of captions has tokens and, under `CAPTION_NUMBERS`, the place of
    each caption when all records' are put in a row.

    Args:
        cfg: the configuration.
        images: the loader of the images.
        records: the records in the order of their captions.
    """

    def __init__(self, cfg, images: DeviceLoader, records: Sequence[Record]):
        self.images, self.dataset = images, images.dataset
        self._captions = list_captions(records)
        self._tokenize = Tokenizer(cfg.MODEL.CLIP.TEXT_LENGTH)
        per_process = max(cfg.TEST.IMS_PER_BATCH // comm.get_world_size(), 1)
        share = samplers.InferenceSampler(len(self._captions))
        self._batches = list(BatchSampler(share, per_process, drop_last=False))

    def __len__(self) -> int:
        return len(self.images) + len(self._batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self.images
        for numbers in self._batches:
            tokens = torch.stack([self._tokenize(clean(self._captions[number])) for number in numbers])
            none = torch.empty(0, 3, 1, 1)  # flip testing mirrors the images of every batch
            batch = {"tokens": tokens.to(self.images.device), "images": none.to(self.images.device)}
            yield batch | {CAPTION_NUMBERS: numbers}


def _build_augmentation(cfg) -> CaptionAugmentation:
    with key_error_context("INPUT.TEXT"):
        return CaptionAugmentation(cfg.INPUT.TEXT.BACK_TRANSLATION, cfg.INPUT.TEXT.WORD_DELETION)


def _load_translations(cfg, datasets: Sequence[ImageDataset]) -> caption_report.Translations:
    if not cfg.INPUT.TEXT.BACK_TRANSLATION:
        return {}
    ours = [dataset.records for dataset in datasets if isinstance(dataset, RecordDataset)]
    return caption_report.log_translations(ours, "INPUT.TEXT.BACK_TRANSLATION", _logger)
