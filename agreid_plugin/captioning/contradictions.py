"""Does a caption say otherwise than the attributes? Found by words, so that only plain cases are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from agreid_plugin.captioning.attribute_words import Looks, read_looks
from agreid_plugin.captioning.colors import families

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


def contradictions(text: str, attributes: Mapping[str, str]) -> list[str]:
    """Return a line for everything a caption says and the attributes deny.

    Compared are sex, age where it is the opposite, colors of clothing, shoes, hair, bag, hat and umbrella, the length
    of hair, what the legs wear, and things the person is said not to have. Shades of one color agree, and so does a
    caption of two garments one of which has the color.

    Example:
        >>> contradictions("A man in a navy shirt and white shoes.", {"gender": "female", "upper color": "blue"})
        ['gender is woman, the text says man']
    """
    looks = read_looks(attributes)
    tokens = re.findall(r"[a-z]+(?:['-][a-z]+)*|[,.;]", _NEGATION.sub(" ", text.lower()))
    rules = (_sex, _age, _colors, _hair_length, _legs, _there)
    return [line for rule in rules for line in rule(looks, tokens)]


def _sex(looks: Looks, tokens: list[str]) -> Iterator[str]:
    said = {sex for sex, names in _SEX.items() if names & set(tokens)}
    known = looks.parts.get("gender")
    if known in _SEX and said and known not in said:
        yield f"gender is {known}, the text says {said.pop()}"


def _age(looks: Looks, tokens: list[str]) -> Iterator[str]:
    said = {age for age, names in _AGE.items() if names & set(tokens)}
    known = looks.parts.get("age")
    if known in _AGE and said and known not in said:
        yield f"age is {known}, the text says {said.pop()}"


def _colors(looks: Looks, tokens: list[str]) -> Iterator[str]:
    for part in ("upper", "lower", "shoes", "hair", "bag", "head", "umbrella"):
        value = looks.parts.get(f"{part} color", "")
        known, said = families(value), families(" ".join(_described(part, tokens)))
        if known and said and not known & said:
            yield f"{part} color is {value}, the text says {' and '.join(sorted(said))}"


def _described(part: str, tokens: list[str]) -> Iterator[str]:
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
        joins = word in ("and", ",") and place > 0 and families(before[place - 1])
        if (word in _ENDS and not joins) or word in _ANY_NOUN:
            return
        yield word


def _hair_length(looks: Looks, tokens: list[str]) -> Iterator[str]:
    known = looks.parts.get("hair style", looks.parts.get("hair", ""))
    lengths = {"long", "short", "bald"}
    said = ({*_described("hair", tokens)} | ({"bald"} & set(tokens))) & lengths
    if known in lengths and said and known not in said:
        yield f"hair is {known}, the text says {' and '.join(sorted(said))}"


def _legs(looks: Looks, tokens: list[str]) -> Iterator[str]:
    known = {kind for kind, names in _LEGS.items() if looks.parts.get("lower") in names}
    said = {kind for kind, names in _LEGS.items() if names & set(tokens)}
    if known and said and not known & said:
        yield f"lower is {looks.parts['lower']}, the text says {' and '.join(sorted(said))}"


def _there(looks: Looks, tokens: list[str]) -> Iterator[str]:
    for part in sorted(looks.absent & _NOUNS.keys() - {"upper", "lower", "hair"}):
        said = _NOUNS[part] & set(tokens)
        if said:
            yield f"{part} is none, the text says {' and '.join(sorted(said))}"
