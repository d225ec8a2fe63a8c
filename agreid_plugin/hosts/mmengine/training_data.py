"""What training images come with: which attributes are learned, and which captions."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmengine.dist import is_main_process

from agreid_plugin.data.attributes import AttributeSchema, choose, expanded
from agreid_plugin.data.captions import back_translations, captions_of, clean, pairs
from agreid_plugin.data.datasets import Dataset
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.arguments import said_of
from agreid_plugin.hosts.mmengine.building import schema_of
from agreid_plugin.hosts.mmengine.transforms import Tokenize
from agreid_plugin.types import UNKNOWN, Record

_logger = logging.getLogger(__name__)

Translations = dict[tuple[str, str], str]


def training_schema(
    asked: Sequence[Any] | Mapping[str, Any] | None, datasets: Sequence[Dataset], missing: bool
) -> AttributeSchema | None:
    """Return the attributes to give with each training image, None if there are none to learn.

    Args:
        asked: names of the datasets' attributes, all without any; or what a model is told of them, see `schema_of`.
        datasets: what is trained on.
        missing: learn although an attribute file lacks some training identities.
    """
    if asked is None:
        return None
    of_model = isinstance(asked, Mapping) or any(not isinstance(each, str) for each in asked)
    schema = schema_of(asked) if of_model else _of_datasets(asked, datasets)
    if schema is None:
        return None
    if not missing:
        for dataset in datasets:
            _check_described(dataset)
    _count_known(schema, [record for dataset in datasets for record in dataset.split("train")])
    return schema


def _of_datasets(names: Sequence[str], datasets: Sequence[Dataset]) -> AttributeSchema | None:
    groups: dict[str, tuple[str, ...]] = {}
    unlike = set()
    for dataset in datasets:
        for name, values in dataset.schema.groups.items():
            if groups.setdefault(name, values) != values:
                unlike.add(name)
    if not groups:
        if names:
            raise InputError(
                f"attributes asks for {', '.join(expanded(names, ()))}, but "
                f"{', '.join(dataset.name for dataset in datasets)} has no attributes: is its attribute file there?"
            )
        return None
    with said_of("attributes"):
        schema = choose(AttributeSchema(groups), names)
    for name in unlike.intersection(schema.names):
        raise InputError(f"the training sets give the attribute {name!r} different values; train on one of them")
    return schema


def _check_described(dataset: Dataset) -> None:
    missing = sorted({record.pid for record in dataset.split("train")}.intersection(dataset.undescribed))
    if missing:
        raise InputError(
            f"{dataset.attribute_file} lacks {len(missing)} training identities of {dataset.name}, for example "
            f"{missing[0]}: complete it, or set missing_attributes=True to learn from the others"
        )


def _count_known(schema: AttributeSchema, records: Sequence[Record]) -> None:
    """Refuse values that the schema does not have, and tell how many labels there are to learn from."""
    known: Counter[str] = Counter()
    for record in records:
        with said_of(f"attributes lacks what {record.path} has"):
            labels = schema.encode(record)
        known.update(name for name, label in zip(schema.names, labels, strict=True) if label != UNKNOWN)
    share = 100 * sum(known.values()) / max(len(schema) * len(records), 1)
    _logger.info("%d attributes, known of %.1f %% of the training images", len(schema), share)
    never = [name for name in schema.names if not known[name]]
    if never:
        _logger.warning("no training image tells %s: nothing is learned of it", ", ".join(never))


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
    return chosen, _translations(datasets) if tokenize.augment.back_translation else {}


def tell_long(tokenize: Tokenize, records: Iterable[Record], which: str) -> None:
    """Say in one line how many captions of these records are too long, if any are."""
    if not is_main_process():
        return
    tokenizer, captions = tokenize.tokenizer, captions_of(records)
    long = sum(tokenizer.is_long(clean(caption)) for caption in captions)
    if long:
        _logger.info("%d of %d %s captions have more than %d tokens: cut", long, len(captions), which, tokenizer.length)


def _translations(datasets: Sequence[Dataset]) -> Translations:
    found = {pair: text for dataset in datasets for pair, text in back_translations(dataset).items()}
    if found:
        _logger.info("%d training captions have a back-translation", len(found))
    else:
        _logger.warning("no training caption has a back-translation: back_translation changes nothing")
    return found
