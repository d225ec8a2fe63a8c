"""Captions of the visible attributes of a person in one picture.

A caption is built from phrases for what is visible, in a random order and wording: 20 to 45 words, and never one
about where the picture was taken from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

FEWEST, MOST = 20, 45

_NEEDED = {"upper": 20, "lower": 14, "shoes": 6, "hair": 8, "hat": 8, "bag": 12, "umbrella": 12, "phone": 2}
_NEEDED_DETAIL = 5  # pixels of a pattern, of glasses, of a beard
_NEEDED_BODY = 150  # pixels of a person before its sex, age and figure can be seen

_NOUNS = {
    "sneakers": ("{} sneakers", "{} sports shoes", "{} trainers"),
    "dress shoes": ("{} dress shoes", "{} leather shoes"),
    "boots": ("{} boots", "high {} boots"),
    "sandals": ("{} sandals", "open {} sandals"),
    "t-shirt": ("{} t-shirt", "short-sleeved {} t-shirt", "{} tee"),
    "tank top": ("{} tank top", "sleeveless {} tank top"),
    "shirt": ("{} shirt", "long-sleeved {} shirt", "{} button-up shirt"),
    "sweater": ("{} sweater", "{} pullover", "knitted {} sweater"),
    "hoodie": ("{} hoodie", "hooded {} sweatshirt"),
    "jacket": ("{} jacket", "open {} jacket"),
    "suit": ("{} suit jacket", "{} blazer"),
    "coat": ("{} coat", "long {} coat"),
    "dress": ("{} dress", "knee-length {} dress"),
    "trousers": ("{} trousers", "{} pants", "long {} trousers"),
    "jeans": ("{} jeans", "{} denim jeans"),
    "leggings": ("{} leggings", "tight {} leggings"),
    "shorts": ("{} shorts", "knee-length {} shorts"),
    "skirt": ("{} skirt", "flared {} skirt"),
    "cap": ("{} cap", "{} baseball cap"),
    "beanie": ("{} beanie", "{} woolen beanie"),
    "sun hat": ("{} sun hat", "wide-brimmed {} hat"),
    "backpack": ("{} backpack", "{} rucksack"),
    "shoulder bag": ("{} shoulder bag", "{} crossbody bag"),
    "handbag": ("{} handbag", "small {} handbag"),
    "shopping bag": ("{} shopping bag", "large {} shopping bag"),
    "suitcase": ("{} suitcase", "{} rolling suitcase"),
}
_PLURAL = ("sneakers", "dress shoes", "boots", "sandals", "trousers", "jeans", "leggings", "shorts")
_HAIR = {
    "short": "short {} hair",
    "medium": "chin-length {} hair",
    "long": "long {} hair",
    "ponytail": "{} hair tied in a ponytail",
    "bun": "{} hair gathered in a bun",
}
_FIGURE = {"slim": "a slim figure", "medium": "an average build", "heavy": "a heavy build"}
_BEFORE = {"striped": "striped", "checked": "checked", "dotted": "dotted", "two-tone": "two-tone"}
_AFTER = {
    "striped": "with stripes",
    "checked": "in a checked pattern",
    "dotted": "with dots all over",
    "two-tone": "in two tones",
    "logo": "with a printed logo",
}
_FILLERS = (
    "The whole outfit looks neat and quite ordinary.",
    "Nothing about the appearance seems unusual for someone out on a normal day.",
    "The clothing fits the body well.",
)


@dataclass(frozen=True)
class _Clause:
    """Something to say: as the verb of a sentence, or in front of it. `{}` stands for the things named."""

    things: str
    finite: tuple[str, ...]
    fronted: tuple[str, ...]


class _Speaker:
    """One caption's random choices, and what it may speak of."""

    def __init__(self, attributes: Mapping[str, str], seen: Mapping[str, float], rng: np.random.Generator) -> None:
        self.attributes = attributes
        self.seen = seen
        self.rng = rng
        self.sure = sum(count for part, count in seen.items() if ":" not in part) >= _NEEDED_BODY
        self.gender = attributes["gender"] if self.sure else "person"

    def pick(self, *options: str) -> str:
        return options[self.rng.integers(len(options))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def sees(self, part: str) -> bool:
        return self.seen.get(part, 0) >= _NEEDED.get(part, _NEEDED_DETAIL)

    def subject(self) -> str:
        nouns = {"man": ("man", "male pedestrian"), "woman": ("woman", "female pedestrian")}
        noun = self.pick(*nouns.get(self.gender, ("person", "pedestrian")))
        return _a(f"{self.attributes['age']} {noun}" if self.sure and self.chance(0.75) else noun)

    def pronoun(self) -> str:
        return {"man": "he", "woman": "she"}.get(self.gender, "the person")


def _a(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _join(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _garment(speaker: _Speaker, part: str, color: str) -> str:
    kind, pattern = speaker.attributes[part], speaker.attributes.get(f"{part} pattern", "plain")
    shade, after = speaker.attributes[color], ""
    if pattern != "plain" and speaker.sees(f"{part}: {pattern}"):
        if pattern in _BEFORE and speaker.chance(0.5):
            shade = f"{_BEFORE[pattern]} {shade}"
        else:
            after = f" {_AFTER[pattern]}"
    words = speaker.pick(*_NOUNS[kind]).format(shade) + after
    if kind in _PLURAL:
        return speaker.pick(words, f"a pair of {words}")
    return _a(words)


def _worn(speaker: _Speaker) -> list[str]:
    """Name what is visibly worn; a dress is named once."""
    parts = {"upper": "upper color", "lower": "lower color", "shoes": "shoe color"}
    if speaker.attributes["upper"] == "dress":
        parts.pop("lower" if speaker.sees("upper") else "upper")
    items = [_garment(speaker, part, color) for part, color in parts.items() if speaker.sees(part)]
    items += _extras(speaker)
    return items[::-1] if speaker.chance(0.25) else items


def _looks(speaker: _Speaker) -> list[str]:
    given, items = speaker.attributes, []
    if given["hair style"] == "bald":
        items += ["a bald head"] if given["hat"] == "none" and speaker.seen.get("face", 0) >= _NEEDED["hair"] else []
    elif speaker.sees("hair"):
        items.append(_HAIR[given["hair style"]].format(given["hair color"]))
    if given["beard"] == "yes" and speaker.sees("face: beard"):
        items.append("a beard")
    if speaker.sure and speaker.chance(0.35):
        items.append(_FIGURE[given["build"]])
    return items


def _extras(speaker: _Speaker) -> list[str]:
    given, items = speaker.attributes, []
    if speaker.sees("hat"):
        items.append(_garment(speaker, "hat", "hat color"))
    if given["glasses"] != "none" and speaker.sees(f"face: {given['glasses']} glasses"):
        items.append("sunglasses" if given["glasses"] == "sun" else "glasses")
    return items


def _list_carried(speaker: _Speaker) -> list[str]:
    items = [_garment(speaker, "bag", "bag color")] if speaker.sees("bag") else []
    if speaker.sees("umbrella"):
        items.append(_a(f"{speaker.attributes['umbrella color']} umbrella"))
    return items + (["a phone"] if speaker.sees("phone") else [])


def _clauses(speaker: _Speaker, walking: bool) -> list[_Clause]:
    """Return the clauses about a person, the most distinctive first."""
    moves = ("walking", "walking along", "taking a step") if walking else ("standing", "standing still")
    phrases = (
        (
            _worn(speaker),
            ("is wearing {}", "wears {}", "is dressed in {}", "has on {}"),
            ("dressed in {}", "wearing {}"),
        ),
        (_list_carried(speaker), ("is carrying {}", "carries {}", "can be seen with {}"), ("carrying {}", "with {}")),
        (_looks(speaker), ("has {}", "shows {}"), ("with {}",)),
    )
    clauses = [_Clause(_join(items), finite, fronted) for items, finite, fronted in phrases if items]
    if not clauses or speaker.chance(0.4):
        clauses.append(_Clause("", tuple(f"is {move}" for move in moves), moves[:2]))
    return clauses


def _sentences(speaker: _Speaker, walking: bool) -> list[str]:
    """Join all clauses in a random order; one may stand in front of the first verb, two may share a sentence."""
    clauses = _clauses(speaker, walking)
    order = [clauses[place] for place in speaker.rng.permutation(len(clauses))]
    opening = ""
    if len(order) > 1 and speaker.chance(0.5):
        first = order.pop(0)
        opening = speaker.pick(*first.fronted).format(first.things) + ", "
    verbs = [speaker.pick(*clause.finite).format(clause.things) for clause in order]
    if len(verbs) > 2 and speaker.chance(0.5):
        last = verbs.pop()
        verbs[-1] += f" and {last}"
    who = [speaker.subject()] + [speaker.pronoun()] * (len(verbs) - 1)
    sentences = [f"{subject} {verb}." for subject, verb in zip(who, verbs, strict=True)]
    return [opening + sentences[0], *sentences[1:]]


def _fit(sentences: list[str], speaker: _Speaker, walking: bool) -> str:
    """Bring a caption to its length: leave out what comes last, or add what is true of everyone."""
    while len(" ".join(sentences).split()) > MOST and len(sentences) > 1:
        sentences.pop()
    pace = "moving at an easy pace" if walking else "not moving at the moment"
    spare = [f"{speaker.pronoun()} is {pace}.", *_FILLERS]
    while len(" ".join(sentences).split()) < FEWEST:
        sentences.append(spare.pop(speaker.rng.integers(len(spare))))
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


def caption(attributes: Mapping[str, str], seen: Mapping[str, float], walking: bool, rng: np.random.Generator) -> str:
    """Describe a person in one picture.

    Args:
        attributes: of the person, as `Person.attributes`.
        seen: how many pixels show each part, as `Picture.seen`.
        walking: whether the person walks.
        rng: of the wording.
    """
    speaker = _Speaker(attributes, seen, rng)
    return _fit(_sentences(speaker, walking), speaker, walking)


def two_captions(
    attributes: Mapping[str, str], seen: Mapping[str, float], walking: bool, rng: np.random.Generator
) -> tuple[str, str]:
    """Describe a person twice, in different words."""
    first = second = caption(attributes, seen, walking, rng)
    while second == first:
        second = caption(attributes, seen, walking, rng)
    return first, second
