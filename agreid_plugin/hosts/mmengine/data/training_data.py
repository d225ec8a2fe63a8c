"""What training images come with: which attributes are learned, and which captions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmengine.dist import is_main_process

from agreid_plugin.data.attributes import AttributeSchema
from agreid_plugin.data.captions import pairs
from agreid_plugin.data.datasets import Dataset
from agreid_plugin.data.learned_attributes import check_labels, of_datasets, require_described
from agreid_plugin.engine import caption_report
from agreid_plugin.engine.caption_report import Translations
from agreid_plugin.errors import InputError, said_of
from agreid_plugin.hosts.mmengine.data.transforms import Tokenize
from agreid_plugin.hosts.mmengine.models.build import schema_of
from agreid_plugin.types import Record

_logger = logging.getLogger(__name__)


def training_schema(
    asked: Sequence[Any] | Mapping[str, Any] | None,
    datasets: Sequence[Dataset],
    records: Mapping[str, Sequence[Record]],
    missing: bool,
) -> AttributeSchema | None:
    """Return the attributes to give with each training image, None if there are none to learn.

    Args:
        asked: names of the datasets' attributes, all without any; or what a model is told of them, see `schema_of`.
        datasets: what is trained on.
        records: their training images, by dataset.
        missing: learn although an attribute file lacks some training identities.
    """
    if asked is None:
        return None
    schema = _schema(asked, datasets)
    if schema is None:
        return None
    for dataset in () if missing else datasets:
        require_described(dataset, records[dataset.name], "missing_attributes=True")
    every = [record for found in records.values() for record in found]
    with said_of("attributes"):
        check_labels(schema, every, len(every), _logger)
    return schema


def _schema(asked: Sequence[Any] | Mapping[str, Any], datasets: Sequence[Dataset]) -> AttributeSchema | None:
    if isinstance(asked, Mapping) or any(not isinstance(each, str) for each in asked):
        return schema_of(asked)
    with said_of("attributes"):
        return of_datasets(datasets, asked)


def training_captions(
    tokenize: Tokenize, each: bool, datasets: Sequence[Dataset], records: Mapping[str, Sequence[Record]]
) -> tuple[dict[str, list[Record]], Translations]:
    """Return the records to learn from, by dataset, and the back-translations of their captions.

    Args:
        tokenize: reads the captions.
        each: a record for every caption, instead of one with all of an image's.
        datasets: what is trained on.
        records: their training images by the dataset's name.
    """
    told = {name: [record for record in found if record.captions] for name, found in records.items()}
    images, left = sum(map(len, records.values())), sum(map(len, told.values()))
    if not left:
        raise InputError(
            f"captions are to be learned from, but {', '.join(records)} has none: train on a text set, TAG-PEDES for "
            "example"
        )
    if left < images:
        _logger.info("%d of %d training images have no caption and are left out", images - left, images)
    tell_long(tokenize, (record for found in told.values() for record in found), "training")
    chosen = {name: list(pairs(found)) if each else found for name, found in told.items()}
    return chosen, _translations(tokenize, datasets)


def tell_long(tokenize: Tokenize, records: Iterable[Record], which: str) -> None:
    """Say in one line how many captions of these records are too long, if any are."""
    if is_main_process():
        caption_report.tell_long(tokenize.tokenizer, records, which, _logger)


def _translations(tokenize: Tokenize, datasets: Sequence[Dataset]) -> Translations:
    if not tokenize.augment.back_translation:
        return {}
    return caption_report.told_translations(datasets, "back_translation", _logger)
