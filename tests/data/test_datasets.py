"""Each real layout, as a tiny tree, parses to exactly these records."""

import shutil

import pytest
import trees

from agreid_plugin.data.attributes import QUT_GROUPS
from agreid_plugin.data.datasets import DATASETS, load
from agreid_plugin.types import View

A, G = View.AERIAL, View.GROUND


def brief(dataset, *splits):
    """Return (file name, pid, camera, view) of a dataset's records."""
    records = dataset.split(*splits) if splits else dataset.records
    return [(r.path.rsplit("/", 1)[1], r.pid, r.camera, r.view) for r in records]


def test_cargo(tmp_path):
    cargo = load("CARGO", trees.cargo(tmp_path / "CARGO"))
    assert brief(cargo, "query") == [
        ("Cam1_day_11_1.jpg", 11, 1, A),
        ("Cam3_night_12_1.jpg", 12, 3, A),
        ("Cam6_day_11_2.jpg", 11, 6, G),
    ]
    assert len(cargo.split("train")) == 4
    assert len(cargo.split("query", "gallery")) == 9
    assert [r.path for r in cargo.records] == sorted(r.path for r in cargo.records)
    night = cargo.split("query")[1]
    assert (night.platform, night.tags, night.split) == ("uav", {"time": "night"}, "query")
    assert (cargo.notes, cargo.skipped) == ((), ())
    assert cargo.splits == ("train", "query", "gallery")


@pytest.mark.parametrize("name", ["CARGO", "cargo", "Cargo"])
def test_root_may_be_the_parent_and_names_are_free_of_case(tmp_path, name):
    trees.cargo(tmp_path / "CARGO")
    dataset = load(name, tmp_path)
    assert dataset.name == "CARGO"
    assert len(dataset.records) == 13
    assert dataset.notes == ("read from CARGO",)


def test_labels_come_from_the_name_and_never_from_a_folder(tmp_path):
    trees.cargo(tmp_path / "Cam9_night_77_1" / "12_c3_x")
    here = load("CARGO", tmp_path / "Cam9_night_77_1" / "12_c3_x")
    assert sorted({r.pid for r in here.records}) == [1, 2, 11, 12, 13]


def test_endings_in_any_case_and_hidden_files(tmp_path):
    root = trees.cargo(tmp_path)
    trees.write_images(root / "query", ["Cam5_day_11_9.JPG", "Cam5_day_11_8.Png", "._Cam5_day_11_7.jpg", "Thumbs.db"])
    assert len(load("CARGO", root).split("query")) == 5


def test_ag_reid(tmp_path):
    v1 = load("AG-ReID", trees.ag_reid(tmp_path))
    assert brief(v1, "train") == [
        ("P0001T04041A0C0F1.jpg", 1040410, 0, A),
        ("P0001T04041A0C3F2.jpg", 1040410, 3, G),
        ("P0002T04041A0C0F1.jpg", 2040410, 0, A),
        ("P0002T04041A0C3F2.jpg", 2040410, 3, G),
    ]
    assert brief(v1, "query") == [
        ("P0003T05050A0C0F1.jpg", 3050500, 0, A),
        ("P0004T05050A1C0F1.jpg", 4050501, 0, A),
        ("P0003T05050A0C3F1.jpg", 3050500, 3, G),
    ]
    assert len(v1.split("gallery")) == 5
    assert v1.split("query")[1].tags == {"time": "05050", "altitude": "1"}
    assert [r.platform for r in v1.split("query")] == ["uav", "uav", "cctv"]
    assert v1.split("train")[0].attributes == {"gender": "male", "bag": "handbag"}
    assert v1.split("query")[0].attributes == {}
    assert v1.schema.groups == QUT_GROUPS


def test_ag_reid_rearranged_and_without_attributes(tmp_path):
    trees.ag_reid_rearranged(tmp_path / "AGReID")
    v1 = load("AG-ReID", tmp_path)
    assert [len(v1.split(split)) for split in ("train", "query", "gallery")] == [4, 3, 5]
    assert "folders train, query, gallery: rearranged as in SVPR-ReID" in v1.notes
    assert "qut_attribute_v4_88_attributes.mat not found: no attributes" in v1.notes


def test_ag_reid_tells_of_stray_wearable_images_and_identities_without_attributes(tmp_path):
    root = trees.ag_reid(tmp_path)
    trees.write_images(root, ["bounding_box_train/P0009T04041A0C02F1.jpg"])
    v1 = load("AG-ReID", root)
    assert ("P0009T04041A0C02F1.jpg", 9040410, 2, G) in brief(v1, "train")
    assert any(note.startswith("1 images of camera C2") for note in v1.notes)
    assert "qut_attribute_v4_88_attributes.mat says nothing of 1 identities, first 9040410" in v1.notes
    assert v1.undescribed == (9040410,)  # unlike 4050501, of which the file knows nothing but that it exists


@pytest.mark.parametrize("doubled", [True, False])
@pytest.mark.parametrize("root", ["", "AG-ReID.v2"])
def test_ag_reid_v2(tmp_path, doubled, root):
    trees.ag_reid_v2(tmp_path / "AG-ReID.v2", doubled)
    v2 = load("AG-ReID.v2", tmp_path / root)
    assert brief(v2, "train") == [
        ("P0001T04041A0C0F1.jpg", 1040410, 0, A),
        ("P0001T04041A0C2F2.jpg", 1040410, 2, G),
        ("P0001T04041A0C3F3.jpg", 1040410, 3, G),
    ]
    assert [r.platform for r in v2.split("query")] == ["uav", "wearable", "cctv", "uav"]
    sides = v2.lists["exp1_aerial_to_cctv.txt"]
    assert [r.path.rsplit("/", 1)[1] for r in sides.query] == ["P0003T05050A0C0F1.jpg"]
    assert [r.path.rsplit("/", 1)[1] for r in sides.gallery] == ["P0003T05050A0C3F2.jpg"]


def test_ag_reid_v2_named_by_its_inner_folder_finds_the_lists_above(tmp_path):
    trees.ag_reid_v2(tmp_path / "AG_ReID_v2")
    v2 = load("AG-ReID.v2", tmp_path / "AG_ReID_v2" / "AG-ReID.v2")
    assert len(v2.lists) == 4
    assert "read from .." in v2.notes


def test_ag_reid_v2_without_lists_says_so(tmp_path):
    v2 = load("AG-ReID.v2", trees.ag_reid_v2(tmp_path, lists=False))
    assert v2.lists == {}
    assert sum("not found, sides made from file names" in note for note in v2.notes) == 4


def test_lagper(tmp_path):
    lagper = load("LAGPeR", trees.lagper(tmp_path / "LAGPeR"))
    # Camera 10 does not exist, 11 and 1 are ground, 3 and 6 aerial; identity -1 in train is nobody.
    assert brief(lagper, "train") == [("0001_c11_2.jpg", 1, 11, G), ("0001_c3_1.jpg", 1, 3, A)]
    assert lagper.notes == ("1 images of identity -1 left out",)
    assert brief(lagper, "query") == [
        ("0007_c3_1.jpg", 7, 3, A),
        ("0007_c1_1.jpg", 7, 1, G),
        ("0008_c11_1.jpg", 8, 11, G),
    ]
    assert len(lagper.split("gallery")) == 4  # each listed image once, however many lists name it
    assert {file: (len(s.query), len(s.gallery)) for file, s in lagper.lists.items()} == {
        "exp3_A2G+.txt": (1, 2),
        "exp4_G2A+.txt": (1, 2),
        "exp5_G2A+G.txt": (2, 3),
    }


def test_lagper_names_may_start_with_something_else(tmp_path):
    root = trees.lagper(tmp_path)
    trees.write_images(root, ["bounding_box_train/s1/scene2_0003_c22_1.jpg"])
    assert ("scene2_0003_c22_1.jpg", 3, 22, A) in brief(load("LAGPeR", root), "train")


@pytest.mark.parametrize("folder", ["GA-ReID", "G2APS-ReID"])
def test_g2aps(tmp_path, folder):
    trees.g2aps(tmp_path / folder)
    g2aps = load("G2APS-ReID", tmp_path)
    assert brief(g2aps, "train") == [("0001_c0v2_000000.jpg", 1, 0, A), ("0001_c3v2_000003.jpg", 1, 3, G)]
    assert [r.pid for r in g2aps.lists["exp3_A2G+.txt"].gallery] == [9, 5555]
    assert g2aps.notes == (f"read from {folder}",)
    assert g2aps.split("train")[0].platform == "uav"


def test_lists_may_name_the_dataset_folder_and_use_backslashes(tmp_path):
    root = trees.g2aps(tmp_path)
    lines = ["GA-ReID\\query_c0\\0009_c0v1_000001.jpg", "./gallery/0009_c3v1_000002.jpg", ""]
    trees.write_text(root / "exp3_A2G+.txt", "\ufeff" + "\n".join(lines))
    sides = load("G2APS-ReID", root).lists["exp3_A2G+.txt"]
    assert (len(sides.query), len(sides.gallery)) == (1, 1)


def test_cp2108(tmp_path):
    cp = load("CP2108", trees.cp2108(tmp_path / "CP2108"))
    assert brief(cp, "train") == [("1_1_1_1_0001.jpg", 1, 1, G), ("1_23_0_2_0001.jpg", 1, 23, A)]
    day, night = cp.split("train")
    assert night.tags == {"time": "0", "scene": "2"}
    # Attributes are the identity's, from the ground by day; captions are the image's own.
    assert day.attributes == night.attributes == {"Pose": "Walking"}
    assert (day.captions, night.captions) == (("a person walking by day",), ("a person riding at night",))
    assert cp.split("query")[0].attributes == {"Pose": "Riding", "Glasses": "No"}  # the only entry there is
    assert cp.split("query")[0].captions == ()
    assert cp.schema.groups == {"Pose": ("Walking", "Riding"), "Glasses": ("No", "Yes", "Unknown")}
    assert cp.schema.encode(day) == (0, -1)


def test_cp2108_attributes_of_the_image(tmp_path):
    cp = load("CP2108", trees.cp2108(tmp_path), attribute_level="image")
    day, night = cp.split("train")
    assert (day.attributes, night.attributes) == ({"Pose": "Walking"}, {"Pose": "Riding", "Glasses": "No"})
    by_name = {r.path.rsplit("/", 1)[1]: r.attributes for r in cp.split("query", "gallery")}
    assert by_name["5_24_0_1_0002.jpg"] == {"Pose": "Riding", "Glasses": "No"}  # its own, the only one of identity 5
    assert by_name["5_2_1_1_0001.jpg"] == by_name["5_24_0_1_0002.jpg"]
    assert by_name["6_3_1_1_0001.jpg"] == {}
    assert "4 images have no attributes of their view and time: their identity's are used" in cp.notes


@pytest.mark.parametrize("level", ["identity", "image"])
def test_cp2108_identities_that_the_attribute_file_lacks(tmp_path, level):
    cp = load("CP2108", trees.cp2108(tmp_path), attribute_level=level)
    assert cp.undescribed == (6, 7)
    assert "attributes_labeled_qwen.json says nothing of 2 identities, first 6" in cp.notes


def test_cp2108_without_the_values(tmp_path):
    root = trees.cp2108(tmp_path)
    (root / "attr_translation_idx.json").unlink()
    cp = load("CP2108", root)
    assert "attr_translation_idx.json not found: attributes have the values that occur, sorted" in cp.notes
    assert cp.schema.groups == {"Glasses": ("No",), "Pose": ("Riding", "Walking")}


@pytest.mark.parametrize(
    ("name", "make", "platforms"),
    [
        ("CARGO", trees.cargo, {(A, "uav"), (G, "cctv")}),
        ("AG-ReID", trees.ag_reid, {(A, "uav"), (G, "cctv")}),
        ("AG-ReID.v2", trees.ag_reid_v2, {(A, "uav"), (G, "cctv"), (G, "wearable")}),
        ("LAGPeR", trees.lagper, {(A, "uav"), (G, "cctv")}),
        ("G2APS-ReID", trees.g2aps, {(A, "uav"), (G, "cctv")}),
        ("CP2108", trees.cp2108, {(A, "uav"), (G, "cctv")}),
    ],
)
def test_every_camera_is_carried_by_something(tmp_path, name, make, platforms):
    assert {(r.view, r.platform) for r in load(name, make(tmp_path)).records} == platforms


@pytest.mark.parametrize(
    ("name", "make"), [("CARGO", trees.cargo), ("LAGPeR", trees.lagper), ("G2APS-ReID", trees.g2aps)]
)
def test_sets_without_attributes_have_no_schema(tmp_path, name, make):
    dataset = load(name, make(tmp_path))
    assert len(dataset.schema) == 0
    assert dataset.undescribed == ()


def test_cp2108_other_version_without_json(tmp_path):
    root = trees.cp2108(tmp_path)
    for json_file in root.glob("*.json"):
        json_file.unlink()
    shutil.move(root / "images_v100", root / "images")
    for path in sorted((root / "split_v100").iterdir()):
        trees.write_text(root / "split_v3" / path.name.replace("v100", "v3"), path.read_text())
    cp = load("CP2108", root, version=3)
    assert len(cp.records) == 10
    assert len(cp.notes) == 2
    assert all("not found" in note for note in cp.notes)


@pytest.mark.parametrize("images", ["images/", ""])
@pytest.mark.parametrize("inside", ["", "dataset"])
def test_tag_pedes(tmp_path, images, inside):
    trees.tag_pedes(tmp_path / inside, images)
    tag = load("TAG-PEDES", tmp_path)
    assert sorted(brief(tag, "test")) == [("3.jpg", 7, -1, A), ("4.jpg", 7, -1, G), ("5.jpg", 8, -1, G)]
    assert len(tag.split("train")) == 2
    third = tag.split("test")[0]
    assert third.captions == ("G2APS/3.jpg one", "G2APS/3.jpg two")
    assert third.tags == {"source": "G2APS"}


def test_tag_pedes_without_views_says_so(tmp_path):
    tag = load("TAG-PEDES", trees.tag_pedes(tmp_path, views=False))
    assert {r.view for r in tag.records} == {None}
    assert tag.notes == ("5 of 5 images have no cam_id: their view is unknown",)


@pytest.mark.parametrize(
    ("name", "file", "key"),
    [
        ("CUHK-PEDES", "reid_raw.json", "file_path"),
        ("CUHK-PEDES", "caption_all.json", "file_path"),
        ("ICFG-PEDES", "ICFG-PEDES.json", "file_path"),
        ("ICFG-PEDES", "ICFG_PEDES.json", "img_path"),
        ("RSTPReid", "data_captions.json", "img_path"),
    ],
)
def test_text_sets_in_one_file(tmp_path, name, file, key):
    text = load(name, trees.one_file_set(tmp_path / name, file, key))
    assert [(r.pid, r.split, r.view, r.captions) for r in text.records] == [
        (1, "train", G, ("person 1",)),
        (2, "val", G, ("person 2",)),
        (3, "test", G, ("person 3",)),
        (4, "test", G, ("person 4",)),
    ]
    assert text.notes == ((f"annotations read from {file}",) if file in ("caption_all.json", "ICFG_PEDES.json") else ())


def test_text_sets_in_a_file_a_split(tmp_path):
    root = trees.write_images(tmp_path, ["imgs/a.jpg", "imgs/b.jpg"])
    trees.write_json(root / "train_reid.json", [{"file_path": "a.jpg", "id": 4, "captions": "one only"}])
    trees.write_json(root / "test_reid.json", [{"file_path": "b.jpg", "id": 5, "captions": ["x", "y"]}])
    text = load("CUHK-PEDES", root)
    assert [(r.pid, r.split, r.captions, r.tags) for r in text.records] == [
        (4, "train", ("one only",), {}),
        (5, "test", ("x", "y"), {}),
    ]


def test_every_dataset_has_a_description_and_a_source():
    assert len(DATASETS) == 12
    assert all(source.about and source.cite for source in DATASETS.values())
