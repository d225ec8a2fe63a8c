"""The sentences, letter by letter, and where their prompts stand among CLIP's tokens."""

import pytest

from agreid_plugin.data.attributes import AttributeSchema
from agreid_plugin.data.sentences import (
    FIRST_PROMPT,
    PROMPTS,
    STYLES,
    VIEW_WORD,
    build_attribute_sentence,
    build_view_sentence,
    prompt_positions,
    view_word_position,
)
from agreid_plugin.errors import InputError
from agreid_plugin.types import UNKNOWN

POSE = {"Pose": "walking", "Upper Color": "White"}
SPACES = "A photo of a X X X X  person"  # two blanks, as released


@pytest.mark.parametrize(
    ("style", "attributes", "sentence"),
    [
        ("paper", POSE, "A photo of a X X X X person with attributes: Pose is walking, Upper Color is White."),
        ("released", POSE, f"{SPACES} with the following attributes: Pose is walking, Upper_Color is White."),
        ("released-cp2108", POSE, f"{SPACES} with the following attributes: Pose is walking, Upper_Color is White."),
        (
            "released",
            {"gender": "male", "age": "young"},
            f"{SPACES} with the following attributes: gender is male, age is young.",
        ),
        ("paper", {}, "A photo of a X X X X person. Attributes are unknown."),
        ("released", {}, f"{SPACES}. Attributes are unknown."),
        ("released-cp2108", {}, f"{SPACES}."),
    ],
)
def test_every_style_to_the_letter(style, attributes, sentence):
    assert build_attribute_sentence(attributes, style) == sentence


def test_the_papers_words_are_the_default():
    assert build_attribute_sentence(POSE) == build_attribute_sentence(POSE, "paper")
    assert STYLES == ("paper", "released", "released-cp2108")


def test_view_sentence():
    assert build_view_sentence("aerial") == "A photo of a X X X X person from aerial view."
    assert build_view_sentence("ground", prompts=2) == "A photo of a X X person from ground view."


def test_attributes_are_told_in_the_schemas_order_and_unknown_ones_are_not():
    schema = AttributeSchema({"bag": ("none", "backpack"), "age": ("young", "old"), "hair": ("long", "unknown")})
    labels = schema.encode({"age": "old", "bag": "backpack"})
    assert labels == (1, 1, UNKNOWN)
    told = "person with attributes: bag is backpack, age is old."
    assert build_attribute_sentence(schema.decode(labels)).endswith(told)
    assert build_attribute_sentence(schema.decode((1, 1, 1))).endswith(told)  # a value may say itself that nobody knows
    assert build_attribute_sentence({"hair": "Unknown"}) == build_attribute_sentence({})


@pytest.mark.parametrize("prompts", [1, 4, 6])
def test_prompts_and_the_view_word_are_where_they_are_said_to_be(prompts):
    # CLIP puts one token before the words, and each of these words is one token.
    words = ["<start>", *build_view_sentence("aerial", prompts).removesuffix(".").split()]
    assert words[prompt_positions(prompts)] == ["X"] * prompts
    assert words[prompt_positions(prompts).stop] == "person"
    assert words[view_word_position(prompts)] == "aerial"
    told = ["<start>", *build_attribute_sentence(POSE, "released", prompts).split()]
    assert told[prompt_positions(prompts)] == ["X"] * prompts


def test_four_prompts_are_tokens_5_to_8_and_the_view_is_token_11():
    assert (FIRST_PROMPT, PROMPTS, VIEW_WORD) == (5, 4, 11)
    assert prompt_positions() == slice(5, 9)
    assert view_word_position() == 11


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: build_attribute_sentence({}, "relased"), "'relased' unknown (did you mean released?)"),
        (lambda: build_attribute_sentence({}, prompts=0), "prompts=0 should be 1 or more"),
        (lambda: build_view_sentence("aerial", prompts=0), "prompts=0 should be 1 or more"),
    ],
)
def test_what_cannot_be_written_is_named(call, words):
    with pytest.raises(InputError) as error:
        call()
    assert words in str(error.value)
