"""Which attributes a model learns, from its training sets or from rows of a configuration, and whether they fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from logging import Logger
from typing import Any

from agreid_plugin.data.attributes import AttributeSchema, choose, expanded
from agreid_plugin.data.datasets import Dataset
from agreid_plugin.errors import InputError, error_context
from agreid_plugin.types import UNKNOWN, Record


def from_rows(rows: Iterable[Any]) -> AttributeSchema:
    """Return the schema of rows `[name, [value, ...]]`, as a configuration keeps it.

    Example:
        >>> from_rows([["hat", ["no", "yes"]]]).groups
        {'hat': ('no', 'yes')}
    """
    groups: dict[str, tuple[str, ...]] = {}
    for row in rows:
        name, values = _row(row)
        if name in groups:
            raise InputError(f"{name!r} is named twice")
        groups[name] = values
    return AttributeSchema(groups)


def to_rows(schema: AttributeSchema) -> list[list[Any]]:
    """Return a schema as `from_rows` reads it."""
    return [[name, list(values)] for name, values in schema.groups.items()]


def _row(row: Any) -> tuple[str, tuple[str, ...]]:
    match row:
        case [str(name), [_, *_] as values]:
            wrong = [value for value in values if not isinstance(value, str)]
            if wrong:  # YAML reads No and 3 as other things than text
                raise InputError(f"value {wrong[0]!r} of {name!r} is no text; put it in quotes")
            if len(set(values)) < len(values):
                raise InputError(f"{name!r} has a value twice")
            return name, tuple(values)
    raise InputError(f"rows should be [name, [value, ...]], not {row!r}")


def of_datasets(datasets: Sequence[Dataset], names: Iterable[str] = ()) -> AttributeSchema | None:
    """Return the attributes of these names, all without any, of datasets together; None if they have none.

    Args:
        datasets: what is trained on.
        names: attributes, or kinds of them; see `expanded`.
    """
    groups: dict[str, tuple[str, ...]] = {}
    unlike = set()
    for dataset in datasets:
        for name, values in dataset.schema.groups.items():
            if groups.setdefault(name, values) != values:
                unlike.add(name)
    asked = expanded(names, groups)
    if not groups:
        if asked:
            where = ", ".join(dataset.name for dataset in datasets) or "a dataset of the host's"
            raise InputError(f"{', '.join(asked)} cannot be had of {where}: is the attribute file there?")
        return None
    schema = choose(AttributeSchema(groups), asked)
    for name in unlike.intersection(schema.names):
        raise InputError(f"the training sets give the attribute {name!r} different values; train on one of them")
    return schema


def require_described(dataset: Dataset, records: Iterable[Record], permit: str) -> None:
    """Refuse training images of people whom the dataset's attribute file does not know.

    Args:
        dataset: the dataset.
        records: its training images.
        permit: how the user says that the others are enough.
    """
    missing = sorted({record.pid for record in records}.intersection(dataset.undescribed))
    if missing:
        raise InputError(
            f"{dataset.attribute_file} lacks {len(missing)} training identities of {dataset.name}, for example "
            f"{missing[0]}: complete it, or set {permit} to learn from the others"
        )


def check_labels(schema: AttributeSchema, records: Iterable[Record], images: int, logger: Logger) -> None:
    """Refuse values that the schema does not have, and tell how many labels there are to learn from.

    Args:
        schema: what is learned.
        records: the training images that may have attributes.
        images: how many training images there are in all.
        logger: where it is told.
    """
    known: Counter[str] = Counter()
    for record in records:
        with error_context(f"no place for what {record.path} has"):
            labels = schema.encode(record)
        known.update(name for name, label in zip(schema.names, labels, strict=True) if label != UNKNOWN)
    share = 100 * sum(known.values()) / max(len(schema) * images, 1)
    logger.info("%d attributes, known of %.1f %% of the training images", len(schema), share)
    never = [name for name in schema.names if not known[name]]
    if never:
        logger.warning("no training image tells %s: nothing is learned of it", ", ".join(never))
