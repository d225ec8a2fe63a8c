"""Splits of one's own images by people, and the table that keeps them."""

from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from conftest import assert_one_line
from data import trees

from agreid_plugin.data.datasets import load
from agreid_plugin.data.people_split import set_cameras, split_people, write_table
from agreid_plugin.errors import InputError
from agreid_plugin.types import Record, View


def person(pid: int, *cameras: int) -> list[Record]:
    return [Record(f"{pid}-{place}.jpg", pid, camera) for place, camera in enumerate(cameras)]


def splits(records: list[Record], pid: int) -> list[str]:
    return [record.split for record in records if record.pid == pid]


def test_a_person_is_trained_on_or_looked_for_by_one_image_a_camera():
    records = [image for pid in range(20) for image in person(pid, 1, 1, 2, 2, 3)]
    split = split_people(records)
    assert {record.path for record in split} == {record.path for record in records}
    found = Counter(tuple(splits(split, pid)) for pid in range(20))
    assert found == {("train",) * 5: 10, ("query", "gallery", "query", "gallery", "gallery"): 10}
    assert split == split_people(records[::-1])
    assert split != split_people(records, seed=1)
    assert sum(record.split == "train" for record in split_people(records, test_share=0.1)) == 18 * 5


def test_who_cannot_be_found_is_trained_on():
    split = split_people([*person(0, 1, 1, 1), *person(1, -1), *person(2, 1, 2), *person(3, -1, -1)], test_share=1)
    assert [splits(split, pid) for pid in range(4)] == [
        ["train"] * 3,
        ["train"],
        ["query", "gallery"],
        ["query", "gallery"],
    ]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (person(0, 1, 1), "no person can be matched"),
        ([*person(0, 1, 2), *person(1, 1, 2)], "all 2 people are for tests"),
    ],
)
def test_what_cannot_be_split_is_refused(records, words):
    with pytest.raises(InputError, match=words):
        split_people(records, test_share=1)


def test_cameras_by_the_numbers_of_pictures():
    records = [Record("a.jpg", 1, tags={"number": text}) for text in ("1", "40", "041")]
    cameras = {range(1, 41): 7, range(41, 91): 8}
    assert [(each.camera, each.view) for each in set_cameras(records, cameras, ["08"])] == [
        *((7, View.GROUND), (7, View.GROUND)),
        (8, View.AERIAL),
    ]
    assert [each.view for each in set_cameras(records, cameras)] == [None] * 3
    for record, words in (
        (Record("a.jpg", 1, tags={"number": "91"}), "number 91 is in 0"),
        (Record("a.jpg", 1), "no group"),
    ):
        with pytest.raises(InputError, match=rf"a\.jpg: which camera\? .*{words}"):
            set_cameras([record], cameras)


def test_a_table_says_what_is_known(tmp_path):
    trees.write_images(tmp_path, ["own/a.jpg", "b.jpg"])
    known = {
        "attributes": {"hair": "long"},
        "captions": ("A man.", "He, who."),
        "tags": {"identity": "anna", "time": "9"},
    }
    records = [
        Record(str(tmp_path / "own/a.jpg"), 0, 3, View.AERIAL, "uav", "query", **known),
        Record(str(tmp_path / "b.jpg"), 1, split="gallery", tags={"identity": "bob"}),
    ]
    write_table(tmp_path / "own" / "t.csv", records)
    assert list(load("csv", tmp_path / "own" / "t.csv").records) == records[::-1]  # in the order of paths
    assert (tmp_path / "own" / "t.csv").read_text().splitlines()[1].startswith("a.jpg,anna,query,3,aerial,uav,")
    with pytest.raises(InputError, match=r"1 image cannot stand in a table.*a\\nb\.jpg: rename"):
        write_table(tmp_path / "u.csv", [Record("a\nb.jpg", 1)])


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (["{0}/IMG_{1}{2}.jpg"], ["--identity-folders"]),
        (["p{0}-{1}_c{2}.jpg"], ["--pattern", r"p(?P<pid>\d+)-\d_c(?P<camera>\d)"]),
        (
            ["p{0}-{2}{1}.jpg"],
            [
                "--pattern",
                r"p(?P<pid>\d+)-(?P<number>\d+)",
                "--number-cameras",
                "0-9=1",
                "10-19=2",
                "--aerial-cameras",
                2,
            ],
        ),
    ],
)
def test_a_folder_becomes_a_table_that_can_be_evaluated(fastreid_command, tmp_path, names, options):
    paths = [name.format(*numbers) for name in names for numbers in product(range(4), range(3), range(2))]
    trees.write_images(tmp_path / "photos", paths)
    make = ("data", "make-table", "folder", "--root", tmp_path / "photos", "--out", tmp_path / "t.csv", *options)
    outcome = fastreid_command(*make)
    assert outcome.code == 0, outcome.err
    assert "problem:" not in outcome.out
    assert [line.split()[:3] for line in outcome.out.splitlines()[2:3]] == [["train", "2", "12"]]
    assert_one_line(fastreid_command(*make), "--out", "exists already")
    found = load("csv", tmp_path / "t.csv")
    assert {Path(record.path).parent.parent.name for record in found.records} <= {"photos", tmp_path.name}
    assert {record.split for record in found.records} == {"train", "query", "gallery"}


def test_a_range_of_numbers_has_a_form(fastreid_command, tmp_path):
    make = ("data", "make-table", "folder", "--root", tmp_path, "--out", tmp_path / "t.csv", "--number-cameras", "1-40")
    assert_one_line(fastreid_command(*make), "'1-40' is not FIRST-LAST=CAMERA, for example 1-40=2")
