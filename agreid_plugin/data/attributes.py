"""What is known of a person: the attribute groups of AG-ReID and CP2108, and how a group becomes a label."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from agreid_plugin.errors import InputError, did_you_mean, require_known, unknown
from agreid_plugin.types import UNKNOWN, Record

# 15 groups, 88 values. A field of the .mat file is named by its group and value together, odd spellings included:
# `headneckless`, `uppercardiga`, `lowerleggins`, `baghandbag`. The last value of a group says nobody could tell.
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

# All of CP2108's 22 by what they describe.
CP2108_KINDS: dict[str, tuple[str, ...]] = {
    "biological": ("Age", "Beard", "Ethnicity", "Gender", "Hair Color", "Hair Style", "Height", "Volume"),
    "appearance": CP2108_APPEARANCE,
    "environment": ("Illumination", "View"),
}

QUT_YES = 2  # in the .mat file 1 is no and 2 is yes


def is_known(value: str) -> bool:
    """Return False for an empty value and for the datasets' own word `unknown`."""
    return value.strip().lower() not in ("", "unknown")


@dataclass(frozen=True)
class AttributeSchema:
    """The attributes of a dataset in a fixed order, each with its values in a fixed order.

    Attributes:
        groups: attribute name -> its values; a value's place is its label.

    Example:
        >>> schema = AttributeSchema({"hair": ("short", "long"), "hat": ("no", "yes")})
        >>> schema.encode({"hat": "yes"})  # nobody knows the hair
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
        """How many values each attribute has, in label order."""
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
        """Return one label an attribute, `UNKNOWN` for those that `attributes` (or a record's) does not tell."""
        given = attributes.attributes if isinstance(attributes, Record) else attributes
        return tuple(self._label(name, given[name]) if name in given else UNKNOWN for name in self.groups)

    def decode(self, labels: Sequence[int]) -> dict[str, str]:
        """Return name -> value for labels as `encode` gives them; unknown ones are left out."""
        if len(labels) != len(self):
            raise InputError(f"{len(labels)} attribute labels for {len(self)} attributes")
        return {name: self.groups[name][k] for name, k in zip(self.groups, labels, strict=True) if k != UNKNOWN}

    def _label(self, name: str, value: str) -> int:
        if value not in self.groups[name]:
            raise unknown(f"value of attribute {name!r}", value, self.groups[name])
        return self.groups[name].index(value)


def choose(schema: AttributeSchema, names: Iterable[str] = ()) -> AttributeSchema:
    """Return the schema of the attributes of these names, see `expanded`; all of them without names."""
    return schema.only(expanded(names, schema.groups) or schema.groups)


def expanded(names: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return attribute names, a kind of CP2108's that is no name itself replaced by its attributes, each once."""
    kinds = {kind: members for kind, members in CP2108_KINDS.items() if kind not in known}
    return tuple(dict.fromkeys(member for name in map(str, names) for member in kinds.get(name, (name,))))


def read_qut_mat(path: str | Path) -> dict[int, dict[str, str]]:
    """Read AG-ReID's attributes of identities (`qut_attribute_v4_88_attributes.mat`, `qut_attribute_v8.mat`).

    Fields are found by name, in any case and order. What the file calls unknown, or says nothing of, is left out.

    Args:
        path: the .mat file, a struct `qut_attribute` with the structs `train` and `test`.

    Returns:
        The identity's number, as the parsers make it from file names, -> attribute -> value.
    """
    people: dict[int, dict[str, str]] = {}
    told = False
    for columns in _qut_structs(Path(path)):
        pids = [_qut_pid(path, value) for value in np.atleast_1d(columns["image_index"])]
        for pid in pids:
            people.setdefault(pid, {})
        for group, values in QUT_GROUPS.items():
            positive = np.stack([_qut_column(path, columns, group + value, len(pids)) for value in values], axis=1)
            told |= bool(positive.any())
            for pid, row in zip(pids, positive, strict=True):
                people[pid].update(_qut_value(path, pid, group, row))
    if not told:
        raise InputError(f"{path}: no field says yes of anybody; write 1 for no and {QUT_YES} for yes")
    return people


def _qut_structs(path: Path) -> list[dict[str, np.ndarray]]:
    try:
        content = scipy.io.loadmat(path, simplify_cells=True)
    except Exception as error:  # the reader raises half a dozen kinds, depending on where the file is broken
        raise InputError(f"{path}: not a readable .mat file ({error})") from error
    halves = content.get("qut_attribute")
    if not isinstance(halves, dict) or not {"train", "test"} & halves.keys():
        raise InputError(f"{path}: expected a struct qut_attribute with train and test, found {sorted(content)}")
    for half, fields in halves.items():
        if not isinstance(fields, dict):
            raise InputError(f"{path}: qut_attribute.{half} is no struct with a field for each attribute and value")
    structs = [{name.lower(): column for name, column in half.items()} for half in halves.values()]
    if not all("image_index" in columns for columns in structs):
        raise InputError(f"{path}: a struct of qut_attribute lacks the field image_index, the identities")
    return structs


def _qut_pid(path: str | Path, value: Any) -> int:
    # Numbers arrive as doubles, texts either as digits or as P0001T04041A0.
    try:
        return int("".join(filter(str.isdigit, value))) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{path}: image_index {value!r} is no identity; it should be like P0001T04041A0") from None


def _qut_column(path: str | Path, columns: Mapping[str, np.ndarray], field: str, identities: int) -> np.ndarray:
    """Return of which identities a field says yes: (identities,)."""
    if field not in columns:
        raise InputError(f"{path}: attribute field {field!r} missing{did_you_mean(field, columns)}")
    try:
        column = np.atleast_1d(columns[field]).astype(float)
    except (TypeError, ValueError):
        raise InputError(f"{path}: field {field!r} holds other than numbers; write 1 for no, 2 for yes") from None
    if column.shape != (identities,):
        raise InputError(
            f"{path}: field {field!r} has {column.size} values for the {identities} identities of image_index; it "
            "needs one for each"
        )
    return column == QUT_YES


def _qut_value(path: str | Path, pid: int, group: str, positive: np.ndarray) -> dict[str, str]:
    chosen = [value for value, yes in zip(QUT_GROUPS[group], positive, strict=True) if yes]
    if len(chosen) > 1:
        raise InputError(f"{path}: identity {pid} has {len(chosen)} values of {group!r} at once: {', '.join(chosen)}")
    return {group: chosen[0]} if chosen and is_known(chosen[0]) else {}
