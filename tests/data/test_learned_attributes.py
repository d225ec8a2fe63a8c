"""Attributes to learn, on sets of two and three people."""

import logging

import pytest

from agreid_plugin.data.attributes import (
    AttributeSchema,
    build_schema,
    check_labels,
    require_described,
    schema_from_rows,
    schema_to_rows,
)
from agreid_plugin.data.datasets import Dataset
from agreid_plugin.errors import InputError
from agreid_plugin.types import Record

HAT = ("no", "yes")
MAN = Record("man.jpg", 1, attributes={"hat": "yes"}, split="train")
BOY = Record("boy.jpg", 2, attributes={"hat": "no", "age": "young"}, split="train")
DOG = Record("dog.jpg", 3, split="train")


def dataset(name="A", groups=None, **kwargs) -> Dataset:
    return Dataset(name, "", (MAN, BOY, DOG), groups=groups or {}, **kwargs)


def test_rows_are_read_as_they_are_written():
    schema = AttributeSchema({"hat": HAT, "age": ("young",)})
    assert schema_to_rows(schema) == [["hat", ["no", "yes"]], ["age", ["young"]]]
    assert schema_from_rows(schema_to_rows(schema)) == schema


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["hat"], "rows should be [name, [value, ...]], not 'hat'"),
        ([["hat", []]], "rows should be [name, [value, ...]], not ['hat', []]"),
        ([["hat", [False]]], "value False of 'hat' is no text; put it in quotes"),
        ([["hat", ["no", "no"]]], "'hat' has a value twice"),
        ([["hat", ["no"]], ["hat", ["yes"]]], "'hat' is named twice"),
    ],
)
def test_rows_that_are_none(rows, words):
    with pytest.raises(InputError) as error:
        schema_from_rows(rows)
    assert str(error.value) == words


def test_several_sets_have_the_attributes_of_all():
    first, second = dataset(groups={"hat": HAT}), dataset("B", {"age": ("old", "young"), "hat": HAT})
    assert build_schema([first, second]).groups == {"hat": HAT, "age": ("old", "young")}
    assert build_schema([first, second], ["age"]).groups == {"age": ("old", "young")}
    assert build_schema([Dataset("C", "", (DOG,))]) is None


def test_sets_that_disagree_may_only_learn_the_rest():
    sets = [dataset(groups={"hat": HAT, "age": ("young",)}), dataset("B", {"hat": HAT[::-1]})]
    assert build_schema(sets, ["age"]).names == ("age",)
    with pytest.raises(InputError, match="the training sets give the attribute 'hat' different values"):
        build_schema(sets)


@pytest.mark.parametrize(("sets", "where"), [([Dataset("C", "", (DOG,))], "C"), ([], "a dataset of the host's")])
def test_attributes_of_sets_that_have_none(sets, where):
    with pytest.raises(InputError) as error:
        build_schema(sets, ["hat"])
    assert str(error.value) == f"hat cannot be had of {where}: is the attribute file there?"


def test_people_whom_the_file_does_not_know():
    told = dataset(attribute_file="attributes.json", undescribed=(3, 4))
    require_described(told, [MAN, BOY], "missing True")
    with pytest.raises(InputError) as error:
        require_described(told, [MAN, DOG, DOG], "missing True")
    assert str(error.value) == (
        "attributes.json lacks 1 training identities of A, for example 3: complete it, or set missing True to learn "
        "from the others"
    )


def test_how_much_is_known_is_told(caplog):
    schema = AttributeSchema({"hat": HAT, "age": ("young",), "beard": HAT})
    with caplog.at_level(logging.INFO):
        check_labels(schema, [MAN, BOY, DOG], 4, logging.getLogger("told"))
    share = 100 * 3 / (3 * 4)  # three labels of three attributes and four images, one of which is of another set
    assert caplog.messages == [
        f"3 attributes, known of {share:.1f} % of the training images",
        "no training image has a label of beard: nothing is learned of it",
    ]


def test_a_value_that_the_schema_lacks():
    with pytest.raises(InputError) as error:
        check_labels(AttributeSchema({"hat": ("no", "yse")}), [MAN], 1, logging.getLogger("told"))
    assert str(error.value).startswith("no place for what man.jpg has: value of attribute 'hat' 'yes' unknown (did you")
