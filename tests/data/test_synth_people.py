"""AG-Synth's identities and what is said of them."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import pytest

from agreid_plugin.data.attributes import CP2108_APPEARANCE, QUT_GROUPS
from agreid_plugin.synth.captions import FEWEST, MOST, caption, two_captions
from agreid_plugin.synth.people import sample_person
from agreid_plugin.synth.vocabulary import ATTRIBUTES, COLORS, cp2108_labels, cp2108_values, qut_labels

PEOPLE = [sample_person(3, pid) for pid in range(1, 601)]
PARTS = ("upper", "lower", "shoes", "hair", "hat", "bag", "umbrella", "phone", "face", "skin")
DETAILS = ("striped", "checked", "dotted", "logo", "two-tone")
VIEWPOINT = re.compile(
    r"\b(aerial|drones?|uav|above|overhead|top-down|bird\w*|sky|ground|cameras?|cctv|street\w*|viewpoint|views?|viewed|"
    r"angle|below|elevated|altitude|seen from|picture|photo|image|surveillance)\b",
    re.IGNORECASE,
)
NOUNS = {  # words that betray each part
    "upper": "t-shirt|tee|tank|shirt|sweater|pullover|hoodie|sweatshirt|jacket|blazer|coat",
    "lower": "trousers|pants|jeans|leggings|shorts|skirt",
    "shoes": "sneakers|shoes|trainers|boots|sandals",
    "hair": "hair",
    "hat": "cap|beanie|hat",
    "bag": "backpack|rucksack|bag|handbag|suitcase",
    "umbrella": "umbrella",
    "phone": "phone",
}


def everything(person, hidden: str = "") -> dict[str, float]:
    """Return the pixel counts of a person all of whose parts but one are seen well."""
    worn = person.attributes
    absent = {hidden} | {part for part in ("hat", "bag", "umbrella", "phone") if worn[part] in ("none", "no")}
    seen = {part: 300.0 for part in PARTS if part not in absent}
    patterns = [(part, worn[f"{part} pattern"]) for part in ("upper", "lower") if part not in absent]
    seen |= {f"{part}: {pattern}": 50.0 for part, pattern in patterns}
    return seen | {f"face: {detail}": 50.0 for detail in ("beard", "clear glasses", "sun glasses") if hidden != "face"}


def test_at_least_fifteen_attributes_with_values():
    assert len(ATTRIBUTES) >= 15
    assert all(len(set(values)) == len(values) >= 2 for values in ATTRIBUTES.values())


def test_every_value_occurs_and_no_other():
    found = defaultdict(set)
    for person in PEOPLE:
        assert list(person.attributes) == list(ATTRIBUTES)
        for name, value in person.attributes.items():
            found[name].add(value)
    rare = {"shoe color", "bag color", "hat color", "umbrella color", "lower color"}  # some colors are never worn there
    for name, values in ATTRIBUTES.items():
        assert found[name] <= set(values)
        assert name in rare or found[name] == set(values), name


def test_people_are_the_same_again_and_differ_by_seed():
    sample_person.cache_clear()
    assert [sample_person(3, pid) for pid in range(1, 601)] == PEOPLE
    assert not {sample_person(4, pid).height for pid in range(1, 21)} & {p.height for p in PEOPLE}


def test_people_are_confusable_by_color_but_not_the_same():
    looks = [tuple(p.attributes.values()) for p in PEOPLE[:200]]
    assert len(set(looks)) == 200
    colors = [(p.attributes["upper color"], p.attributes["lower color"]) for p in PEOPLE[:200]]
    alike = sum(colors.count(pair) > 1 for pair in colors)
    assert alike > 120


def test_dresses_and_absent_things_are_consistent():
    for person in PEOPLE:
        worn = person.attributes
        assert (worn["upper"] == "dress") == (worn["lower"] == "dress")
        for part in ("hat", "bag"):
            assert (worn[part] == "none") == (worn[f"{part} color"] == "none")
        assert (worn["umbrella"] == "no") == (worn["umbrella color"] == "none")


def test_captions_have_their_length_and_no_viewpoint():
    rng = np.random.default_rng(0)
    for person in PEOPLE[:300]:
        seen = {part: count for part, count in everything(person).items() if rng.random() < 0.8}
        first, second = two_captions(person.attributes, seen, bool(rng.integers(2)), rng)
        assert first != second
        for text in (first, second):
            assert FEWEST == 20 <= len(text.split()) <= 45 == MOST, text
            assert not VIEWPOINT.search(text), text
            assert re.fullmatch(r"([A-Z][^.{}]*\.)( [A-Z][^.{}]*\.)*", text), text


def test_caption_of_nothing_visible_names_nothing():
    rng = np.random.default_rng(0)
    first, second = two_captions(PEOPLE[0].attributes, {}, True, rng)
    for text in (first, second):
        assert 20 <= len(text.split()) <= 45
        assert not re.search("|".join(rf"\b({words})\b" for words in NOUNS.values()), text)
        assert not re.search(rf"\b({'|'.join(COLORS)}|man|woman|he|she|young|elderly)\b", text)


@pytest.mark.parametrize("hidden", NOUNS)
def test_caption_leaves_out_what_is_hidden(hidden):
    rng = np.random.default_rng(1)
    pattern = re.compile(rf"\b({NOUNS[hidden]})\b")
    mentioned = 0
    for person in PEOPLE[:150]:
        if hidden in ("upper", "lower") and person.attributes["upper"] == "dress":
            continue
        mentioned += bool(pattern.search(caption(person.attributes, everything(person), True, rng)))
        assert not pattern.search(caption(person.attributes, everything(person, hidden), True, rng))
    assert mentioned > 0  # seen, it is spoken of


@pytest.mark.parametrize("detail", DETAILS)
def test_caption_speaks_of_a_pattern_only_when_seen(detail):
    words = {"striped": "stripe", "checked": "checked", "dotted": "dot", "logo": "logo", "two-tone": "tone"}[detail]
    rng = np.random.default_rng(2)
    wearers = [
        p for p in PEOPLE if p.attributes["upper pattern"] == detail and p.attributes["lower pattern"] == "plain"
    ]
    texts = [caption(p.attributes, everything(p), True, rng) for p in wearers]
    assert sum(words in text for text in texts) > 0.7 * len(texts) > 0
    for person in wearers:
        unseen = {part: count for part, count in everything(person).items() if part != f"upper: {detail}"}
        assert words not in caption(person.attributes, unseen, True, rng)


def test_captions_are_worded_in_many_ways():
    rng = np.random.default_rng(0)
    person = PEOPLE[0]
    texts = {caption(person.attributes, everything(person), True, rng) for _ in range(100)}
    assert len(texts) > 80
    assert len({" ".join(text.split()[:2]) for text in texts}) > 5


def test_qut_labels_are_among_the_groups():
    for person in PEOPLE:
        labels = qut_labels(person.attributes)
        assert set(labels) == set(QUT_GROUPS)
        assert all(labels[group] in values for group, values in QUT_GROUPS.items())
    sample = dict.fromkeys(ATTRIBUTES, "none") | {
        "gender": "woman",
        "build": "heavy",
        "hair style": "ponytail",
        "hair color": "blond",
        "upper": "suit",
        "lower": "trousers",
        "bag": "none",
        "umbrella": "yes",
    }
    labels = qut_labels(sample)
    assert (labels["gender"], labels["weight"], labels["hairstyle"]) == ("female", "fat", "horsetail")
    assert (labels["upper"], labels["lower"], labels["bag"], labels["haircolor"]) == (
        "suit",
        "suit",
        "umbrella",
        "unknown",
    )


def test_cp2108_labels_are_among_the_values():
    values = cp2108_values()
    assert len(values) == 22
    assert set(CP2108_APPEARANCE) <= set(values)
    for indices in values.values():
        assert sorted(indices.values()) == list(range(len(indices)))
    for person in PEOPLE:
        labels = cp2108_labels(person.attributes, "Walking", "Side", "Normal_Light")
        assert set(labels) == set(values)
        assert all(labels[name] in values[name] for name in values)
