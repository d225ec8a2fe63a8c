"""Bad input: one line that says what is wrong, where, and what to do."""

import pytest
import trees

from agreid_plugin.data.datasets import load
from agreid_plugin.errors import InputError


def complaint(name, root, **options):
    with pytest.raises(InputError) as error:
        load(name, root, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_missing_root_names_the_neighbor(tmp_path):
    trees.cargo(tmp_path / "data" / "CARGO")
    assert "did you mean CARGO?" in complaint("CARGO", tmp_path / "data" / "CARGOO")
    line = complaint("CARGO", tmp_path / "dat" / "CARGO")
    assert "no 'dat' in" in line
    assert "did you mean data?" in line


def test_unknown_dataset_and_option(tmp_path):
    assert "dataset 'CARGOS' unknown (did you mean CARGO?)" in complaint("CARGOS", tmp_path)
    assert "CARGO: option 'version' unknown; known: none" in complaint("CARGO", tmp_path, version=3)


def test_a_file_where_a_folder_is_needed(tmp_path):
    assert "is a file; CARGO needs its folder" in complaint("CARGO", trees.write_text(tmp_path / "a.txt", ""))


def test_wrong_layout_names_what_is_there(tmp_path):
    trees.write_images(tmp_path, ["images/a.jpg"])
    line = complaint("CARGO", tmp_path)
    assert "no train under" in line
    assert "which holds images" in line


def test_empty_split(tmp_path):
    root = trees.cargo(tmp_path)
    for path in (root / "query").rglob("*.jpg"):
        path.unlink()
    assert "CARGO: query is empty, no .jpg .jpeg .png .bmp under" in complaint("CARGO", root)


def test_bad_names_are_named_and_counted(tmp_path):
    root = trees.cargo(tmp_path)
    bad = ["Cam14_day_1_1.jpg", "Cam1_dusk_1_1.jpg", "Cam1_day_x_1.jpg", "copy of Cam1_day_1_1.jpg", "z.jpg"]
    trees.write_images(root / "train", bad)
    line = complaint("CARGO", root)
    assert "5 of 9 names in train are not like Cam1_day_1_1.jpg: " in line
    assert "Cam14_day_1_1.jpg" in line
    assert "..." in line
    assert "skip_bad_names" in line
    dataset = load("CARGO", root, skip_bad_names=True)
    assert len(dataset.records) == 13
    assert sorted(path.rsplit("/", 1)[1] for path in dataset.skipped) == sorted(bad)
    assert any(note.startswith("5 images left out because of their names") for note in dataset.notes)


@pytest.mark.parametrize("camera", ["0", "10", "23"])
def test_lagper_has_no_such_camera(tmp_path, camera):
    root = trees.lagper(tmp_path)
    trees.write_images(root, [f"bounding_box_train/s1/0001_c{camera}_9.jpg"])
    assert "1 of 4 names in train" in complaint("LAGPeR", root)


def test_list_naming_a_missing_image(tmp_path):
    root = trees.ag_reid_v2(tmp_path)
    next((root / "AG-ReID.v2" / "gallery").rglob("P0003*C3F2.jpg")).unlink()
    line = complaint("AG-ReID.v2", root)
    assert "exp1_aerial_to_cctv.txt: 1 of its 2 images do not exist, first gallery/P0003T05050A0/" in line


def test_lagper_list_naming_a_missing_image(tmp_path):
    root = trees.lagper(tmp_path)
    (root / "gallery_g/0007_c1_2.jpg").unlink()
    assert "exp3_A2G+.txt: 1 of its 3 images do not exist, first gallery_g/0007_c1_2.jpg" in complaint("LAGPeR", root)


def test_listed_bad_name_can_be_skipped(tmp_path):
    root = trees.lagper(tmp_path)
    trees.write_images(root, ["gallery_g/oops.jpg"])
    with (root / "exp3_A2G+.txt").open("a") as file:
        file.write("gallery_g/oops.jpg\n")
    assert "1 of 3 names in gallery" in complaint("LAGPeR", root)
    sides = load("LAGPeR", root, skip_bad_names=True).lists["exp3_A2G+.txt"]
    assert len(sides.gallery) == 2


def test_cp2108_empty_list_and_missing_image(tmp_path):
    root = trees.cp2108(tmp_path)
    trees.write_text(root / "split_v100/query_v100.txt", "5_2_1_1_0001.jpg\n5_2_1_1_0009.jpg\n")
    assert "query_v100.txt: 1 of its 2 images do not exist, first 5_2_1_1_0009.jpg" in complaint("CP2108", root)
    trees.write_text(root / "split_v100/query_v100.txt", "\n")
    assert "CP2108: query is empty" in complaint("CP2108", root)
    assert "no split_v7 under" in complaint("CP2108", root, version=7)
    assert "attribute_level 'imag' unknown (did you mean image?)" in complaint("CP2108", root, attribute_level="imag")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("attributes_labeled_qwen.json", {"1-0-1": {}}, ["key '1-0-1' is not like 12_0_1"]),
        ("attributes_labeled_qwen.json", {"1_0_1": "tall"}, ["'1_0_1' is a str, expected a dict"]),
        ("attributes_labeled_qwen.json", [], ["expected a dict, found a list"]),
        (
            "attributes_labeled_qwen.json",
            {"1_0_1": {"Pose": "Ridin"}},
            ["identity 1, entry 1_0_1: value of 'Pose' 'Ridin' unknown (did you mean Riding?); known: Riding, Walking"],
        ),
        ("attributes_labeled_qwen.json", {"1_0_1": {}, "1_1_0": {"Pose": "Ridin"}}, ["identity 1, entry 1_1_0: "]),
        (
            "attributes_labeled_qwen.json",
            {"1_0_1": {"Posse": "Riding"}},
            ["identity 1, entry 1_0_1: attribute 'Posse' unknown (did you mean Pose?); known: Glasses, Pose"],
        ),
        (
            "attributes_labeled_qwen.json",
            {"1_0_1": {"Pose": None}},
            ["""identity 1, entry 1_0_1: 'Pose' is None, expected text; write "Unknown" if it is not known"""],
        ),
        ("attr_translation_idx.json", {"Pose": ["Riding"]}, ["'Pose': expected attribute -> value -> index"]),
        ("attr_translation_idx.json", {"Pose": {"Riding": "0"}}, ["'Pose': expected attribute -> value -> index"]),
        ("attr_translation_idx.json", {"Pose": {"Riding": 0, "Walking": 0}}, ["no index twice"]),
        ("attribute_captions_doubao.json", {"1_0_1": 3}, ["'1_0_1' is a int, expected a str"]),
    ],
)
def test_cp2108_bad_json(tmp_path, file, content, words):
    root = trees.cp2108(tmp_path)
    trees.write_json(root / file, content)
    line = complaint("CP2108", root)
    assert all(word in line for word in [file, *words])


ENTRY = {"file_path": "a.jpg", "id": 1, "captions": ["x"]}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            {"image": "a.jpg", "id": 1, "captions": []},
            ["entry 2 has captions, id, image", "expected file_path or img_path, id, captions"],
        ),
        ("a.jpg", ["entry 2 has nothing"]),
        ({**ENTRY, "id": "one"}, ["entry 2", "whole number"]),
        ({**ENTRY, "cam_id": 2}, ["entry 2", "cam_id is 2", "0 for aerial or 1 for ground"]),
        ({**ENTRY, "file_path": "b.jpg"}, ["1 of its 2 images do not exist, first b.jpg"]),
    ],
)
def test_text_set_bad_entries(tmp_path, entry, words):
    trees.write_images(tmp_path, ["imgs/a.jpg"])
    trees.write_json(tmp_path / "train_reid.json", [ENTRY, entry])
    line = complaint("TAG-PEDES", tmp_path)
    assert all(word in line for word in ["train_reid.json", *words])


def test_text_set_bad_files(tmp_path):
    assert "no data_captions.json or anno_dir/train_reid.json or train_reid.json" in complaint("RSTPReid", tmp_path)
    trees.write_json(tmp_path / "data_captions.json", [{**ENTRY, "split": "dev"}])
    trees.write_images(tmp_path, ["imgs/a.jpg"])
    assert "entry 1: split 'dev' unknown" in complaint("RSTPReid", tmp_path)
    trees.write_text(tmp_path / "data_captions.json", '[{"id": 1,]')
    assert "data_captions.json: not JSON" in complaint("RSTPReid", tmp_path)
    (tmp_path / "data_captions.json").write_bytes(b"\xff\xfe\x00")
    assert "data_captions.json: not UTF-8 text" in complaint("RSTPReid", tmp_path)


def test_unknown_split_of_a_dataset(tmp_path):
    dataset = load("CARGO", trees.cargo(tmp_path))
    assert dataset.split("val") == []
    with pytest.raises(InputError, match="split 'galery' unknown"):
        dataset.split("galery")
