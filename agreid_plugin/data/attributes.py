"""What is known of a person: the attribute groups of AG-ReID and CP2108, and how a group becomes a label."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agreid_plugin.errors import InputError, require_known, unknown
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
