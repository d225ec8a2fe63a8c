"""AG-Synth on disk: the same bytes again, nothing lost, and every layout read back by its parser."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest
from conftest import slow
from PIL import Image

from agreid_plugin.data.attributes import CP2108_KINDS, QUT_GROUPS
from agreid_plugin.data.datasets import load
from agreid_plugin.errors import InputError
from agreid_plugin.synth import LAYOUTS, contact_sheet, make, make_agsynth
from agreid_plugin.synth.people import sample_person
from agreid_plugin.synth.plan import plan
from agreid_plugin.synth.vocabulary import cp2108_labels, qut_labels
from agreid_plugin.types import UNKNOWN, View

SMALL = {"ids": 4, "images_per_id": 8, "size": (32, 16), "progress": False}
NAMES = {
    "cargo": "CARGO",
    "ag-reid-v2": "AG-ReID.v2",
    "cp2108": "CP2108",
    "tag-pedes": "TAG-PEDES",
    "csv": "AG-Synth",
}


def digest(folder: Path) -> dict[str, str]:
    """Return every file's path and a hash of its bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A root holding a tiny AG-Synth in every layout."""
    root = tmp_path_factory.mktemp("agsynth")
    for layout in LAYOUTS:
        assert make_agsynth(root, layout=layout, workers=2, **SMALL) == root / NAMES[layout]
    return root


def test_every_layout_has_a_folder_of_its_own(made):
    assert tuple(NAMES) == LAYOUTS
    assert sorted(path.name for path in made.iterdir()) == sorted(NAMES.values())


@pytest.mark.parametrize("layout", [LAYOUTS[0], *slow(*LAYOUTS[1:])])
def test_same_bytes_whatever_the_workers(made, tmp_path, layout):
    for workers in (1, 3):
        again = make_agsynth(tmp_path / str(workers), layout=layout, workers=workers, **SMALL)
        assert digest(again) == digest(made / NAMES[layout])


def test_another_seed_is_another_dataset(made, tmp_path):
    other = digest(make_agsynth(tmp_path, seed=1, workers=1, **SMALL))
    mine = digest(made / "CARGO")
    assert not set(other.values()) & set(mine.values())


def test_mat_file_tells_no_time(made):
    header = (made / "AG-ReID.v2" / "qut_attribute_v8.mat").read_bytes()[:116]
    assert header.startswith(b"MATLAB 5.0 MAT-file")
    assert b"Created" not in header


def test_pictures_have_one_size_and_no_notes(made):
    for path in made.rglob("*.jpg"):
        with Image.open(path) as image:
            assert image.size == (16, 32)
            assert set(image.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}


def test_plan_by_hand():
    """Four identities with eight pictures: two to train, two to test with one aerial and two ground queries each."""
    frames = plan(0, 4, 8)
    assert Counter(f.split for f in frames) == {"train": 16, "query": 6, "gallery": 10}
    for pid in range(1, 5):
        mine = [f for f in frames if f.pid == pid]
        assert [f.index for f in mine] == list(range(8))
        assert sum(f.camera <= 5 for f in mine) == 4
        assert len({f.camera for f in mine}) == 8
        assert Counter(f.camera >= 10 for f in mine if f.camera >= 6) == {False: 2, True: 2}
        assert {f.night for f in mine} == ({True, False} if pid % 2 == 0 else {False})
        assert {f.split for f in mine} == ({"train"} if pid <= 2 else {"query", "gallery"})


def test_plan_has_a_few_more_queries_only_when_the_gallery_allows():
    query = [f.camera for f in plan(0, 4, 6) if f.split == "query"]
    assert sum(c <= 5 for c in query) == 2
    assert sum(c > 5 for c in query) == 2


def test_cargo_read_back(made):
    data = load("CARGO", made)
    assert Counter(r.split for r in data.records) == {"train": 16, "query": 6, "gallery": 10}
    assert not data.notes or all("read from" in note for note in data.notes)
    frames = {(f.pid, f.camera, "night" if f.night else "day", f.split) for f in plan(0, 4, 8)}
    assert {(r.pid, r.camera, r.tags["time"], r.split) for r in data.records} == frames
    assert all((r.view == View.AERIAL) == (r.camera <= 5) for r in data.records)


def test_the_table_has_all_attributes(made):
    data = load("csv", made / "AG-Synth")
    assert Counter(r.split for r in data.records) == {"train": 16, "query": 6, "gallery": 10}
    assert Counter(r.platform for r in data.records) == {"uav": 16, "wearable": 8, "cctv": 8}
    for record in data.records:
        person = sample_person(0, record.pid).attributes
        assert {name: record.attributes[name] for name in person} == dict(person)
        assert record.attributes.keys() - person.keys() == {"pose", "facing"}
        assert len(record.captions) == 2
        assert record.tags["time"] in ("day", "night")
        assert (record.view == View.AERIAL) == (record.platform == "uav")


def test_ag_reid_v2_read_back(made):
    data = load("AG-ReID.v2", made)
    assert Counter(r.split for r in data.records) == {"train": 16, "query": 6, "gallery": 10}
    assert Counter(r.platform for r in data.records) == {"uav": 16, "wearable": 8, "cctv": 8}
    sides = {
        file: [Counter(r.platform for r in side) for side in (both.query, both.gallery)]
        for file, both in data.lists.items()
    }
    assert sides == {
        "exp1_aerial_to_cctv.txt": [{"uav": 2}, {"cctv": 2}],
        "exp2_aerial_to_wearable.txt": [{"uav": 2}, {"wearable": 2}],
        "exp4_cctv_to_aerial.txt": [{"cctv": 2}, {"uav": 6}],
        "exp5_wearable_to_aerial.txt": [{"wearable": 2}, {"uav": 6}],
    }
    assert tuple(data.groups) == tuple(QUT_GROUPS)
    for number in range(1, 5):
        pid = int(f"{number:04d}010100")
        expected = {g: v for g, v in qut_labels(sample_person(0, number).attributes).items() if v != "unknown"}
        records = [r for r in data.records if r.pid == pid]
        assert len(records) == 8
        assert all(r.attributes == expected for r in records)


def test_cp2108_read_back(made):
    data = load("CP2108", made)
    assert Counter(r.split for r in data.records) == {"train": 16, "query": 6, "gallery": 10}
    assert {r.camera for r in data.records if r.view == View.GROUND} <= set(range(1, 9))
    assert {r.camera for r in data.records if r.view == View.AERIAL} == set(range(23, 28))
    keys = json.loads((made / "CP2108" / "attributes_labeled_qwen.json").read_text())
    # Odd identities have two views at one time, even ones two views at two times.
    assert len(keys) == 2 * 2 + 2 * 4
    for record in data.records:
        assert len(record.attributes) == 21  # all but Ethnicity, which is unknown
        assert record.attributes["Upper Color"].lower() == sample_person(0, record.pid).attributes["upper color"]
        assert 20 <= len(record.captions[0].split()) <= 45
    times = {pid: {r.tags["time"] for r in data.records if r.pid == pid} for pid in range(1, 5)}
    assert times == {1: {"1"}, 2: {"0", "1"}, 3: {"1"}, 4: {"0", "1"}}
    for query in (r for r in data.records if r.split == "query" and r.pid == 4):
        gallery = [r for r in data.records if r.split == "gallery" and r.pid == 4]
        assert any(r.tags["time"] != query.tags["time"] for r in gallery)


def test_cp2108_labels_are_the_peoples_and_their_values_are_listed(made):
    folder = made / "CP2108"
    values = json.loads((folder / "attr_translation_idx.json").read_text())
    entries = json.loads((folder / "attributes_labeled_qwen.json").read_text())
    assert set(values) == {name for names in CP2108_KINDS.values() for name in names}
    assert all(list(indices.values()) == list(range(len(indices))) for indices in values.values())
    for key, told in entries.items():
        pid, _, time = map(int, key.split("_"))
        assert set(told) == set(values)
        assert all(value in values[name] for name, value in told.items())
        seen = {name: told[name] for name in ("Pose", "View")}
        light = "Normal_Light" if time else "Low_Light"
        assert told == cp2108_labels(sample_person(0, pid).attributes, seen["Pose"], seen["View"], light)


def test_cp2108_attributes_of_the_image_are_those_of_its_view_and_time(made):
    entries = json.loads((made / "CP2108" / "attributes_labeled_qwen.json").read_text())
    records = load("CP2108", made, attribute_level="image").records
    for record in records:
        told = entries[f"{record.pid}_{int(record.view == View.AERIAL)}_{record.tags['time']}"]
        assert record.attributes == {name: value for name, value in told.items() if value != "Unknown"}
    assert {r.attributes["Illumination"] for r in records} == {"Normal_Light", "Low_Light"}
    assert {r.attributes["Illumination"] for r in load("CP2108", made).records} == {"Normal_Light"}


@pytest.mark.parametrize(("layout", "sizes"), [("ag-reid-v2", 88), ("cp2108", 121)])
def test_most_attributes_of_most_people_are_known(made, layout, sizes):
    data = load(NAMES[layout], made)
    labels = [label for record in data.records for label in data.schema.encode(record)]
    assert sum(data.schema.sizes) == sizes
    assert sum(label != UNKNOWN for label in labels) > 0.85 * len(labels)
    assert data.undescribed == ()


def test_tag_pedes_read_back(made):
    data = load("TAG-PEDES", made)
    assert Counter(r.split for r in data.records) == {"train": 16, "test": 16}
    assert Counter(r.view for r in data.records) == {View.AERIAL: 16, View.GROUND: 16}
    assert {r.pid for r in data.records if r.split == "train"} == {1, 2}
    for record in data.records:
        assert record.tags["source"] == "AG-Synth"
        assert (record.view == View.AERIAL) == (int(Path(record.path).stem.split("_")[1]) <= 5)  # pid_camera_index
        assert len(set(record.captions)) == 2


@pytest.mark.parametrize("layout", ["cargo", "ag-reid-v2", "cp2108"])
def test_every_query_has_a_match_in_the_other_view(made, layout):
    records = load(NAMES[layout], made).records
    gallery = {(r.pid, r.view) for r in records if r.split == "gallery"}
    queries = [r for r in records if r.split == "query"]
    assert {r.view for r in queries} == {View.AERIAL, View.GROUND}
    for query in queries:
        assert (query.pid, View(1 - query.view)) in gallery


def test_others_may_read_it(made):
    assert (made / "CARGO").stat().st_mode & 0o055 == 0o055


def test_full_folder_is_refused_and_kept(tmp_path):
    (tmp_path / "CARGO").mkdir()
    mine = tmp_path / "CARGO" / "mine.txt"
    mine.write_text("precious")
    with pytest.raises(InputError, match=r"CARGO is not empty; .* overwrite"):
        make_agsynth(tmp_path, workers=1, **SMALL)
    assert digest(tmp_path).keys() == {"CARGO/mine.txt"}
    assert mine.read_text() == "precious"


def test_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "CARGO").write_text("a file")
    with pytest.raises(InputError, match="CARGO is a file"):
        make_agsynth(tmp_path, workers=1, overwrite=True, **SMALL)


def test_empty_folder_is_filled(tmp_path, made):
    (tmp_path / "CARGO").mkdir()
    assert digest(make_agsynth(tmp_path, workers=1, **SMALL)) == digest(made / "CARGO")


def test_overwrite_replaces_the_dataset_alone(tmp_path, made):
    (tmp_path / "CARGO").mkdir()
    (tmp_path / "CARGO" / "old.txt").write_text("old")
    (tmp_path / "CP2108").mkdir()
    (tmp_path / "CP2108" / "other.txt").write_text("other")
    make_agsynth(tmp_path, workers=1, overwrite=True, **SMALL)
    assert digest(tmp_path / "CARGO") == digest(made / "CARGO")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["CARGO", "CP2108"]
    assert (tmp_path / "CP2108" / "other.txt").read_text() == "other"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full")])
def test_interrupted_make_leaves_the_old_tree(tmp_path, monkeypatch, error):
    old = tmp_path / "CARGO" / "train" / "old.jpg"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"old")
    take, seen = make._render_job, []

    def failing(job):
        seen.append(old.read_bytes())
        if len(seen) == 5:
            raise error
        return take(job)

    monkeypatch.setattr(make, "_render_job", failing)
    with pytest.raises((KeyboardInterrupt, OSError)):
        make_agsynth(tmp_path, workers=1, overwrite=True, **SMALL)
    assert seen == [b"old"] * 5  # the old one is there while the new one is made
    assert [path.name for path in tmp_path.iterdir()] == ["CARGO"]
    assert digest(tmp_path).keys() == {"CARGO/train/old.jpg"}


def test_failed_make_leaves_nothing_behind(tmp_path, monkeypatch):
    def failing(job):
        raise OSError("disk full")

    monkeypatch.setattr(make, "_render_job", failing)
    with pytest.raises(OSError, match="disk full"):
        make_agsynth(tmp_path, workers=1, **SMALL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layout": "cargoo"}, r"layout 'cargoo' unknown \(did you mean cargo\?\)"),
        ({"ids": 3}, "ids is 3; .* at least 4"),
        ({"images_per_id": 3}, "images_per_id is 3; layout cargo needs at least 4"),
        ({"images_per_id": 7, "layout": "ag-reid-v2"}, "images_per_id is 7; layout ag-reid-v2 needs at least 8"),
        ({"size": (16, 32)}, r"size is \(16, 32\); give \(height, width\)"),
        ({"seed": -1}, "seed is -1"),
        ({"workers": 0}, "workers is 0"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(tmp_path, wrong, message):
    with pytest.raises(InputError, match=message) as caught:
        make_agsynth(tmp_path / "new", **{**SMALL, **wrong})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_least_images_give_both_sides(tmp_path):
    make_agsynth(tmp_path, workers=1, **{**SMALL, "images_per_id": 4})
    records = load("CARGO", tmp_path).records
    sides = Counter((r.split, r.view) for r in records if r.split != "train")
    assert sides == {(split, view): 2 for split in ("query", "gallery") for view in View}


def test_contact_sheet_has_a_row_a_person_and_a_column_a_camera(tmp_path):
    path = contact_sheet(tmp_path / "new" / "sheet.png", ids=2, size=(32, 16))
    with Image.open(path) as sheet:
        assert sheet.width == 13 * (16 + 4) + 4
        assert sheet.height == 44 + 2 * (32 + 4)
    again = contact_sheet(tmp_path / "again.png", ids=2, size=(32, 16))
    assert again.read_bytes() == path.read_bytes()
    with pytest.raises(InputError, match=r"sheet\.jpg.*\.png"):
        contact_sheet(tmp_path / "sheet.jpg")
    with pytest.raises(InputError, match="ids is 0"):
        contact_sheet(tmp_path / "sheet.png", ids=0)
