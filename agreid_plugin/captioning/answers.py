"""Captions from a model's answers: cleaning, checks (refusals, length, viewpoint), and contradictions of attributes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from agreid_plugin.captioning.attribute_words import Appearance, color_families, parse_appearance
from agreid_plugin.errors import InputError

MIN_WORDS, MAX_WORDS = 6, 77  # text encoders read 77 tokens

_THOUGHT = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_BULLET = re.compile(r"^(?:[-*•+]|\d+[.)])\s+")
_KEY = re.compile(r"^([A-Z][\w /&()-]{0,40}):\s*")
_CAPTION_KEY = re.compile(r"caption|description|answer|summary|sentence|combined|final", re.IGNORECASE)
_OPENING = re.compile(
    r"^(?:(?:in|from) (?:this|the) (?:image|photo|picture),? (?:there is |we see |we can see )?|"
    r"(?:this|the) (?:image|photo|picture) (?:shows|depicts|features|displays|captures) )",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"\b(?:i'm sorry|i am sorry|i apologi[sz]e|as an ai|as a language model|i cannot|i can't|i'm (?:unable|not able)|"
    r"i am (?:unable|not able)|(?:cannot|can't|unable to) (?:assist|help|provide|identify|determine|see)|"
    r"(?:don't|do not) see (?:an|any|the) image|no image (?:was|is|has been))\b",
    re.IGNORECASE,
)
_VIEWPOINT = re.compile(
    r"\b(?:aerial(?:ly)?|drones?|uav|quadcopter|from above|from overhead|overhead|bird'?s[- ]eye|top[- ]down|"
    r"top view|viewed from|view from|high[- ]angle|low[- ]angle|ground[- ](?:level|view)|cctv|surveillance|"
    r"security camera|camera (?:angle|view)|the camera|(?:view|vantage) ?point|perspective|looking down (?:on|at|from))"
    r"(?![\w-])",
    re.IGNORECASE,
)
_BACKGROUND = re.compile(
    r"\b(?:background|street|sidewalk|pavement|road|crosswalk|grass|lawn|buildings?|wall|trees?|cars?|parking lot|"
    r"floor|on the ground|stairs|staircase|park|campus|plaza|corridor|hallway|indoors?|outdoors?|scene|bench|"
    r"surroundings|setting)(?![\w-])",
    re.IGNORECASE,
)
_FOREIGN = re.compile(r"[\u0370-\u1dff\u2e80-\ud7ff\uf900-\ufaff]+")  # letters that are not Latin
_SENTENCE_END = re.compile(r"[.!?]\s+(?=[A-Z])")
FLAGS = ("viewpoint", "background", "contradiction", "sentences", "foreign")
"""Remarks about a caption that can be used nevertheless."""
_SEX = {
    "man": frozenset(("man", "male", "boy", "gentleman", "guy", "he", "his", "him")),
    "woman": frozenset(("woman", "female", "girl", "lady", "she", "her", "hers")),
}
_AGE = {"young": frozenset(("young", "youthful", "teenage", "teenager")), "elderly": frozenset(("elderly", "senior"))}
_WHOLE = ("dress", "suit", "uniform", "jumpsuit", "overalls")
_NOUNS: dict[str, frozenset[str]] = {
    "upper": frozenset(
        (
            *("shirt", "t-shirt", "tshirt", "tee", "top", "blouse", "sweater", "pullover", "hoodie", "sweatshirt"),
            *("jacket", "coat", "cardigan", "vest", "blazer", "polo", "jumper", "parka", *_WHOLE),
        )
    ),
    "lower": frozenset(
        ("pants", "trousers", "jeans", "shorts", "skirt", "leggings", "slacks", "joggers", "sweatpants", "bottoms")
    ),
    "shoes": frozenset(
        ("shoes", "sneakers", "boots", "sandals", "trainers", "heels", "footwear", "flats", "loafers", "slippers")
    ),
    "hair": frozenset(("hair", "ponytail", "bun")),
    "bag": frozenset(
        ("bag", "backpack", "handbag", "purse", "suitcase", "rucksack", "tote", "briefcase", "luggage", "bags")
    ),
    "head": frozenset(("hat", "cap", "beanie", "helmet")),
    "umbrella": frozenset(("umbrella", "parasol")),
    "glasses": frozenset(("glasses", "sunglasses", "eyeglasses", "spectacles")),
    "beard": frozenset(("beard", "bearded")),
    "phone": frozenset(("phone", "smartphone", "cellphone")),
}
_ANY_NOUN = frozenset().union(*_NOUNS.values())
# What ends the words in front of a noun that belong to it.
_ENDS = frozenset(("with", "over", "under", "in", "on", "of", "wearing", "carrying", "holding", "wears", "carries"))
_ENDS |= {"has", "is", "and", ".", ";", ","}
_REACH = 5  # words in front of a noun that may tell its color
_NEGATION = re.compile(r"\b(?:no|without|not|never|isn't|doesn't|lacks|lacking)\b[^,.;]*")
_LEGS = {
    "shorts": frozenset(("shorts",)),
    "skirt": frozenset(("skirt",)),
    "trousers": frozenset(("pants", "trousers", "jeans", "slacks", "joggers", "sweatpants", "leggings")),
}


@dataclass(frozen=True)
class Rules:
    """Limits that a caption has to keep.

    Attributes:
        fewest: words, at least.
        most: words, at most.
        strict: captions with one of `FLAGS` cannot be used.
    """

    fewest: int = MIN_WORDS
    most: int = MAX_WORDS
    strict: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most:
            raise InputError(f"captions of {self.fewest} to {self.most} words: the first has to be 1 or more, the less")


@dataclass(frozen=True)
class Verdict:
    """A caption with its faults and remarks.

    Attributes:
        text: the caption.
        problem: why it cannot be used; empty if it can.
        flags: one of `FLAGS` -> what was found.
    """

    text: str
    problem: str = ""
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def clean(answer: str, kind: str = "template") -> str:
    """Return the caption in an answer: markdown, thoughts, headings and quotation marks removed, spaces single.

    Asked by `prompt`, models list details first and combine them in the end; the last line that is no list counts.
    """
    answer = answer.encode("utf-8", "replace").decode()  # halves of characters cannot be written down
    text = _THOUGHT.sub(" ", answer).replace("\u2019", "'").replace("\u2018", "'")
    lines = [line.strip() for line in re.sub(r"```\w*", "\n", text).splitlines()]
    prose = [line for line in map(_strip_key, lines) if line]
    if not prose:  # nothing but a list
        prose = [" ".join(_BULLET.sub("", line) for line in lines)]
    chosen = prose[-1] if kind == "prompt" else " ".join(prose)
    plain = re.sub(r"(\*{1,3}|_{2,3}|`)", "", chosen)
    plain = _OPENING.sub("", " ".join(plain.split()).strip("\"'\u201c\u201d ")).strip()
    if plain and plain[-1] not in ".!?":
        plain += "."
    return plain[:1].upper() + plain[1:]


def _strip_key(line: str) -> str:
    """Return a line of an answer without its key, or nothing if it is part of a list or a heading."""
    bare = re.sub(r"[*_`]", "", line)
    if _BULLET.match(line) or line.startswith("#") or bare.endswith(":") or not re.search(r"\w", line):
        return ""
    key = _KEY.match(bare)
    if key is None:
        return line
    return bare[key.end() :] if _CAPTION_KEY.search(key[1]) else ""


def check_answer(
    answer: str,
    kind: str = "template",
    attributes: Mapping[str, str] | None = None,
    others: Collection[str] = (),
    rules: Rules | None = None,
    cut: bool = False,
) -> Verdict:
    """Turn an answer into a caption and check it.

    Args:
        answer: as the model gave it.
        kind: the strategy it was asked by.
        attributes: of the person, to compare with.
        others: the image's other captions.
        rules: the limits.
        cut: the model had to stop before its end.
    """
    rules = rules or Rules()
    text = clean(answer, kind)
    flags = _flags(text, attributes or {})
    problem = _problem(text, others, rules, cut)
    if not problem and rules.strict and flags:
        name, found = next(iter(flags.items()))
        problem = f"{name}: {', '.join(found)}"
    return Verdict(text, problem, flags)


def _problem(text: str, others: Collection[str], rules: Rules, cut: bool) -> str:
    count = len(text.split())
    if not re.search(r"\w", text):
        return "empty"
    if _REFUSAL.search(text):
        return "refusal"
    if cut:
        return "cut off"
    if count < rules.fewest:
        return f"too short: {count} words"
    if count > rules.most:
        return f"too long: {count} words"
    return "repeats the other caption" if text.lower() in {other.lower() for other in others} else ""


def _flags(text: str, attributes: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    ends = len(_SENTENCE_END.findall(text))
    found = {
        "viewpoint": _find_matches(_VIEWPOINT, text),
        "background": _find_matches(_BACKGROUND, text),
        "contradiction": tuple(find_contradictions(text, attributes)),
        "sentences": (f"{ends + 1} sentences",) if ends else (),
        "foreign": _find_matches(_FOREIGN, text),
    }
    return {name: values for name, values in found.items() if values}


def _find_matches(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(match[0].lower() for match in pattern.finditer(text)))


def write_hint(verdict: Verdict, rules: Rules) -> str:
    """Return a sentence to add to the question after an answer that could not be used."""
    return (
        f"Your last answer could not be used ({verdict.problem}). Answer with the description alone, one plain "
        f"sentence of {rules.fewest} to {rules.most} words about the person's appearance, without the background, the "
        "camera or its viewpoint, and without remarks of your own."
    )


def find_contradictions(text: str, attributes: Mapping[str, str]) -> list[str]:
    """Return a line for each attribute that a caption contradicts, found by words, so that only plain cases are.

    Compared are sex, age where it is the opposite, colors of clothing, shoes, hair, bag, hat and umbrella, the length
    of hair, what the legs wear, and things the person does not have. Shades of one color agree, and so does a
    caption of two garments one of which has the color.

    Example:
        >>> find_contradictions("A man in a navy shirt and white shoes.", {"gender": "female", "upper color": "blue"})
        ['gender is woman, the text says man']
    """
    appearance = parse_appearance(attributes)
    tokens = re.findall(r"[a-z]+(?:['-][a-z]+)*|[,.;]", _NEGATION.sub(" ", text.lower()))
    rules = (_sex, _age, _colors, _hair_length, _legs, _absent_things)
    return [line for rule in rules for line in rule(appearance, tokens)]


def _sex(appearance: Appearance, tokens: list[str]) -> Iterator[str]:
    found = {sex for sex, names in _SEX.items() if names & set(tokens)}
    known = appearance.parts.get("gender")
    if known in _SEX and found and known not in found:
        yield f"gender is {known}, the text says {found.pop()}"


def _age(appearance: Appearance, tokens: list[str]) -> Iterator[str]:
    found = {age for age, names in _AGE.items() if names & set(tokens)}
    known = appearance.parts.get("age")
    if known in _AGE and found and known not in found:
        yield f"age is {known}, the text says {found.pop()}"


def _colors(appearance: Appearance, tokens: list[str]) -> Iterator[str]:
    for part in ("upper", "lower", "shoes", "hair", "bag", "head", "umbrella"):
        value = appearance.parts.get(f"{part} color", "")
        known, found = color_families(value), color_families(" ".join(_describing_words(part, tokens)))
        if known and found and not known & found:
            yield f"{part} color is {value}, the text says {' and '.join(sorted(found))}"


def _describing_words(part: str, tokens: list[str]) -> Iterator[str]:
    """Yield the words that describe a part: those in front of its nouns, and `in` a color right behind."""
    for place, token in enumerate(tokens):
        if token not in _NOUNS[part]:
            continue
        yield from _in_front(tokens[max(0, place - _REACH) : place])
        behind = re.match(
            r" in (?:a )?(?:\w+ )?([a-z]+) (?:[,.;]|and|with|$)", " " + " ".join(tokens[place + 1 :]) + " "
        )
        if behind:
            yield behind[1]


def _in_front(before: list[str]) -> Iterator[str]:
    for place in reversed(range(len(before))):
        word = before[place]
        # `black and white shirt` is one garment, `black shoes and shirt` two.
        joins = word in ("and", ",") and place > 0 and color_families(before[place - 1])
        if (word in _ENDS and not joins) or word in _ANY_NOUN:
            return
        yield word


def _hair_length(appearance: Appearance, tokens: list[str]) -> Iterator[str]:
    known = appearance.parts.get("hair style", appearance.parts.get("hair", ""))
    lengths = {"long", "short", "bald"}
    found = ({*_describing_words("hair", tokens)} | ({"bald"} & set(tokens))) & lengths
    if known in lengths and found and known not in found:
        yield f"hair is {known}, the text says {' and '.join(sorted(found))}"


def _legs(appearance: Appearance, tokens: list[str]) -> Iterator[str]:
    known = {kind for kind, names in _LEGS.items() if appearance.parts.get("lower") in names}
    found = {kind for kind, names in _LEGS.items() if names & set(tokens)}
    if known and found and not known & found:
        yield f"lower is {appearance.parts['lower']}, the text says {' and '.join(sorted(found))}"


def _absent_things(appearance: Appearance, tokens: list[str]) -> Iterator[str]:
    for part in sorted(appearance.absent & _NOUNS.keys() - {"upper", "lower", "hair"}):
        found = _NOUNS[part] & set(tokens)
        if found:
            yield f"{part} is none, the text says {' and '.join(sorted(found))}"
