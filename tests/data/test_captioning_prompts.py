"""What the model is asked: the paper's prompts, our templates, two questions an image."""

import re
from collections import Counter

import pytest

from agreid_plugin.captioning.prompts import TEMPLATES, build_questions, format_attributes, pick_template
from agreid_plugin.errors import InputError

SLOTS = {"clothing description", "footwear description", "hair description", "accessory description"}
SLOTS |= {"belongings description", "person/woman/man"}


def kinds(name: str, attributes: dict, strategy: str = "paper", seed: int = 0) -> tuple[str, ...]:
    return tuple(ask.kind for ask in build_questions(name, attributes, strategy, seed))


def test_the_prompt_is_the_papers():
    (ask,) = build_questions("a.jpg", {}, "prompt")
    assert ask.text == (
        "Don't mention the background of the people in the image. Please provide a detailed description of this "
        "person's age, gender, top (including color and style), bottom (including color and style), hair (including "
        "color and style), shoes (including color and style), belongings (including color and style). Finally, combine "
        "all the details into a single sentence."
    )


def test_the_template_prompt_is_the_papers():
    (ask,) = build_questions("a.jpg", {}, "template", seed=3)
    assert ask.text == (
        "Generate a description about the overall appearance of the person, in a style similar to the template: "
        f"{pick_template(3, 'a.jpg')}. If some requirements in the template are not visible, you can ignore. Do not "
        "imagine any contents not in the image."
    )


def test_the_attribute_prompt_is_the_papers():
    (ask,) = build_questions(
        "a.jpg", {"Age": "Young", "Gender": "Male", "View": "Front", "Upper Color": "Unknown"}, "attribute"
    )
    assert ask.text == (
        "Generate a description about the overall appearance of the person, based on the attribute: age: young, "
        f"gender: male, in a style similar to the template: {pick_template(0, 'a.jpg')}. If some requirements in the "
        "template are not visible, you can ignore. Do not imagine any contents that are not in the image."
    )


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"haircolor": "black", "hairstyle": "horsetail"}, "hair color: black, hair style: ponytail"),
        ({"Holding Phone": "No", "beard": "on"}, "holding phone: no, beard: yes"),
        ({"Illumination": "Low_Light", "hat color": "none"}, ""),
        ({"feet": "sportshoe", "Upper Style": "Two_Tone"}, "feet: sports shoes, upper style: two tone"),
        ({"carries {x}": "a {y}"}, "carries {x}: a {y}"),
    ],
)
def test_label_is_for_people_to_read(attributes, text):
    assert format_attributes(attributes) == text


def test_two_questions_an_image_as_in_the_paper():
    known = {"gender": "male"}
    names = [f"{number}.jpg" for number in range(200)]
    assert {kinds(name, {}) for name in names} == {("prompt", "template")}
    drawn = Counter(kinds(name, known) for name in names)
    assert drawn.keys() == {("attribute", "prompt"), ("attribute", "template")}
    assert 60 < drawn["attribute", "prompt"] < 140  # 200 fair coins: 100 +- 7
    assert kinds("1.jpg", {"Illumination": "Low_Light"}) == ("prompt", "template")  # nothing about the person


def test_a_named_strategy_asks_once():
    assert kinds("a.jpg", {"gender": "male"}, "template") == ("template",)
    with pytest.raises(InputError, match=r"a\.jpg: strategy 'attribute' needs attributes"):
        build_questions("a.jpg", {}, "attribute")
    with pytest.raises(InputError, match=r"'promt' unknown \(did you mean prompt\?\)"):
        build_questions("a.jpg", {}, "promt")


def test_questions_depend_on_seed_and_name_alone():
    names = [f"{number}.jpg" for number in range(50)]
    first, again, other = ([build_questions(name, {"age": "old"}, seed=seed) for name in names] for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len({pick_template(1, name) for name in names}) > 20
    assert pick_template(0, "a.jpg") == TEMPLATES[17]  # the same on every machine


def test_templates_keep_to_the_grammar():
    assert len(TEMPLATES) == len(set(TEMPLATES)) == 40
    for template in TEMPLATES:
        slots = re.findall(r"\[(.+?)\]", template)
        assert set(slots) <= SLOTS
        assert "clothing description" in slots
        assert slots.count("person/woman/man") == 1
        assert len(slots) == len(set(slots)) >= 4
        assert not template.endswith((".", " "))
        assert "  " not in template
    assert {slot for template in TEMPLATES for slot in re.findall(r"\[(.+?)\]", template)} == SLOTS


def test_a_question_is_told_from_another():
    ask, other = build_questions("a.jpg", {"age": "old"})
    assert ask.digest({"age": "old"}) == ask.digest({"age": "old"})
    assert len({ask.digest({"age": "old"}), other.digest({"age": "old"}), ask.digest({"age": "young"})}) == 3
