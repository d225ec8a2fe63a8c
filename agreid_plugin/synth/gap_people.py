"""People of the world `gap`: ordinary clothes in muted shades, and circles of look-alikes.

A circle is four people. In every other circle they wear the same upper garment and differ below the waist, where a
drone hardly sees them; in the others it is the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from agreid_plugin.synth.people import Person, build_person, contrasting, draw_belongings, draw_body, name_colors, pick
from agreid_plugin.synth.plan import FAMILY, PERSON, random_stream
from agreid_plugin.synth.vocabulary import COLORS, Color, linear

CIRCLE_SIZE = 4
ALIKE = 0.7  # chance that a person of a circle wears what is worn there

_COLOR_WEIGHTS = {
    "upper": (33, 15, 19, 11, 5, 3, 3, 1, 2, 1, 3, 4),
    "lower": (34, 2, 17, 19, 12, 1, 3, 0, 0, 0, 5, 7),
    "shoes": (44, 22, 16, 5, 2, 2, 0, 0, 1, 0, 6, 2),
    "bag": (44, 3, 18, 12, 4, 3, 3, 1, 1, 0, 8, 3),
    "hat": (40, 12, 14, 14, 5, 4, 3, 1, 1, 0, 2, 4),
    "umbrella": (40, 4, 10, 18, 8, 8, 5, 2, 3, 2, 0, 0),
}  # in the order of COLORS
_UPPER = {
    "man": {"t-shirt": 48, "tank top": 5, "shirt": 13, "sweater": 9, "hoodie": 11, "jacket": 11, "coat": 3},
    "woman": {"t-shirt": 42, "tank top": 9, "shirt": 11, "sweater": 9, "hoodie": 8, "jacket": 10, "coat": 4},
}
_RARE_UPPER = {"man": {"suit": 3, "": 97}, "woman": {"suit": 1, "dress": 8, "": 91}}
_LOWER = {
    "man": {"trousers": 30, "jeans": 38, "shorts": 32},
    "woman": {"trousers": 22, "jeans": 34, "leggings": 18, "shorts": 16, "skirt": 10},
}
_PATTERN = {"plain": 58, "striped": 9, "checked": 6, "dotted": 2, "logo": 17, "two-tone": 8}
_JEANS = {"blue": 42, "navy": 28, "black": 20, "gray": 10}
_UPPER_KEYS, _LOWER_KEYS = (
    tuple(f"{part}{rest}" for rest in ("", " color", " pattern")) for part in ("upper", "lower")
)
_DYED = ("upper", "upper accent", "lower", "lower accent")
_GRAYED = {"skin": 0.12, "hair": 0.1}  # other parts are grayed by more
_Dye = tuple[float, float, np.ndarray]


@lru_cache(maxsize=64)
def sample_person(seed: int, pid: int) -> Person:
    """Draw the identity `pid`; the same (seed, pid) always gives the same one."""
    circle = pid // CIRCLE_SIZE
    alike = "upper" if circle % 2 else "lower"
    return draw_person(random_stream(seed, PERSON, pid, 1), random_stream(seed, FAMILY, circle, 1), alike)


def draw_person(rng: np.random.Generator, circle: np.random.Generator, alike: str = "upper") -> Person:
    """Draw a person from `rng`, whose upper or lower garment, as `alike` says, may be that of its circle."""
    worn, common = draw_body(rng), _draw_outfit(circle, "man")
    worn |= {f"{part} color": _pick_color(rng, name) for part, name in (("shoe", "shoes"), ("bag", "bag"))}
    worn |= {f"{part} color": _pick_color(rng, part) for part in ("hat", "umbrella")}
    worn |= _draw_outfit(rng, worn["gender"]) | _draw_rare(rng, worn["gender"])
    dyes = {part: _draw_dye(rng) for part in _DYED}
    accents = {f"{part} accent": contrasting(circle, COLORS[common[f"{part} color"]]) for part in ("upper", "lower")}
    shared = worn["upper"] not in ("suit", "dress") and rng.random() < ALIKE
    if shared:
        worn |= {key: common[key] for key in (_UPPER_KEYS if alike == "upper" else _LOWER_KEYS)}
        common_dyes = {part: _draw_dye(circle) for part in _DYED}
        dyes |= {part: dye for part, dye in common_dyes.items() if part.startswith(alike)}
    worn |= _fit_together(rng, worn)
    worn |= draw_belongings(rng, worn)
    named = name_colors(rng, worn)
    if shared:
        named[f"{alike} accent"] = accents[f"{alike} accent"]
    return build_person(rng, worn, _dye(rng, named, dyes, worn), straps=worn["bag"] == "shoulder bag")


def _pick_color(rng: np.random.Generator, what: str) -> str:
    return pick(rng, dict(zip(COLORS, _COLOR_WEIGHTS[what], strict=True)))


def _draw_outfit(rng: np.random.Generator, gender: str) -> dict[str, str]:
    lower = pick(rng, _LOWER[gender])
    lower_pattern = pick(rng, {"plain": 92, "striped": 4, "checked": 4})
    colors = {f"{part} color": _pick_color(rng, part) for part in ("upper", "lower")}
    denim = pick(rng, _JEANS)
    if lower == "jeans":
        colors["lower color"] = denim
    plain = lower in ("jeans", "leggings")
    return colors | {
        "upper": pick(rng, _UPPER[gender]),
        "upper pattern": pick(rng, _PATTERN),
        "lower": lower,
        "lower pattern": "plain" if plain else lower_pattern,
    }


def _draw_rare(rng: np.random.Generator, gender: str) -> dict[str, str]:
    kind = pick(rng, _RARE_UPPER[gender])
    return {"upper": kind} if kind else {}


def _fit_together(rng: np.random.Generator, worn: Mapping[str, str]) -> dict[str, str]:
    """Return what has to change so that the garments go together, and the shoes."""
    changed: dict[str, str] = {}
    if worn["upper"] in ("suit", "coat", "jacket", "tank top") and worn["upper pattern"] not in ("plain", "striped"):
        changed["upper pattern"] = "plain"
    if worn["upper"] == "coat" and worn["lower"] == "shorts":
        changed["lower"] = "trousers"
    if worn["upper"] == "suit":
        changed |= {"lower": "trousers", "lower pattern": "plain", "upper color": worn["lower color"]}
    if worn["upper"] == "dress":
        pattern = "plain" if worn["upper pattern"] in ("logo", "two-tone") else worn["upper pattern"]
        changed |= {"lower": "dress", "upper pattern": pattern, "lower pattern": pattern}
        changed["lower color"] = worn["upper color"]
    light = changed.get("lower", worn["lower"]) in ("shorts", "skirt", "dress")
    return changed | {
        "shoes": pick(rng, {"sneakers": 66, "dress shoes": 12, "boots": 8, "sandals": 14 if light else 0})
    }


def _draw_dye(rng: np.random.Generator) -> _Dye:
    """Draw how gray, how bright and how tinted a color comes out."""
    return rng.uniform(0.1, 0.5), float(np.clip(rng.normal(1.0, 0.28), 0.5, 1.6)), rng.normal(0, 3, 3)


def _dye(
    rng: np.random.Generator, named: Mapping[str, tuple[int, int, int]], dyes: Mapping[str, _Dye], worn: Mapping
) -> dict[str, Color]:
    shades = {}
    for part, rgb in named.items():
        gray, bright, tint = dyes.get(part) or _draw_dye(rng)
        color = np.array(rgb, dtype=float)
        color += _GRAYED.get(part, gray) * (color @ (0.3, 0.6, 0.1) - color)
        red, green, blue = np.clip(color * (1 if part == "skin" else bright) + tint, 8, 248).tolist()
        shades[part] = linear((red, green, blue))
    if worn["upper"] in ("dress", "suit"):
        shades |= {"lower": shades["upper"], "lower accent": shades["upper accent"]}
    return shades
