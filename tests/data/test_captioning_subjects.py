"""Whom to describe: images, identities, and attributes from files."""

from pathlib import Path

import pytest
import trees
from caption_subjects import NAMES, with_file

from agreid_plugin.captioning import add_attributes, choose_evenly, find_unreadable, load_subjects
from agreid_plugin.errors import InputError

pytest_plugins = ("caption_fixtures",)


def test_attributes_of_images_go_before_those_of_identities(caption_subjects, tmp_path):
    told = {
        "1": {"age": "old", "hair": "unknown"},
        "0001_c2.jpg": {"age": "young", "phone": True},
        "99": {"age": "old"},
    }
    described = with_file(caption_subjects, tmp_path, told)
    assert [dict(subject.attributes) for subject in described[:3]] == [
        {"age": "old"},
        {"age": "young", "phone": "yes"},
        {},
    ]


def test_attributes_from_a_table(caption_subjects, tmp_path):
    table = trees.write_text(tmp_path / "a.csv", "path,id,Upper Color,age\n,2,Red,\n./0005_c1.jpg,,,old\n")
    described = add_attributes(caption_subjects, table)
    assert [dict(subject.attributes) for subject in described[2:]] == [
        {"Upper Color": "Red"},
        {"Upper Color": "Red"},
        {"age": "old"},
        {},
    ]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "who,age\n1,old\n", "line 2 names no image and no identity; it needs one of the columns path"),
        ("a.csv", "id,age\n1,old\n1,young\n", "line 3: '1' is there twice"),
        ("a.csv", "id,age\n77,old\n", "none of its 1 keys, first '77', is a path or an identity"),
        ("a.csv", "id,age\n1,unknown\n", "no attribute of any identity"),
        ("a.json", '{"1": "old"}', "'1' is a str, expected attribute -> value"),
        ("a.json", '{"1": {"age": [3]}}', "'1': 'age' is a list, expected a text or a number"),
        ("a.json", "[]", "expected a dict"),
        ("a.json", "{", "not JSON"),
    ],
)
def test_bad_attribute_files_are_told(caption_subjects, tmp_path, name, text, words):
    with pytest.raises(InputError, match=words):
        add_attributes(caption_subjects, trees.write_text(tmp_path / name, text))


def test_identities_with_names_have_attributes_too(tmp_path):
    trees.write_images(tmp_path / "crops", ["anna/1.jpg", "ben/2.jpg"])
    subjects = load_subjects("folder", tmp_path / "crops", identity_folders=True)
    described = with_file(subjects, tmp_path, {"ben": {"age": "old"}})
    assert [(s.file_path, s.pid, dict(s.attributes)) for s in described] == [
        ("anna/1.jpg", 0, {}),
        ("ben/2.jpg", 1, {"age": "old"}),
    ]


def test_a_few_images_are_spread_over_all(caption_subjects):
    assert [subject.file_path for subject in choose_evenly(caption_subjects, 3)] == NAMES[::2]
    assert choose_evenly(caption_subjects, 99) == caption_subjects
    with pytest.raises(InputError, match="limit is 0"):
        choose_evenly(caption_subjects, 0)


def test_unreadable_images_are_found(caption_subjects):
    Path(caption_subjects[1].path).write_bytes(b"")
    Path(caption_subjects[4].path).write_bytes(b"not an image")
    faults = find_unreadable(caption_subjects)
    assert list(faults) == [NAMES[1], NAMES[4]]
    assert faults[NAMES[1]] == "empty file, 0 bytes"


def test_a_name_that_annotations_cannot_have_is_found(tmp_path):
    trees.write_images(tmp_path, ["1_c1.jpg", "1_c2_\udcff.jpg", "1_c3_a\nb.jpg"])
    faults = find_unreadable(load_subjects("folder", tmp_path))
    assert faults == {"1_c2_\udcff.jpg": "its name is not UTF-8"}  # JSON can write line breaks
