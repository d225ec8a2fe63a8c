"""Sentences from attributes, captions from answers, and what is found wrong with them."""

from random import Random

import numpy as np
import pytest

from agreid_plugin.captioning.answers import Rules, check_answer, clean, find_contradictions, write_hint
from agreid_plugin.captioning.attribute_words import parse_appearance
from agreid_plugin.captioning.backends import compose
from agreid_plugin.errors import InputError
from agreid_plugin.synth.captions import caption
from agreid_plugin.synth.people import sample_person
from agreid_plugin.synth.vocabulary import cp2108_labels, qut_labels

QUT = {"gender": "female", "age": "middle", "haircolor": "black", "hairstyle": "horsetail", "glasses": "sun"}
QUT |= {"upper": "tshirt", "lower": "leggins", "feet": "sportshoe", "bag": "rolling", "beard": "off", "ethnic": "asian"}
CP2108 = {"Gender": "Male", "Upper Clothing": "Coat", "Upper Color": "Navy", "Upper Style": "Striped", "View": "Front"}
CP2108 |= {"Lower Clothing": "Shorts", "Lower Color": "Red", "Accessories": "Nothing", "Illumination": "Low_Light"}


def sayings(attributes: dict[str, str]) -> set[str]:
    return {compose(attributes, Random(seed)) for seed in range(60)}


def test_attributes_of_two_datasets_become_the_same_words():
    assert parse_appearance(QUT).parts == {
        "gender": "woman",
        "age": "middle-aged",
        "ethnicity": "asian",
        "hair color": "black",
        "hair style": "ponytail",
        "glasses": "sunglasses",
        "upper": "t-shirt",
        "lower": "leggings",
        "shoes": "sports shoes",
        "bag": "rolling suitcase",
    }
    looks = parse_appearance(CP2108)
    assert looks.parts["upper style"] == "striped"
    assert looks.absent == {"bag"}
    assert "front" not in looks.parts.values()


def test_composed_sentences_tell_everything_once():
    for text in sayings(QUT):
        for word in ("middle-aged woman", "black hair in a ponytail", "a t-shirt", "leggings", "sports shoes"):
            assert text.count(word) == 1, text
        assert "a rolling suitcase" in text
        assert "sunglasses" in text
        assert not any(word in text for word in ("asian", "beard", "None", "  ", "a leggings"))
        assert text[0].isupper()
        assert text.endswith(".")
    assert len(sayings(QUT)) > 20
    assert all("a striped navy coat and red shorts" in text for text in sayings(CP2108))
    assert not any("carr" in text or "light" in text for text in sayings(CP2108))


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({}, ""),
        ({"View": "Back", "beard": "unknown", "gender": ""}, ""),
        ({"gender": "male", "age": "child"}, "This is a boy."),
        ({"age": "34", "tattoo": "yes"}, "A person aged 34 has a tattoo."),
        ({"scarf color": "Red", "logo": "nike"}, "A person has a red scarf and a nike logo."),
        ({"hat": "1", "backpack": "0", "hair": "bald"}, None),
        ({"hair": "long", "hair color": "blond"}, "A person has long blond hair."),
        ({"pose": "Walking", "height": "180"}, "A person is walking."),
    ],
)
def test_names_of_any_kind_give_sensible_text(attributes, text):
    if text is None:
        assert all("a hat" in said and "a bald head" in said and "backpack" not in said for said in sayings(attributes))
    else:
        assert sayings(attributes) == {text}


@pytest.mark.parametrize(
    ("attributes", "phrase"),
    [
        ({"upper": "long_sleeve", "upper color": "blue"}, "a blue long-sleeved top"),
        ({"Upper Style": "Logo", "Upper Clothing": "T-shirt"}, "a t-shirt with a logo"),
        ({"upper": "uniform", "lower": "uniform"}, "a uniform"),
        ({"lower color": "orange"}, "orange bottoms"),
        ({"umbrella": "yes", "umbrella color": "orange"}, "an orange umbrella"),
    ],
)
def test_garments_have_their_article_and_noun(attributes, phrase):
    for text in sayings(attributes):
        assert text.count(phrase) == 1
        assert len(text.split()) <= 10


def test_no_sentence_contradicts_what_it_was_made_of():
    for pid in range(60):
        own = sample_person(0, pid).attributes
        for attributes in (own, qut_labels(own), cp2108_labels(own, "Walking", "Front", "Low_Light")):
            verdict = check_answer(compose(attributes, Random(pid)), attributes=attributes)
            assert not verdict.problem, verdict
            assert not verdict.flags, verdict


def test_a_caption_fits_its_own_person_and_no_other():
    """AG-Synth words its captions by other rules than ours."""
    people = [sample_person(0, pid).attributes for pid in range(41)]
    for pid in range(40):
        there = {part for part in ("hat", "bag", "umbrella") if people[pid][part] not in ("none", "no")}
        seen = dict.fromkeys(there | {"upper", "lower", "shoes"}, 1000)
        text = caption(people[pid], seen, True, np.random.default_rng(pid))
        for attributes in (people[pid], qut_labels(people[pid])):
            assert find_contradictions(text, attributes) == []
        assert find_contradictions(text, people[pid + 1])


@pytest.mark.parametrize(
    ("text", "attributes", "found"),
    [
        ("A man in a blue shirt.", {"Upper Color": "Red"}, ["upper color is red, the text says blue"]),
        ("A man in a red shirt and blue jeans.", {"Upper Color": "Red", "Lower Color": "navy"}, []),
        ("A man in a black jacket over a red shirt.", {"Upper Color": "Red"}, []),
        ("She wears a black and white striped top.", {"upper color": "white"}, []),
        ("She wears blue jeans and shirt.", {"upper color": "white"}, []),
        ("A dark-green coat.", {"upper color": "gray"}, ["upper color is gray, the text says green"]),
        ("A shirt in blue, and boots.", {"upper color": "red"}, ["upper color is red, the text says blue"]),
        ("A man with his bag.", {"gender": "female"}, ["gender is woman, the text says man"]),
        ("A woman beside a man.", {"gender": "female"}, []),
        ("An elderly person.", {"age": "young"}, ["age is young, the text says elderly"]),
        ("A person with long brown hair.", {"hairstyle": "short"}, ["hair is short, the text says long"]),
        ("A person with brown hair.", {"haircolor": "black"}, ["hair color is black, the text says brown"]),
        ("A person in gray trousers.", {"lower": "shorts"}, ["lower is shorts, the text says trousers"]),
        ("A person in gray pants.", {"lower": "jeans"}, []),
        ("A person with a backpack.", {"bag": "nothing"}, ["bag is none, the text says backpack"]),
        ("A person with no backpack, without glasses.", {"bag": "nothing", "glasses": "off"}, []),
        ("A person in sunglasses.", {"glasses": "off"}, ["glasses is none, the text says sunglasses"]),
        ("A person in a colorful shirt.", {"upper color": "multicolor"}, []),
    ],
)
def test_contradictions(text, attributes, found):
    assert find_contradictions(text, attributes) == found


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        ("**A man** in a `red` coat", "template", "A man in a red coat."),
        ('"a man in a coat."', "template", "A man in a coat."),
        ("Caption: A man in a coat.\n", "prompt", "A man in a coat."),
        ("<think>Is it\na man?</think>A man in a coat.", "template", "A man in a coat."),
        ("The image shows a man in a coat.", "template", "A man in a coat."),
        ("Sure, here it is:\n\nA man in a coat.", "template", "A man in a coat."),
        ("- Age: young\n- Top: red\n\nA young man in red.", "prompt", "A young man in red."),
        ("**Age:** young\n**Top:** red\nIn one sentence: A young man.", "prompt", "A young man."),
        ("## Person\nA man in a coat.\nHe has a bag.", "template", "A man in a coat. He has a bag."),
        ("First I look.\nA man in a coat.", "prompt", "A man in a coat."),
        ("He\u2019s in a  coat\ud800", "template", "He's in a coat?"),
        ("", "prompt", ""),
        (" \n* \n", "prompt", ""),
    ],
)
def test_clean_leaves_the_sentence(answer, kind, text):
    assert clean(answer, kind) == text


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "empty"),
        ("...", "empty"),
        ("I'm sorry, but I can't describe people in images.", "refusal"),
        ("As an AI, I have no eyes to see this person with.", "refusal"),
        ("A man in a coat.", "too short: 5 words"),
        ("A man " + "in a coat " * 30, "too long: 92 words"),
        ("A Man in a red coat and boots.", "repeats the other caption"),
        ("A woman in a red coat and boots.", ""),
    ],
)
def test_what_cannot_be_used(answer, problem):
    assert check_answer(answer, others=["A man in a red coat and boots."]).problem == problem


def test_an_answer_cut_off_cannot_be_used():
    assert check_answer("A woman in a red coat and", cut=True).problem == "cut off"


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("A man seen from above in an aerial drone shot.", {"viewpoint": ("from above", "aerial", "drone")}),
        ("A bird's-eye, top-down CCTV view of a man.", {"viewpoint": ("bird's-eye", "top-down", "cctv")}),
        ("A man with a camera in a streetwear parka and cargo pants.", {}),
        ("A man in a coat walks on the street by a car.", {"background": ("street", "car")}),
        ("A man wears a coat. He has a bag.", {"sentences": ("2 sentences",)}),
        ("A man wears a coat with 上衣 on it.", {"foreign": ("上衣",)}),
        ("A man wears a caf\u00e9-colored coat.", {}),
    ],
)
def test_what_is_told_of_a_caption(text, flags):
    assert check_answer(text).flags == flags
    assert not check_answer(text).problem
    assert bool(check_answer(text, rules=Rules(strict=True)).problem) == bool(flags)


def test_the_hint_says_what_was_wrong():
    rules = Rules(4, 30)
    text = write_hint(check_answer("A man.", rules=rules), rules)
    assert "too short: 2 words" in text
    assert "4 to 30 words" in text


def test_rules_are_checked():
    with pytest.raises(InputError, match="captions of 9 to 8 words"):
        Rules(9, 8)
