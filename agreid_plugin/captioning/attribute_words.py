"""Parts and plain words for attributes of any dataset, and families of color words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from agreid_plugin.data.datasets.tree import normalize_name

ABSENT = frozenset({"no", "off", "none", "nothing", "false", "0", "without", "absent"})
PRESENT = frozenset({"yes", "on", "true", "1", "with", "present"})
_UNSURE = frozenset({"", "unknown", "occluded", "invisible", "not visible", "unclear", "uncertain", "other", "others"})
_UNSURE |= {"unsure", "undefined", "n/a", "na", "nan", "null"}

NOT_APPEARANCE = "not of the person"

_AREAS = {
    "upper": r"upper(?:body|half)?|top|torso|up",
    "lower": r"lower(?:body|half)?|bottoms?|down",
    "shoes": r"feet|foot|shoes?|footwear",
    "hair": r"hair",
    "head": r"head|hat|headwear|cap",
    "bag": r"bags?|belongings?|accessor(?:y|ies)|carrying",
    "umbrella": r"umbrella",
}
_KIND = r"(?:clothing|clothes|cloth|garment|type|kind|wear|accessor(?:y|ies))?"
_ASPECTS = {"kind": "", "color": r"colou?rs?", "style": r"style|length|pattern|texture|print"}
_WHOLE = {
    "gender": r"gender|sex",
    "age": r"age(?:group|range)?",
    "height": r"height|stature",
    "build": r"build|weight|volume|figure|body(?:shape|type|build)",
    "ethnicity": r"ethnic(?:ity)?|race|skin(?:colou?r)?",
    "beard": r"beard|facialhair",
    "moustache": r"mou?stache",
    "glasses": r"(?:eye)?glasses|eyewear",
    "phone": r"(?:holding|using)?(?:mobile|cell)?phone",
    "pose": r"pose|posture|action|motion",
    NOT_APPEARANCE: r"view(?:point|angle)?|orientation|direction|facing|illumination|light(?:ing)?|time(?:ofday)?|"
    r"scene|background|weather|camera|platform|altitude|occlusion|resolution|distance|source|split",
}
_PATTERNS = {(part, "kind"): re.compile(pattern) for part, pattern in _WHOLE.items()} | {
    (area, aspect): re.compile(f"(?:{pattern}){_KIND}(?:{last})")
    for area, pattern in _AREAS.items()
    for aspect, last in _ASPECTS.items()
}

_VALUES: dict[str, dict[str, str]] = {  # by part, or by part and aspect; values in lower-case letters only
    "gender": {
        **dict.fromkeys(("male", "man", "m", "boy"), "man"),
        **dict.fromkeys(("female", "woman", "f", "girl"), "woman"),
    },
    "age": {
        **dict.fromkeys(("middle", "middleage", "adult", "middleaged"), "middle-aged"),
        **dict.fromkeys(("old", "senior", "elder"), "elderly"),
        **dict.fromkeys(("teen", "teenager", "youth"), "young"),
    },
    "build": {"thin": "slim", "fat": "heavily built", "heavy": "heavily built", "medium": "", "normal": ""},
    "height": {"medium": "", "normal": "", "average": ""},
    "hair style": {"horsetail": "ponytail", "tied": "ponytail"},
    "glasses": {"sun": "sunglasses", **dict.fromkeys(("normal", "clear"), "glasses")},
    "head": {"neckless": "necklace"},
    "upper": {"tshirt": "t-shirt", "cardiga": "cardigan", "naked": ""},
    "lower": {"leggins": "leggings", "naked": ""},
    "shoes": {
        **dict.fromkeys(("sportshoe", "sportshoes", "sportsshoe", "sport"), "sports shoes"),
        **dict.fromkeys(("classicshoe", "classicshoes", "classic"), "classic shoes"),
        **dict.fromkeys(("highheels", "highheel"), "high heels"),
    },
    "bag": {
        "normal": "bag",
        "rolling": "rolling suitcase",
        "sportif": "sports bag",
        "market": "shopping bag",
    },
    "upper style": dict.fromkeys(("plain", "solid", "pure"), ""),
    "lower style": dict.fromkeys(("plain", "solid", "pure"), ""),
}
_FAMILIES: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("black", "white", "blue", "red", "green", "yellow", "pink", "purple", "brown")},
    **dict.fromkeys(("gray", "grey", "silver"), ("gray",)),
    "orange": ("orange",),
    **dict.fromkeys(("beige", "sand"), ("beige",)),
    **dict.fromkeys(("blond", "blonde"), ("blond", "yellow")),
    "navy": ("blue",),
    "denim": ("blue",),
    **dict.fromkeys(("teal", "turquoise", "cyan", "aqua"), ("blue", "green")),
    **dict.fromkeys(("olive", "lime"), ("green",)),
    "khaki": ("beige", "green", "brown"),
    "tan": ("beige", "brown"),
    "camel": ("beige", "brown"),
    **dict.fromkeys(("cream", "ivory"), ("white", "beige")),
    **dict.fromkeys(("maroon", "burgundy"), ("red", "brown", "purple")),
    **dict.fromkeys(("crimson", "scarlet"), ("red",)),
    **dict.fromkeys(("violet", "lavender", "lilac"), ("purple",)),
    "magenta": ("pink", "purple"),
    **dict.fromkeys(("gold", "golden"), ("yellow", "blond")),
    "charcoal": ("gray", "black"),
    "brunette": ("brown",),
}


def split_words(text: str) -> str:
    """Split `Normal_Light`, `UpperColor` or `hair-style` into lower-case words; hyphens stay."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text.strip())
    return re.sub(r"[\s_]+", " ", apart).lower()


def parse_part(name: str) -> tuple[str, str]:
    """Return what an attribute describes: a part, and `kind`, `color` or `style`; two empty texts if unknown."""
    letters = normalize_name(name)
    return next((key for key, pattern in _PATTERNS.items() if pattern.fullmatch(letters)), ("", ""))


def describe_value(name: str, value: str) -> str:
    """Return an attribute's value in plain words: `yes` and `no` for `on` and `off`, `ponytail` for `horsetail`."""
    part, aspect = parse_part(name)
    text = split_words(value)
    if text in ABSENT | PRESENT:
        return "yes" if text in PRESENT else "no"
    key = part if aspect in ("", "kind") else f"{part} {aspect}"
    return text if key == "gender" else _VALUES.get(key, {}).get(normalize_name(text)) or text


@dataclass(frozen=True)
class Appearance:
    """Appearance of a person by its parts.

    Attributes:
        parts: part (`upper`), part and aspect (`upper color`, `upper style`) -> value in words.
        absent: parts the person does not have: `bag`, `glasses`, `beard`.
        others: (name, value) of other attributes, in words; a thing that is present has no value.
    """

    parts: Mapping[str, str]
    absent: frozenset[str]
    others: tuple[tuple[str, str], ...]


def parse_appearance(attributes: Mapping[str, str]) -> Appearance:
    """Sort attributes, name -> value, by parts; unknown values and those not of the person are dropped."""
    parts, absent, others = {}, set(), []
    for name, value in attributes.items():
        (part, aspect), text = parse_part(name), split_words(str(value))
        key = part if aspect in ("", "kind") else f"{part} {aspect}"
        if text in _UNSURE or part == NOT_APPEARANCE:
            continue
        if text in ABSENT:
            absent |= {part or split_words(name)} if aspect in ("", "kind") else set()
        elif part:
            known = _VALUES.get(key, {})
            parts[key] = _name_thing(part, name) if text in PRESENT else known.get(normalize_name(text), text)
        else:
            others.append((split_words(name), "" if text in PRESENT else text))
    return Appearance({key: value for key, value in parts.items() if value}, frozenset(absent), tuple(others))


def _name_thing(part: str, name: str) -> str:
    """Return the thing that an attribute with the value yes names, empty if none."""
    if part == "head":
        return "cap" if normalize_name(name) == "cap" else "hat"
    return part if part in ("bag", "umbrella", "phone", "beard", "moustache", "glasses") else ""


def color_families(text: str) -> frozenset[str]:
    """Return the families of all color words in a text; `navy` and `blue` share one."""
    return frozenset(family for word in re.findall(r"[a-z]+", text.lower()) for family in _FAMILIES.get(word, ()))
