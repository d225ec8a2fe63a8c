"""Which attributes a model learns, and their values: from the training sets, or from the configuration of a run.

A run keeps them in its configuration, so that its weights can be evaluated where the training sets are not.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from fastreid.data.datasets.bases import ImageDataset

from agreid_plugin.data.attributes import AttributeSchema, choose, expanded
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config import Key, changed, declare, said_of
from agreid_plugin.hosts.fastreid.datasets import RecordDataset, dataset_root, load_dataset, options_of, source_of
from agreid_plugin.hosts.fastreid.methods import method_of
from agreid_plugin.types import UNKNOWN

KEYS = (
    Key(
        "DATASETS.ATTRIBUTES",
        [],
        "Attributes to learn, in this order; `appearance` stands for the 12 of CP2108; empty: all of the dataset's.",
    ),
    Key(
        "DATASETS.ATTRIBUTE_LEVEL",
        "identity",
        "CP2108: attributes of the identity, as released, or of the image's own view and time: identity | image.",
    ),
    Key("DATASETS.MISSING_ATTRIBUTES", False, "Learn although the attribute file lacks some training identities."),
    Key(
        "MODEL.SVPR.ATTRIBUTES",
        [],
        "SVPR-ReID: rows [name, [value, ...]]; empty: those of the training sets; [none]: no attributes.",
    ),
)
declare(KEYS)
NONE = ["none"]
"""What a configuration says of a model without attributes."""

_logger = logging.getLogger("fastreid.data")


def schema_of(cfg) -> AttributeSchema | None:
    """Return the attributes that the model of a configuration learns, None without any.

    They are `MODEL.SVPR.ATTRIBUTES`; if it is empty, those of the training sets that `DATASETS.ATTRIBUTES` names.
    """
    if cfg.MODEL.SVPR.ATTRIBUTES:
        return _written(cfg)
    ours = [name for name in cfg.DATASETS.NAMES if source_of(name)]
    return _of_datasets(cfg, [load_dataset(name, dataset_root(cfg), [], **options_of(cfg, name)) for name in ours])


def with_attributes(cfg):
    """Return the configuration with what its model learns of attributes, if it learns any, written into it."""
    return with_schema(cfg) if method_of(cfg).learns_attributes(cfg) else cfg


def with_schema(cfg):
    """Return the configuration with the attributes of `schema_of` in `MODEL.SVPR.ATTRIBUTES`."""
    schema = schema_of(cfg)
    rows = NONE if schema is None else [[name, list(values)] for name, values in schema.groups.items()]
    return changed(cfg, "MODEL.SVPR.ATTRIBUTES", list(rows))


def training_schema(cfg, datasets: Sequence[ImageDataset]) -> AttributeSchema | None:
    """Return the attributes to give with each training image.

    Once a model's attributes are written down, see `with_schema`, it learns from them: then training images must
    not have other values, and the attribute file must know every training identity.
    """
    if not cfg.MODEL.SVPR.ATTRIBUTES:
        return _of_datasets(cfg, datasets)
    schema = _written(cfg)
    ours = [dataset for dataset in datasets if isinstance(dataset, RecordDataset)]
    if schema is not None:
        if not cfg.DATASETS.MISSING_ATTRIBUTES:
            for dataset in ours:
                _check_described(dataset)
        _count_known(schema, ours, sum(len(dataset.train) for dataset in datasets))
    return schema


def _written(cfg) -> AttributeSchema | None:
    rows, key = cfg.MODEL.SVPR.ATTRIBUTES, "MODEL.SVPR.ATTRIBUTES"
    if list(rows) == NONE:
        return None
    groups = dict(_row(key, row) for row in rows)
    if len(groups) < len(rows):
        raise InputError(f"{key} names an attribute twice")
    asked = expanded(cfg.DATASETS.ATTRIBUTES, groups)
    if asked and asked != tuple(groups):
        raise InputError(
            f"DATASETS.ATTRIBUTES asks for {', '.join(asked)}, but {key} of this run has {', '.join(groups)}: empty one"
        )
    return AttributeSchema(groups)


def _row(key: str, row: Any) -> tuple[str, tuple[str, ...]]:
    match row:
        case [str(name), [_, *_] as values]:
            wrong = [value for value in values if not isinstance(value, str)]
            if wrong:  # YAML reads No and 3 as other things than text
                raise InputError(f"{key}: value {wrong[0]!r} of {name!r} is no text; put it in quotes")
            if len(set(values)) < len(values):
                raise InputError(f"{key}: {name!r} has a value twice")
            return name, tuple(values)
    raise InputError(f"{key} takes rows [name, [value, ...]], got {row!r}")


def _of_datasets(cfg, datasets: Iterable[ImageDataset]) -> AttributeSchema | None:
    groups: dict[str, tuple[str, ...]] = {}
    unlike = set()
    for dataset in datasets:
        for name, values in dataset.records.schema.groups.items() if isinstance(dataset, RecordDataset) else ():
            if groups.setdefault(name, values) != values:
                unlike.add(name)
    asked = expanded(cfg.DATASETS.ATTRIBUTES, groups)
    if asked and not groups:
        raise InputError(
            f"DATASETS.ATTRIBUTES asks for {', '.join(asked)}, but {', '.join(cfg.DATASETS.NAMES)} has no attributes: "
            "is its attribute file there?"
        )
    with said_of("DATASETS.ATTRIBUTES"):
        schema = choose(AttributeSchema(groups), cfg.DATASETS.ATTRIBUTES)
    for name in unlike.intersection(schema.names):
        raise InputError(f"the training sets give the attribute {name!r} different values; train on one of them")
    return schema if groups else None


def _check_described(dataset: RecordDataset) -> None:
    undescribed = set(dataset.records.undescribed)
    missing = sorted({item.record.pid for item in dataset.train} & undescribed)
    if missing:
        raise InputError(
            f"{dataset.records.attribute_file} lacks {len(missing)} training identities of {dataset.records.name}, for "
            f"example {missing[0]}: complete it, or set DATASETS.MISSING_ATTRIBUTES True to learn from the others"
        )


def _count_known(schema: AttributeSchema, datasets: Iterable[RecordDataset], images: int) -> None:
    """Refuse values that the schema does not have, and tell how many labels there are to learn from."""
    known: Counter[str] = Counter()
    for record in (item.record for dataset in datasets for item in dataset.train):
        with said_of(f"MODEL.SVPR.ATTRIBUTES lacks what {record.path} has"):
            labels = schema.encode(record)
        known.update(name for name, label in zip(schema.names, labels, strict=True) if label != UNKNOWN)
    share = 100 * sum(known.values()) / max(len(schema) * images, 1)
    _logger.info("%d attributes, known of %.1f %% of the training images", len(schema), share)
    never = [name for name in schema.names if not known[name]]
    if never:
        _logger.warning("no training image tells %s: nothing is learned of it", ", ".join(never))
