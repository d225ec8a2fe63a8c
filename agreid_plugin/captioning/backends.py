"""Backends that answer questions about images: a chat endpoint, or sentences composed of attributes without a model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from agreid_plugin.captioning.attribute_words import Looks, families, read_looks
from agreid_plugin.captioning.endpoint import Answer, Endpoint, data_url
from agreid_plugin.captioning.images import Subject
from agreid_plugin.captioning.prompts import Ask, stream
from agreid_plugin.errors import InputError, first_line

_NOUN = {"upper": "top", "lower": "bottoms", "shoes": "shoes", "head": "hat", "bag": "bag", "umbrella": "umbrella"}
# Values of garments that are no garment: the part's own noun follows them.
_ADJECTIVE = re.compile(r"(.*\b)?(sleeves?|sleeved|sleeveless|long|short|casual|formal|sporty|striped|checked|plain)")
_SINGULAR_S = ("dress", "cross", "canvas", "cutlass")
_SOUNDS_LIKE_A = ("uni", "use", "one", "eu")  # a uniform
_WHOLE_BODY = ("dress", "suit", "uniform", "bikini", "overalls", "jumpsuit", "robe")
_LENGTHS = ("short", "long", "medium", "shoulder-length", "curly", "straight", "wavy")
WORDINGS = 40  # tried before a second caption may say the same as the first


@dataclass(frozen=True)
class _Clause:
    """Something to say of a person: as the verb of the sentence, or in front of it."""

    finite: tuple[str, ...]
    fronted: tuple[str, ...]
    things: str

    def say(self, rng: Random, fronted: bool = False) -> str:
        return rng.choice(self.fronted if fronted else self.finite).format(self.things)


def compose(attributes: Mapping[str, str], rng: Random) -> str:
    """Describe a person in one sentence.

    Age, sex, figure, hair, clothing, shoes and belongings are told where they are known, and attributes with other
    names behind them. What the person does not have, ethnicity, and what the picture rather than the person is like
    stay unsaid, as in the captions of TAG-PEDES.

    Args:
        attributes: name -> value, in the words of any dataset.
        rng: of the wording.

    Returns:
        The sentence, empty if the attributes say nothing.
    """
    looks = read_looks(attributes)
    subject, clauses = _subject(looks), _clauses(looks)
    if not clauses:
        return "" if subject == "a person" else f"This is {subject}."
    rng.shuffle(clauses)
    front = f"{clauses.pop().say(rng, fronted=True)}, " if len(clauses) > 1 and rng.random() < 0.5 else ""
    if front:
        subject = rng.choice((subject, "the" + subject[subject.index(" ") :]))
    sentence = f"{front}{subject} {_join([clause.say(rng) for clause in clauses])}."
    return sentence[0].upper() + sentence[1:]


def _subject(looks: Looks) -> str:
    age, noun = looks.parts.get("age", ""), looks.parts.get("gender", "person")
    height, build = (looks.parts.get(name, "") for name in ("height", "build"))
    if "child" in (age, height):
        age, height = "", ""
        noun = {"man": "boy", "woman": "girl"}.get(noun, "child")
    after = f" aged {age}" if re.match(r"\d", age) else ""
    figure = [word for word in (height, build) if re.fullmatch(r"[a-z -]+", word)]
    return _a(" ".join(filter(None, [*figure, "" if after else age, noun]))) + after


def _clauses(looks: Looks) -> list[_Clause]:
    said = (
        (_worn(looks), ("is wearing {}", "wears {}", "is dressed in {}"), ("wearing {}", "dressed in {}")),
        (_carried(looks), ("is carrying {}", "carries {}"), ("carrying {}", "with {}")),
        (_features(looks), ("has {}",), ("with {}", "having {}")),
    )
    clauses = [_Clause(finite, fronted, _join(things)) for things, finite, fronted in said if things]
    pose = looks.parts.get("pose", "")
    if re.fullmatch(r"\w+ing", pose):
        clauses.append(_Clause(("is {}",), ("{}",), pose))
    return clauses


def _worn(looks: Looks) -> list[str]:
    parts = ["upper", "lower", "shoes", "head"]
    if looks.parts.get("upper") == looks.parts.get("lower") and looks.parts.get("upper") in _WHOLE_BODY:
        parts.remove("lower")
    things = [_thing(looks, part) for part in parts]
    return [thing for thing in things if thing] + [_a(looks.parts[p]) for p in ("glasses",) if p in looks.parts]


def _carried(looks: Looks) -> list[str]:
    things = [_thing(looks, part) for part in ("bag", "umbrella")]
    return [thing for thing in things if thing] + [_a(looks.parts[p]) for p in ("phone",) if p in looks.parts]


def _features(looks: Looks) -> list[str]:
    hair = [_hair(looks)] if {"hair", "hair color", "hair style"} & looks.parts.keys() else []
    face = [_a(part) for part in ("beard", "moustache") if part in looks.parts]
    return hair + face + [_other(name, value) for name, value in looks.others]


def _hair(looks: Looks) -> str:
    style = looks.parts.get("hair style", looks.parts.get("hair", ""))
    color = looks.parts.get("hair color", "")
    if style == "bald":
        return "a bald head"
    if style == "medium":
        style = "medium-length"
    if not style or style.split()[-1] in _LENGTHS or style.endswith("length") or families(style):
        return " ".join(filter(None, [style, color, "hair"]))
    if style in ("ponytail", "bun", "braid", "braids", "plait"):
        return f"{color} hair in {_a(style)}".strip()
    return " ".join(filter(None, [style.removesuffix(" hair"), color, "hair"]))


def _thing(looks: Looks, part: str) -> str:
    """Name one thing worn or carried with its color and style, empty if nothing is known of it."""
    kind, color, style = (looks.parts.get(key, "") for key in (part, f"{part} color", f"{part} style"))
    if part in looks.absent or not (kind or color or style):
        return ""
    if not kind or _ADJECTIVE.fullmatch(kind):
        kind = f"{re.sub(r'[ -]sleeves?$', '-sleeved', kind)} {_NOUN[part]}".strip()
    after = " with a logo" if style in ("logo", "logos") else ""
    return _a(" ".join(filter(None, ["" if after else style, color, kind]))) + after


def _other(name: str, value: str) -> str:
    if families(value):
        name = re.sub(r" colou?rs?$", "", name)
    return _a(f"{value} {name}".strip())


def _a(thing: str) -> str:
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
        settings: what its answers depend on, as plain data.
    """

    settings: dict[str, Any]

    def answer(self, subject: Subject, ask: Ask, said: Collection[str], hint: str = "") -> Answer:
        """Answer a question.

        Args:
            subject: the image.
            ask: the question.
            said: the image's other captions.
            hint: what was wrong with the answer before this one; empty the first time.
        """


class ModelBackend:
    """Asks a multimodal model.

    Args:
        endpoint: where it is.
        fields: of the requests besides, as the endpoint was given them.
    """

    def __init__(self, endpoint: Endpoint, fields: dict[str, Any] | None = None):
        self.endpoint = endpoint
        # The address is not among them: a model may move to another port.
        self.settings = {"backend": "endpoint", "model": endpoint.model, "request": fields or {}}

    def answer(self, subject: Subject, ask: Ask, said: Collection[str], hint: str = "") -> Answer:  # noqa: ARG002
        """Send the image with the question."""
        try:
            image = data_url(subject.path)
        except OSError as error:
            raise InputError(f"{subject.path}: unreadable image ({first_line(error)})") from error
        return self.endpoint.ask(f"{ask.text} {hint}".strip(), image)


class AttributeBackend:
    """Puts the attributes into a sentence, whatever is asked.

    Args:
        seed: of the wording.
    """

    def __init__(self, seed: int = 0):
        self.seed = seed
        self.settings = {"backend": "attributes"}

    def answer(self, subject: Subject, ask: Ask, said: Collection[str], hint: str = "") -> Answer:  # noqa: ARG002
        """Word the attributes, otherwise than the image's other captions where there is another way."""
        known = {text.lower() for text in said}
        for wording in range(WORDINGS):
            text = compose(subject.attributes, stream("wording", self.seed, subject.file_path, ask.slot, wording))
            if text.lower() not in known:
                break
        return Answer(text)
