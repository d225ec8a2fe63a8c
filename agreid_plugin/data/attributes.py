"""Attribute groups of AG-ReID and CP2108, the schema that makes labels of values, and the schema of training sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import Logger
from typing import TYPE_CHECKING, Any

from agreid_plugin.errors import InputError, error_context, require_known, unknown
from agreid_plugin.types import UNKNOWN, Record

if TYPE_CHECKING:  # the datasets need the schema
    from agreid_plugin.data.datasets import Dataset

# 15 groups, 88 values. A field of the .mat file is named by its group and value together, odd spellings included:
# `headneckless`, `uppercardiga`, `lowerleggins`, `baghandbag`. The last value of a group is for unclear cases.
QUT_GROUPS: dict[str, tuple[str, ...]] = {
    "gender": ("male", "female", "unknown"),
    "age": ("young", "middle", "old", "unknown"),
    "height": ("child", "short", "medium", "tall", "unknown"),
    "weight": ("thin", "medium", "fat", "unknown"),
    "ethnic": ("white", "black", "asian", "india", "unknown"),
    "haircolor": ("black", "brown", "white", "red", "gray", "occluded", "unknown"),
    "hairstyle": ("bald", "short", "medium", "long", "horsetail", "unknown"),
    "beard": ("on", "off", "unknown"),
    "moustache": ("on", "off", "unknown"),
    "glasses": ("normal", "sun", "off", "unknown"),
    "head": ("hat", "scarf", "neckless", "occluded", "unknown"),
    "upper": (
        *("tshirt", "blouse", "sweater", "coat", "bikini", "naked", "dress"),
        *("uniform", "shirt", "suit", "hoodie", "cardiga", "unknown"),
    ),
    "lower": ("jeans", "leggins", "pants", "shorts", "skirt", "bikini", "dress", "uniform", "suit", "unknown"),
    "feet": ("sportshoe", "classicshoe", "highheels", "boots", "sandals", "nothing", "unknown"),
    "bag": ("normal", "backpack", "handbag", "rolling", "umbrella", "sportif", "market", "nothing", "unknown"),
}

# The appearance attributes of CP2108's 22, the ones SVPR-ReID learns from; the names contain spaces.
CP2108_APPEARANCE: tuple[str, ...] = (
    *("Accessories", "Feet", "Glasses", "Head Accessories", "Holding Phone", "Lower Clothing"),
    *("Lower Color", "Lower Style", "Pose", "Upper Clothing", "Upper Color", "Upper Style"),
)

# All 22 attributes of CP2108 by what they describe.
CP2108_KINDS: dict[str, tuple[str, ...]] = {
    "biological": ("Age", "Beard", "Ethnicity", "Gender", "Hair Color", "Hair Style", "Height", "Volume"),
    "appearance": CP2108_APPEARANCE,
    "environment": ("Illumination", "View"),
}


def is_known(value: str) -> bool:
    """Return False for an empty value and for the datasets' word `unknown`."""
    return value.strip().lower() not in ("", "unknown")


@dataclass(frozen=True)
class AttributeSchema:
    """The attributes of a dataset in a fixed order, each with its values in a fixed order.

    Attributes:
        groups: attribute name -> its values; a value's place is its label.

    Example:
        >>> schema = AttributeSchema({"hair": ("short", "long"), "hat": ("no", "yes")})
        >>> schema.encode({"hat": "yes"})  # the hair is unknown
        (-1, 1)
        >>> schema.decode([1, 0])
        {'hair': 'long', 'hat': 'no'}
        >>> schema.encode({"hat": "yse"})
        Traceback (most recent call last):
        agreid_plugin.errors.InputError: value of attribute 'hat' 'yse' unknown (did you mean yes?); known: no, yes
    """

    groups: Mapping[str, tuple[str, ...]]

    @classmethod
    def collect(cls, records: Iterable[Record]) -> AttributeSchema:
        """Build the schema of the attributes that occur in `records`, names and values sorted."""
        seen: dict[str, set[str]] = {}
        for record in records:
            for name, value in record.attributes.items():
                seen.setdefault(name, set()).add(value)
        return cls({name: tuple(sorted(seen[name])) for name in sorted(seen)})

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes, in label order."""
        return tuple(self.groups)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each attribute, in label order."""
        return tuple(len(values) for values in self.groups.values())

    def __len__(self) -> int:
        return len(self.groups)

    def only(self, names: Iterable[str]) -> AttributeSchema:
        """Return the schema of some of the attributes, in the order given."""
        names = tuple(names)
        for name in names:
            require_known("attribute", name, self.groups)
        return AttributeSchema({name: self.groups[name] for name in names})

    def encode(self, attributes: Record | Mapping[str, str]) -> tuple[int, ...]:
        """Return one label an attribute, `UNKNOWN` for those that `attributes` (or a record's) lacks."""
        given = attributes.attributes if isinstance(attributes, Record) else attributes
        return tuple(self._label(name, given[name]) if name in given else UNKNOWN for name in self.groups)

    def decode(self, labels: Sequence[int]) -> dict[str, str]:
        """Return name -> value for labels from `encode`; unknown ones are left out."""
        if len(labels) != len(self):
            raise InputError(f"{len(labels)} attribute labels for {len(self)} attributes")
        return {name: self.groups[name][k] for name, k in zip(self.groups, labels, strict=True) if k != UNKNOWN}

    def _label(self, name: str, value: str) -> int:
        if value not in self.groups[name]:
            raise unknown(f"value of attribute {name!r}", value, self.groups[name])
        return self.groups[name].index(value)


def choose(schema: AttributeSchema, names: Iterable[str] = ()) -> AttributeSchema:
    """Return the schema of the attributes of these names, see `expand_kinds`; all of them without names."""
    return schema.only(expand_kinds(names, schema.groups) or schema.groups)


def expand_kinds(names: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return attribute names without repetition; a kind of CP2108 that is no name itself becomes its attributes."""
    kinds = {kind: members for kind, members in CP2108_KINDS.items() if kind not in known}
    return tuple(dict.fromkeys(member for name in map(str, names) for member in kinds.get(name, (name,))))


def schema_from_rows(rows: Iterable[Any]) -> AttributeSchema:
    """Return the schema of rows `[name, [value, ...]]`, the form of a configuration.

    Example:
        >>> schema_from_rows([["hat", ["no", "yes"]]]).groups
        {'hat': ('no', 'yes')}
    """
    groups: dict[str, tuple[str, ...]] = {}
    for row in rows:
        name, values = _parse_row(row)
        if name in groups:
            raise InputError(f"{name!r} is named twice")
        groups[name] = values
    return AttributeSchema(groups)


def schema_to_rows(schema: AttributeSchema) -> list[list[Any]]:
    """Return a schema as `schema_from_rows` reads it."""
    return [[name, list(values)] for name, values in schema.groups.items()]


def _parse_row(row: Any) -> tuple[str, tuple[str, ...]]:
    match row:
        case [str(name), [_, *_] as values]:
            wrong = [value for value in values if not isinstance(value, str)]
            if wrong:  # YAML reads No and 3 as other things than text
                raise InputError(f"value {wrong[0]!r} of {name!r} is no text; put it in quotes")
            if len(set(values)) < len(values):
                raise InputError(f"{name!r} has a value twice")
            return name, tuple(values)
    raise InputError(f"rows should be [name, [value, ...]], not {row!r}")


def build_schema(datasets: Sequence[Dataset], names: Iterable[str] = ()) -> AttributeSchema | None:
    """Return the schema of several datasets together, of some attributes or all; None if they have none.

    Args:
        datasets: the training sets.
        names: attributes, or kinds of them; see `expand_kinds`. All without any.
    """
    groups: dict[str, tuple[str, ...]] = {}
    unlike = set()
    for dataset in datasets:
        for name, values in dataset.schema.groups.items():
            if groups.setdefault(name, values) != values:
                unlike.add(name)
    asked = expand_kinds(names, groups)
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
    """Refuse training images of people that the dataset's attribute file lacks.

    Args:
        dataset: the dataset.
        records: its training images.
        permit: the setting by which a user accepts that.
    """
    missing = sorted({record.pid for record in records}.intersection(dataset.undescribed))
    if missing:
        raise InputError(
            f"{dataset.attribute_file} lacks {len(missing)} training identities of {dataset.name}, for example "
            f"{missing[0]}: complete it, or set {permit} to learn from the others"
        )


def check_labels(schema: AttributeSchema, records: Iterable[Record], images: int, logger: Logger) -> None:
    """Refuse values that the schema lacks, and log how many labels there are to learn from.

    Args:
        schema: the attributes that are learned.
        records: the training images that may have attributes.
        images: how many training images there are in all.
        logger: gets the lines.
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
        logger.warning("no training image has a label of %s: nothing is learned of it", ", ".join(never))
