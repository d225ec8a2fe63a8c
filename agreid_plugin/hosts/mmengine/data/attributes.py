"""Attributes that a model learns: from rows of a configuration or from datasets, which AG-Synth may make first."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmengine.dist import barrier, is_main_process

from agreid_plugin.data.attributes import (
    AttributeSchema,
    build_schema,
    check_labels,
    choose,
    require_described,
    schema_from_rows,
)
from agreid_plugin.data.datasets import Dataset, dataset_name, load
from agreid_plugin.data.datasets.locations import default_root
from agreid_plugin.errors import InputError, error_context
from agreid_plugin.hosts.mmengine.config.arguments import require_arguments
from agreid_plugin.synth.on_demand import make_missing
from agreid_plugin.types import Record

AGSYNTH_ARGUMENTS = ("ids", "images_per_id", "size", "seed", "world")
"""Arguments of AG-Synth that a recipe gives."""

_logger = logging.getLogger(__name__)


def get_schema(attributes: Sequence[Any] | Mapping[str, Any] | None) -> AttributeSchema | None:
    """Return the attributes that a model learns, None without any.

    Args:
        attributes: rows `[name, [value, ...]]`, or `dict(dataset=, data_root=, names=[], options={}, agsynth=None)`
            for those of a dataset, all of them without names; see `ReIDDataset` for the other entries.
    """
    if attributes is None:
        return None
    with error_context("attributes"):
        if isinstance(attributes, Mapping):
            require_arguments("attributes", _read_schema, attributes)
            return _read_schema(**attributes)
        return schema_from_rows(attributes)


def _read_schema(
    dataset: str,
    data_root: str | None = None,
    names: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    agsynth: Mapping[str, Any] | None = None,
) -> AttributeSchema:
    root = data_root or default_root()
    make_agsynth_once(root, [dataset_name(dataset)], agsynth)  # a model may be built before its dataset is
    schema = load(dataset, root, **(options or {})).schema
    if not schema:
        raise InputError(f"{dataset} in {root} has none: is its attribute file there?")
    return choose(schema, names)


def build_training_schema(
    asked: Sequence[Any] | Mapping[str, Any] | None,
    datasets: Sequence[Dataset],
    records: Mapping[str, Sequence[Record]],
    missing: bool,
) -> AttributeSchema | None:
    """Return the attributes to give with each training image, None if there are none to learn.

    Args:
        asked: names of the datasets' attributes, all without any; or rows of a model, see `get_schema`.
        datasets: the training sets.
        records: their training images, by dataset.
        missing: learn although an attribute file lacks some training identities.
    """
    if asked is None:
        return None
    schema = _choose_schema(asked, datasets)
    if schema is None:
        return None
    for dataset in () if missing else datasets:
        require_described(dataset, records[dataset.name], "missing_attributes=True")
    every = [record for found in records.values() for record in found]
    with error_context("attributes"):
        check_labels(schema, every, len(every), _logger)
    return schema


def _choose_schema(asked: Sequence[Any] | Mapping[str, Any], datasets: Sequence[Dataset]) -> AttributeSchema | None:
    if isinstance(asked, Mapping) or any(not isinstance(each, str) for each in asked):
        return get_schema(asked)
    with error_context("attributes"):
        return build_schema(datasets, asked)


def make_agsynth_once(root: str, names: Iterable[str], agsynth: Mapping[str, Any] | None) -> None:
    """Make AG-Synth where a dataset is missing.

    Args:
        root: folder of the datasets.
        names: the datasets.
        agsynth: `ids`, `images_per_id`, `size`, `seed` and `world`; nothing is made without any.
    """
    if not agsynth:
        return
    require_arguments("agsynth", make_missing, agsynth, allowed=AGSYNTH_ARGUMENTS)
    try:
        if is_main_process():
            make_missing(root, names, **agsynth, key="agsynth")
    finally:
        barrier()  # also after an error, which the others then find for themselves
