"""Backends that answer questions about images: a chat endpoint, or sentences composed of attributes without a model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from agreid_plugin.captioning.attribute_words import Appearance, color_families, parse_appearance
from agreid_plugin.captioning.endpoint import Answer, Endpoint, data_url
from agreid_plugin.captioning.images import Subject
from agreid_plugin.captioning.prompts import Question, seeded_random
from agreid_plugin.errors import InputError, first_line

_NOUN = {"upper": "top", "lower": "bottoms", "shoes": "shoes", "head": "hat", "bag": "bag", "umbrella": "umbrella"}
# Values of garments that are no garment: the part's own noun follows them.
_ADJECTIVE = re.compile(r"(.*\b)?(sleeves?|sleeved|sleeveless|long|short|casual|formal|sporty|striped|checked|plain)")
_SINGULAR_S = ("dress", "cross", "canvas", "cutlass")
_SOUNDS_LIKE_A = ("uni", "use", "one", "eu")  # a uniform
_WHOLE_BODY = ("dress", "suit", "uniform", "bikini", "overalls", "jumpsuit", "robe")
_LENGTHS = ("short", "long", "medium", "shoulder-length", "curly", "straight", "wavy")
MAX_WORDINGS = 40  # tried before a second caption may render the same as the first


@dataclass(frozen=True)
class _Clause:
    """Clause about a person: as the verb of the sentence, or in front of it."""

    finite: tuple[str, ...]
    fronted: tuple[str, ...]
    things: str

    def render(self, rng: Random, fronted: bool = False) -> str:
        return rng.choice(self.fronted if fronted else self.finite).format(self.things)


def compose(attributes: Mapping[str, str], rng: Random) -> str:
    """Describe a person in one sentence.

    It has age, sex, figure, hair, clothing, shoes and belongings where they are known, then other attributes.
    Things that the person does not have, ethnicity, and properties of the picture are left out, as in the captions of
    TAG-PEDES.

    Args:
        attributes: name -> value, in the words of any dataset.
        rng: of the wording.

    Returns:
        The sentence, empty without known attributes.
    """
    appearance = parse_appearance(attributes)
    subject, clauses = _subject(appearance), _clauses(appearance)
    if not clauses:
        return "" if subject == "a person" else f"This is {subject}."
    rng.shuffle(clauses)
    front = f"{clauses.pop().render(rng, fronted=True)}, " if len(clauses) > 1 and rng.random() < 0.5 else ""
    if front:
        subject = rng.choice((subject, "the" + subject[subject.index(" ") :]))
    sentence = f"{front}{subject} {_join([clause.render(rng) for clause in clauses])}."
    return sentence[0].upper() + sentence[1:]


def _subject(appearance: Appearance) -> str:
    age, noun = appearance.parts.get("age", ""), appearance.parts.get("gender", "person")
    height, build = (appearance.parts.get(name, "") for name in ("height", "build"))
    if "child" in (age, height):
        age, height = "", ""
        noun = {"man": "boy", "woman": "girl"}.get(noun, "child")
    after = f" aged {age}" if re.match(r"\d", age) else ""
    figure = [word for word in (height, build) if re.fullmatch(r"[a-z -]+", word)]
    return _add_article(" ".join(filter(None, [*figure, "" if after else age, noun]))) + after


def _clauses(appearance: Appearance) -> list[_Clause]:
    phrases = (
        (_list_worn(appearance), ("is wearing {}", "wears {}", "is dressed in {}"), ("wearing {}", "dressed in {}")),
        (_list_carried(appearance), ("is carrying {}", "carries {}"), ("carrying {}", "with {}")),
        (_list_features(appearance), ("has {}",), ("with {}", "having {}")),
    )
    clauses = [_Clause(finite, fronted, _join(things)) for things, finite, fronted in phrases if things]
    pose = appearance.parts.get("pose", "")
    if re.fullmatch(r"\w+ing", pose):
        clauses.append(_Clause(("is {}",), ("{}",), pose))
    return clauses


def _list_worn(appearance: Appearance) -> list[str]:
    parts = ["upper", "lower", "shoes", "head"]
    if appearance.parts.get("upper") == appearance.parts.get("lower") and appearance.parts.get("upper") in _WHOLE_BODY:
        parts.remove("lower")
    things = [_describe_thing(appearance, part) for part in parts]
    return [thing for thing in things if thing] + [
        _add_article(appearance.parts[p]) for p in ("glasses",) if p in appearance.parts
    ]


def _list_carried(appearance: Appearance) -> list[str]:
    things = [_describe_thing(appearance, part) for part in ("bag", "umbrella")]
    return [thing for thing in things if thing] + [
        _add_article(appearance.parts[p]) for p in ("phone",) if p in appearance.parts
    ]


def _list_features(appearance: Appearance) -> list[str]:
    hair = [_describe_hair(appearance)] if {"hair", "hair color", "hair style"} & appearance.parts.keys() else []
    face = [_add_article(part) for part in ("beard", "moustache") if part in appearance.parts]
    return hair + face + [_describe_other(name, value) for name, value in appearance.others]


def _describe_hair(appearance: Appearance) -> str:
    style = appearance.parts.get("hair style", appearance.parts.get("hair", ""))
    color = appearance.parts.get("hair color", "")
    if style == "bald":
        return "a bald head"
    if style == "medium":
        style = "medium-length"
    if not style or style.split()[-1] in _LENGTHS or style.endswith("length") or color_families(style):
        return " ".join(filter(None, [style, color, "hair"]))
    if style in ("ponytail", "bun", "braid", "braids", "plait"):
        return f"{color} hair in {_add_article(style)}".strip()
    return " ".join(filter(None, [style.removesuffix(" hair"), color, "hair"]))


def _describe_thing(appearance: Appearance, part: str) -> str:
    """Name one thing worn or carried with its color and style, empty if nothing is known of it."""
    kind, color, style = (appearance.parts.get(key, "") for key in (part, f"{part} color", f"{part} style"))
    if part in appearance.absent or not (kind or color or style):
        return ""
    if not kind or _ADJECTIVE.fullmatch(kind):
        kind = f"{re.sub(r'[ -]sleeves?$', '-sleeved', kind)} {_NOUN[part]}".strip()
    after = " with a logo" if style in ("logo", "logos") else ""
    return _add_article(" ".join(filter(None, ["" if after else style, color, kind]))) + after


def _with_article(appearance: Appearance, part: str) -> str:
    return _add_article(appearance.parts[part]) if part in appearance.parts else ""


def _describe_other(name: str, value: str) -> str:
    if color_families(value):
        name = re.sub(r" colou?rs?$", "", name)
    return _add_article(f"{value} {name}".strip())


def _add_article(thing: str) -> str:
    """Put `a` or `an` in front of a thing, unless there are several."""
    last = re.split(r"[ -]", thing)[-1]
    if last.endswith("s") and not last.endswith(_SINGULAR_S):
        return thing
    vowel = thing[0] in "aeiou" and not thing.startswith(_SOUNDS_LIKE_A)
    return f"{'an' if vowel else 'a'} {thing}"


def _join(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


class Backend(Protocol):
    """Answers questions about images, from several threads at once.

    Attributes:
        settings: the settings that its answers depend on, as plain data.
    """

    settings: dict[str, Any]

    def answer(self, subject: Subject, ask: Question, others: Collection[str], hint: str = "") -> Answer:
        """Answer a question.

        Args:
            subject: the image.
            ask: the question.
            others: the image's other captions.
            hint: the fault of the previous answer; empty the first time.
        """


class ModelBackend:
    """Multimodal model behind an endpoint.

    Args:
        endpoint: its endpoint.
        fields: further fields of the requests, as the endpoint has them.
    """

    def __init__(self, endpoint: Endpoint, fields: dict[str, Any] | None = None):
        self.endpoint = endpoint
        # The address is not among them: a model may move to another port.
        self.settings = {"backend": "endpoint", "model": endpoint.model, "request": fields or {}}

    def answer(self, subject: Subject, ask: Question, others: Collection[str], hint: str = "") -> Answer:  # noqa: ARG002
        """Send the image with the question."""
        try:
            image = data_url(subject.path)
        except OSError as error:
            raise InputError(f"{subject.path}: unreadable image ({first_line(error)})") from error
        return self.endpoint.ask(f"{ask.text} {hint}".strip(), image)


class AttributeBackend:
    """Sentences composed of attributes, whatever the question.

    Args:
        seed: of the wording.
    """

    def __init__(self, seed: int = 0):
        self.seed = seed
        self.settings = {"backend": "attributes"}

    def answer(self, subject: Subject, ask: Question, others: Collection[str], hint: str = "") -> Answer:  # noqa: ARG002
        """Compose a sentence that differs from the image's other captions where possible."""
        known = {text.lower() for text in others}
        for wording in range(MAX_WORDINGS):
            text = compose(
                subject.attributes, seeded_random("wording", self.seed, subject.file_path, ask.slot, wording)
            )
            if text.lower() not in known:
                break
        return Answer(text)
