"""Identities: random attributes, colors and measures of a person.

Everything is a function of (seed, pid). People come in families of four who often wear the same colors, so that color
alone does not tell them apart; a family shares nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from agreid_plugin.synth.plan import FAMILY, PERSON, random_stream
from agreid_plugin.synth.vocabulary import ATTRIBUTES, COLORS, HAIR, SKIN, Color, linear

FAMILY_SIZE = 4
SAME_COLOR = 0.6  # chance that a garment takes the family's color

_COLOR_WEIGHTS = {
    "upper": (20, 15, 15, 11, 8, 7, 6, 4, 4, 2, 4, 8),
    "lower": (26, 5, 16, 17, 12, 1, 4, 0, 1, 0, 7, 11),
    "shoes": (38, 26, 12, 4, 2, 3, 0, 0, 1, 0, 10, 4),
    "bag": (30, 4, 12, 12, 7, 7, 7, 2, 3, 1, 10, 5),
    "hat": (26, 12, 12, 12, 7, 10, 6, 2, 3, 0, 3, 7),
    "umbrella": (26, 6, 6, 12, 14, 14, 8, 6, 4, 4, 0, 0),
}  # in the order of COLORS; streets are black, gray, navy and white

_UPPER = {
    "man": {"t-shirt": 24, "tank top": 4, "shirt": 16, "sweater": 14, "hoodie": 14, "jacket": 14, "suit": 7, "coat": 7},
    "woman": {
        "t-shirt": 19,
        "tank top": 9,
        "shirt": 11,
        "sweater": 15,
        "hoodie": 8,
        "jacket": 10,
        "suit": 4,
        "coat": 10,
        "dress": 14,
    },
}
_LOWER = {
    "man": {"trousers": 42, "jeans": 36, "shorts": 22},
    "woman": {"trousers": 27, "jeans": 24, "leggings": 19, "shorts": 11, "skirt": 19},
}
_HAIR_STYLE = {
    "man": {"bald": 10, "short": 72, "medium": 10, "ponytail": 3, "bun": 5},
    "woman": {"short": 12, "medium": 25, "long": 32, "ponytail": 19, "bun": 12},
}
_HAIR_COLOR = {
    "young": {"black": 42, "brown": 33, "blond": 16, "red": 9},
    "middle-aged": {"black": 38, "brown": 36, "blond": 12, "red": 6, "gray": 8},
    "elderly": {"gray": 82, "black": 6, "brown": 8, "blond": 4},
}
_PATTERN = {"plain": 46, "striped": 14, "checked": 10, "dotted": 6, "logo": 14, "two-tone": 10}
_FORMAL_PATTERN = {"plain": 84, "striped": 5, "checked": 11}
_HEIGHT = {"short": (1.54, 1.62), "medium": (1.67, 1.76), "tall": (1.81, 1.91)}
_GIRTH = {"slim": (0.88, 0.95), "medium": (1.0, 1.07), "heavy": (1.17, 1.3)}


@dataclass(frozen=True)
class Person:
    """One identity: what it is called, and what the body builder needs.

    Attributes:
        attributes: name -> value, in the order of `vocabulary.ATTRIBUTES`.
        colors: part -> linear RGB, for skin, hair and everything worn or carried.
        height: meters.
        girth: width of the body against an average one.
        stride: length of the step against an average one.
        lean: forward tilt of the trunk in radians.
        side: 1 when the left hand carries things, -1 for the right.
        period: size of the garment's pattern in meters.
        straps: whether the straps of a bag show on the garment.
    """

    attributes: Mapping[str, str]
    colors: Mapping[str, Color]
    height: float
    girth: float
    stride: float
    lean: float
    side: int
    period: float
    straps: bool = True


@lru_cache(maxsize=64)
def sample_person(seed: int, pid: int) -> Person:
    """Draw the identity `pid`; the same (seed, pid) always gives the same one."""
    return draw_person(random_stream(seed, PERSON, pid), random_stream(seed, FAMILY, pid // FAMILY_SIZE))


def draw_person(rng: np.random.Generator, family: np.random.Generator) -> Person:
    """Draw a person from `rng`, with garment colors in part from `family`."""
    attributes = draw_body(rng) | _draw_colors(rng, family)
    attributes |= _draw_clothes(rng, attributes)
    attributes |= draw_belongings(rng, attributes)
    return build_person(rng, attributes, _shades(rng, attributes))


def build_person(
    rng: np.random.Generator, attributes: Mapping[str, str], colors: Mapping[str, Color], straps: bool = True
) -> Person:
    """Draw the measures of a person with these attributes and colors."""
    return Person(
        attributes={name: attributes[name] for name in ATTRIBUTES},
        colors=colors,
        height=rng.uniform(*_HEIGHT[attributes["height"]]) * (0.955 if attributes["gender"] == "woman" else 1.0),
        girth=rng.uniform(*_GIRTH[attributes["build"]]),
        stride=rng.uniform(0.8, 1.2) * (0.75 if attributes["age"] == "elderly" else 1.0),
        lean=rng.uniform(0.0, 0.07) + (0.12 if attributes["age"] == "elderly" else 0.0),
        side=int(rng.choice((-1, 1))),
        period=rng.uniform(0.085, 0.15),
        straps=straps,
    )


def pick(rng: np.random.Generator, weights: Mapping[str, float]) -> str:
    """Draw a name, each as often as its weight says."""
    left = rng.random() * sum(weights.values())
    for name, weight in weights.items():  # much faster than Generator.choice for a handful of values
        left -= weight
        if left < 0:
            return name
    return max(weights, key=weights.__getitem__)


def _pick_color(rng: np.random.Generator, what: str) -> str:
    return pick(rng, dict(zip(COLORS, _COLOR_WEIGHTS[what], strict=True)))


def draw_body(rng: np.random.Generator) -> dict[str, str]:
    """Draw the attributes of the body and the head."""
    gender = pick(rng, {"man": 1, "woman": 1})
    age = pick(rng, {"young": 55, "middle-aged": 31, "elderly": 14})
    style = pick(rng, _HAIR_STYLE[gender])
    return {
        "gender": gender,
        "age": age,
        "height": pick(rng, {"short": 25, "medium": 50, "tall": 25}),
        "build": pick(rng, {"slim": 30, "medium": 48, "heavy": 22}),
        "skin": pick(rng, {"light": 40, "tan": 30, "brown": 17, "dark": 13}),
        "hair style": style,
        "hair color": pick(rng, _HAIR_COLOR[age]),
        "beard": pick(rng, {"no": 70, "yes": 30}) if gender == "man" else "no",
        "glasses": pick(rng, {"none": 68, "clear": 19, "sun": 13}),
        "hat": pick(rng, {"none": 72, "cap": 14, "beanie": 8, "sun hat": 6}) if style != "bun" else "none",
    }


def _draw_colors(rng: np.random.Generator, family: np.random.Generator) -> dict[str, str]:
    shared = {what: _pick_color(family, what) for what in ("upper", "lower")}
    own = {what: _pick_color(rng, what) for what in _COLOR_WEIGHTS}
    chosen = {what: color if rng.random() < SAME_COLOR else own[what] for what, color in shared.items()}
    return {
        "hat color": own["hat"],
        "upper color": chosen["upper"],
        "lower color": chosen["lower"],
        "shoe color": own["shoes"],
        "bag color": own["bag"],
        "umbrella color": own["umbrella"],
    }


def _draw_clothes(rng: np.random.Generator, drawn: Mapping[str, str]) -> dict[str, str]:
    upper, lower = pick(rng, _UPPER[drawn["gender"]]), pick(rng, _LOWER[drawn["gender"]])
    formal = upper in ("suit", "coat", "jacket", "tank top")
    pattern = pick(rng, _FORMAL_PATTERN if formal else _PATTERN)
    lower_pattern = pick(rng, {"plain": 84, "striped": 8, "checked": 8})
    if upper == "dress":
        lower, pattern = "dress", "plain" if pattern in ("logo", "two-tone") else pattern
    if upper == "suit":
        lower, lower_pattern = "trousers", "plain"
    if upper == "coat" and lower == "shorts":
        lower = "trousers"
    if lower in ("jeans", "leggings"):
        lower_pattern = "plain"
    clothes = {"upper": upper, "upper pattern": pattern, "lower": lower, "lower pattern": lower_pattern}
    if lower == "jeans":
        clothes["lower color"] = pick(rng, {"blue": 50, "navy": 30, "black": 12, "gray": 8})
    if upper == "dress":
        clothes |= {"lower color": drawn["upper color"], "lower pattern": pattern}
    if upper == "suit":
        clothes |= {"upper color": drawn["lower color"]}
    shoes = {
        "sneakers": 54,
        "dress shoes": 20,
        "boots": 14,
        "sandals": 12 if lower in ("shorts", "skirt", "dress") else 0,
    }
    return clothes | {"shoes": pick(rng, shoes)}


def draw_belongings(rng: np.random.Generator, drawn: Mapping[str, str]) -> dict[str, str]:
    """Draw what is carried; the colors of what is not are `none`."""
    bags = {"none": 42, "backpack": 20, "shoulder bag": 13, "shopping bag": 8, "suitcase": 5}
    bags["handbag"] = 14 if drawn["gender"] == "woman" else 2
    bag = pick(rng, bags)
    umbrella = pick(rng, {"no": 94, "yes": 6})
    phone = pick(rng, {"no": 88, "yes": 12}) if umbrella == "no" else "no"
    carried = {"bag": bag, "umbrella": umbrella, "hat": drawn["hat"]}
    absent = {f"{what} color": "none" for what, value in carried.items() if value in ("none", "no")}
    return {"bag": bag, "umbrella": umbrella, "phone": phone} | absent


def name_colors(rng: np.random.Generator, attributes: Mapping[str, str]) -> dict[str, tuple[int, int, int]]:
    """Return the sRGB color of each part, and pick those that no attribute names."""
    named = {part: COLORS[attributes[f"{part} color"]] for part in ("upper", "lower")}
    named["shoes"] = COLORS[attributes["shoe color"]]
    carried = {part: attributes[f"{part} color"] for part in ("bag", "hat", "umbrella")}
    named |= {part: COLORS[name] for part, name in carried.items() if name != "none"}
    named |= {"skin": SKIN[attributes["skin"]], "hair": HAIR[attributes["hair color"]]}
    for part in ("upper", "lower"):
        named[f"{part} accent"] = contrasting(rng, named[part])
    if attributes["upper"] == "dress":
        named["lower accent"] = named["upper accent"]
    named["inner"] = COLORS[pick(rng, {"white": 55, "gray": 20, "black": 15, "blue": 10})]
    return named


def _shades(rng: np.random.Generator, attributes: Mapping[str, str]) -> dict[str, Color]:
    """Draw a shade for each named color."""
    named = name_colors(rng, attributes)
    shades = {part: linear(_vary(rng, rgb)) for part, rgb in named.items()}
    if attributes["upper"] in ("dress", "suit"):
        shades["lower"] = shades["upper"]
        shades["lower accent"] = shades["upper accent"]
    return shades


def contrasting(rng: np.random.Generator, rgb: tuple[int, int, int]) -> tuple[int, int, int]:
    """Pick white on dark or dark on light, now and then a color."""
    dark = sum(rgb) < 330
    names = (
        {"white": 50, "gray": 14, "yellow": 9, "red": 9, "beige": 18}
        if dark
        else {"black": 34, "navy": 30, "red": 18, "green": 18}
    )
    return COLORS[pick(rng, names)]


def _vary(rng: np.random.Generator, rgb: tuple[int, int, int]) -> Color:
    brightness, tint = rng.normal(1, 0.07), rng.normal(0, 4, 3)
    red, green, blue = np.clip(np.array(rgb) * brightness + tint, 6, 250).tolist()
    return red, green, blue
