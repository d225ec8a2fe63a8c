import json

import pytest

from agreid_plugin.errors import InputError
from agreid_plugin.synth.on_demand import make_missing

SMALL = {"ids": 8, "images_per_id": 4, "size": (32, 16)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    make_missing(root, ["CARGO", "CARGO"], **SMALL)
    return root


def test_a_missing_dataset_is_made_as_asked(made):
    options = json.loads((made / "CARGO" / "agsynth.json").read_text())
    assert options == {"ids": 8, "images_per_id": 4, "size": [32, 16], "layout": "cargo", "seed": 0, "world": "easy"}


def test_what_is_there_stays(made):
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    make_missing(made, ["CARGO"], **SMALL)
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


def test_nothing_is_made_without_people(tmp_path):
    make_missing(tmp_path / "no", ["CARGO", "Market1501"], ids=0)
    assert not (tmp_path / "no").exists()


def test_other_pictures_are_refused(made):
    with pytest.raises(
        InputError,
        match=r"holds AG-Synth with seed 0 instead of 1; name another DATASETS\.ROOT, .* set DATASETS\.AGSYNTH\.IDS 0",
    ):
        make_missing(made, ["CARGO"], **SMALL, seed=1)
    with pytest.raises(
        InputError, match=r"images_per_id 4 instead of 6; name another data_root, .* set agsynth\.ids 0"
    ):
        make_missing(made, ["CARGO"], **SMALL | {"images_per_id": 6}, key="agsynth")


def test_the_world_is_part_of_what_is_asked_for(made, tmp_path):
    with pytest.raises(InputError, match=r"holds AG-Synth with world easy instead of gap"):
        make_missing(made, ["CARGO"], **SMALL, world="gap")
    with pytest.raises(InputError, match=r"DATASETS\.AGSYNTH\.WORLD 'gaap' unknown \(did you mean gap\?\)"):
        make_missing(tmp_path, ["CARGO"], **SMALL, world="gaap")
    before = tmp_path / "before" / "CARGO"
    before.mkdir(parents=True)
    (before / "agsynth.json").write_text(
        '{"ids": 8, "images_per_id": 4, "size": [32, 16], "layout": "cargo", "seed": 0}'
    )
    make_missing(before.parent, ["CARGO"], **SMALL)  # from when there was one world


def test_another_dataset_is_not_overwritten(tmp_path):
    (tmp_path / "CARGO").mkdir()
    (tmp_path / "CARGO" / "mine.jpg").touch()
    with pytest.raises(InputError, match="CARGO holds a dataset that is not AG-Synth"):
        make_missing(tmp_path, ["CARGO"], **SMALL)
    assert [path.name for path in (tmp_path / "CARGO").iterdir()] == ["mine.jpg"]


@pytest.mark.parametrize(("content", "words"), [('{"ids": 8,', "not JSON"), ("[8]", "expected a dict, found a list")])
def test_a_damaged_marker_is_one_line(tmp_path, content, words):
    (tmp_path / "CARGO").mkdir()
    (tmp_path / "CARGO" / "agsynth.json").write_text(content)
    with pytest.raises(InputError, match=rf"agsynth\.json: {words}"):
        make_missing(tmp_path, ["CARGO"], **SMALL)


def test_a_dataset_without_a_layout_is_named(tmp_path):
    with pytest.raises(InputError, match=r"AGSYNTH\.IDS: AG-Synth has no layout of Market1501; it has .*CARGO"):
        make_missing(tmp_path, ["Market1501"], **SMALL)
    assert not list(tmp_path.iterdir())
