"""Attributes that a model learns, with their values: from the training sets, or from the configuration of a run.

A run keeps them in its configuration, so that its weights can be evaluated without the training sets.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fastreid.data.datasets.bases import ImageDataset

from agreid_plugin.data.attributes import (
    AttributeSchema,
    build_schema,
    check_labels,
    expand_kinds,
    require_described,
    schema_from_rows,
    schema_to_rows,
)
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config.loading import Key, declare, key_error_context, with_value
from agreid_plugin.hosts.fastreid.data.datasets import RecordDataset, get_source, read_dataset
from agreid_plugin.hosts.fastreid.models.base import get_method_class

KEY = "MODEL.SVPR.ATTRIBUTES"
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
        KEY,
        [],
        "SVPR-ReID: rows [name, [value, ...]]; empty: those of the training sets; [none]: no attributes.",
    ),
)
declare(KEYS)
NONE = ["none"]
"""Value of the key for a model without attributes."""

_logger = logging.getLogger("fastreid.data")


def get_schema(cfg) -> AttributeSchema | None:
    """Return the attributes that the model of a configuration learns, None without any.

    They are `MODEL.SVPR.ATTRIBUTES`; if it is empty, those of the training sets that `DATASETS.ATTRIBUTES` names.
    """
    if cfg.MODEL.SVPR.ATTRIBUTES:
        return _read_configured(cfg)
    ours = [name for name in cfg.DATASETS.NAMES if get_source(name)]
    return _build_schema(cfg, [read_dataset(cfg, name) for name in ours])


def with_attributes(cfg):
    """Return the configuration with the attributes that its model learns written into it, if it learns any."""
    return with_schema(cfg) if get_method_class(cfg).learns_attributes(cfg) else cfg


def with_schema(cfg):
    """Return the configuration with the attributes of `get_schema` in `MODEL.SVPR.ATTRIBUTES`."""
    schema = get_schema(cfg)
    return with_value(cfg, KEY, list(NONE) if schema is None else schema_to_rows(schema))


def get_training_schema(cfg, datasets: Sequence[ImageDataset]) -> AttributeSchema | None:
    """Return the attributes to give with each training image.

    Once a model's attributes are written down, see `with_schema`, it learns from them: then training images must
    not have other values, and the attribute file must know every training identity.
    """
    if not cfg.MODEL.SVPR.ATTRIBUTES:
        return _build_schema(cfg, datasets)
    schema = _read_configured(cfg)
    if schema is None:
        return None
    records = {dataset: [item.record for item in dataset.train] for dataset in _select_ours(datasets)}
    for dataset in () if cfg.DATASETS.MISSING_ATTRIBUTES else records:
        require_described(dataset.records, records[dataset], "DATASETS.MISSING_ATTRIBUTES True")
    with key_error_context(KEY):
        every = [record for found in records.values() for record in found]
        check_labels(schema, every, sum(len(dataset.train) for dataset in datasets), _logger)
    return schema


def _select_ours(datasets: Sequence[ImageDataset]) -> list[RecordDataset]:
    return [dataset for dataset in datasets if isinstance(dataset, RecordDataset)]


def _build_schema(cfg, datasets: Sequence[ImageDataset]) -> AttributeSchema | None:
    with key_error_context("DATASETS.ATTRIBUTES"):
        return build_schema([dataset.records for dataset in _select_ours(datasets)], cfg.DATASETS.ATTRIBUTES)


def _read_configured(cfg) -> AttributeSchema | None:
    if list(cfg.MODEL.SVPR.ATTRIBUTES) == NONE:
        return None
    with key_error_context(KEY):
        schema = schema_from_rows(cfg.MODEL.SVPR.ATTRIBUTES)
    asked = expand_kinds(cfg.DATASETS.ATTRIBUTES, schema.groups)
    if asked and asked != schema.names:
        raise InputError(
            f"DATASETS.ATTRIBUTES asks for {', '.join(asked)}, but {KEY} of this run has {', '.join(schema.names)}: "
            "empty one"
        )
    return schema
