"""Where images lie: paths that lead out of a dataset's folder, links in circles, pipes, names of any kind."""

import os

import pytest
from data import trees
from fuzz_cases import ODD_TEXTS, fuzz, refusal, within
from hypothesis import given
from hypothesis import strategies as st

from agreid_plugin.data.check import check
from agreid_plugin.data.datasets import load
from agreid_plugin.data.files import leads_outside, list_images
from agreid_plugin.data.images import find_broken_images
from agreid_plugin.data.protocols import read_protocols
from agreid_plugin.errors import InputError

OUTSIDE = [
    "../x.jpg",
    "a/../../x.jpg",
    "/x.jpg",
    "..\\x.jpg",
    "C:\\x.jpg",
    "c:/x.jpg",
    "\\\\host\\x.jpg",
    "//host/x.jpg",
]


@pytest.mark.parametrize("name", [*OUTSIDE, "..", "a/..\\..\\x.jpg", "C:"])
def test_what_leads_out(name):
    assert leads_outside(name)


@pytest.mark.parametrize("name", ["x.jpg", "a/../x.jpg", "./x.jpg", "..x.jpg", "a..b/x.jpg", "c:1.jpg", "~/x.jpg", ""])
def test_what_stays(name):
    assert not leads_outside(name)


@pytest.fixture
def home(tmp_path):
    """A dataset's folder with an image, and an image beside it that is none of its business."""
    trees.write_images(tmp_path, ["x.jpg", "home/imgs/a/1.jpg"])
    return tmp_path / "home"


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_annotation_may_not_lead_out(home, name):
    trees.write_json(home / "train_reid.json", [{"file_path": name, "id": 1, "captions": ["x"]}])
    line = refusal(lambda: load("TAG-PEDES", home), "train_reid.json: entry 1: ")
    assert "leads out of the dataset's folder" in line


@pytest.mark.parametrize("name", [name for name in OUTSIDE if not os.path.isabs(name)])
def test_a_table_may_not_lead_out_by_a_relative_path(home, name):
    trees.write_text(home / "t.csv", f"path,pid\nimgs/a/1.jpg,1\n{name},1\n")
    line = refusal(lambda: load("csv", home), "t.csv: line 3: ")
    assert "leads out of the dataset's folder; name the folder of images with the option images" in line


def test_a_table_may_name_its_images_in_full_and_its_folder_of_images(home):
    trees.write_text(home / "t.csv", f"path,pid\n{home.parent.absolute()}/x.jpg,1\n")
    assert load("csv", home).records[0].path == str(home.parent / "x.jpg")
    trees.write_text(home / "t.csv", "path,pid\nx.jpg,1\n")
    assert load("csv", home, images=str(home.parent)).records[0].path == str(home.parent / "x.jpg")


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize(
    ("dataset", "build", "file"),
    [
        ("CP2108", trees.cp2108, "split_v100/query_v100.txt"),
        ("LAGPeR", trees.lagper, "exp3_A2G+.txt"),
        ("AG-ReID.v2", trees.ag_reid_v2, "exp1_aerial_to_cctv.txt"),
    ],
)
def test_a_list_may_not_lead_out(tmp_path, dataset, build, file, name):
    root = build(tmp_path)
    with (root / file).open("a") as lines:
        lines.write(f"\n{name}\n")
    assert "leads out of the dataset's folder" in refusal(lambda: load(dataset, root), os.path.basename(file))


def test_links_inside_the_folder_are_followed(tmp_path):
    store = trees.write_images(tmp_path / "store", ["1.jpg"])
    root = tmp_path / "home"
    root.mkdir()
    (root / "imgs").symlink_to(store)
    trees.write_json(root / "train_reid.json", [{"file_path": "1.jpg", "id": 1, "captions": "x", "cam_id": 0}])
    assert load("TAG-PEDES", root).records[0].path == str(root / "imgs/1.jpg")
    (tmp_path / "cargo").symlink_to(trees.cargo(tmp_path / "elsewhere"))
    assert len(load("CARGO", tmp_path / "cargo").records) == 13


def test_links_in_a_circle_come_to_an_end(tmp_path):
    trees.write_images(tmp_path, ["a/1.jpg", "b/2.jpg"])
    for place, target in (("a/up", ".."), ("a/b", "../b"), ("b/a", "../a"), ("b/top", tmp_path), ("b/self", "self")):
        (tmp_path / place).symlink_to(target)
    with within(5):
        assert list_images(tmp_path) == [tmp_path / "a/1.jpg", tmp_path / "b/2.jpg"]
        (tmp_path / "train_reid.json").symlink_to("train_reid.json")
        assert refusal(lambda: load("TAG-PEDES", tmp_path), "train_reid.json")
        assert refusal(lambda: load("CARGO", tmp_path / "b" / "self"), "self")


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "train_reid.json")
    os.mkfifo(tmp_path / "1_c1.jpg")
    trees.write_images(tmp_path, ["2_c1.jpg"])
    with within(5):
        assert "not a file" in refusal(lambda: load("TAG-PEDES", tmp_path), "train_reid.json")
        assert "not a file" in refusal(lambda: read_protocols(tmp_path / "train_reid.json"), "train_reid.json")
        assert [record.pid for record in load("folder", tmp_path).records] == [2]
        pipe = str(tmp_path / "1_c1.jpg")
        assert find_broken_images([pipe], progress=False) == {pipe: "no file"}


def test_a_link_to_nowhere_is_a_broken_image(tmp_path):
    trees.write_images(tmp_path, ["1_c1.jpg"])
    (tmp_path / "2_c1.jpg").symlink_to("gone.jpg")
    found = check(load("folder", tmp_path), progress=False, published=False)
    assert [line for line in found.problems if "2_c1.jpg: no file" in line]


def test_numbers_that_no_label_can_hold_are_refused(tmp_path):
    root = trees.cargo(tmp_path)
    trees.write_images(root, ["train/Cam1_day_99999999999999999999_1.jpg"])
    assert "identity 99999999999999999999 is no number" in refusal(lambda: load("CARGO", root), "Cam1_day_9999")


NAMES = st.text(st.characters(exclude_characters="/\x00", exclude_categories=["Cs"]), min_size=1, max_size=60)
BEGINNINGS = st.sampled_from(
    ["", "Cam1_day_", "Cam1_day_1_", "Cam6_night_\u0661_", "0001_c1_", "-1_c3", "9" * 40, "..", "\u00b2_c\u00b2"]
)


@fuzz(0.05)
@given(
    beginning=BEGINNINGS, name=NAMES | st.sampled_from(ODD_TEXTS), ending=st.sampled_from([".jpg", ".JPG", ".png", ""])
)
@pytest.mark.parametrize(
    ("dataset", "folder"), [("CARGO", "train"), ("folder", "train"), ("LAGPeR", "bounding_box_train")]
)
def test_images_may_have_any_name(tmp_path_factory, dataset, folder, beginning, name, ending):
    root = tmp_path_factory.mktemp("names")
    build = trees.lagper if dataset == "LAGPeR" else trees.cargo
    build(root)
    try:
        (root / folder / f"{beginning}{name}{ending}").write_bytes(trees.JPEG)
    except (OSError, ValueError):
        return  # no name of a file on this system

    def read():
        records = load(dataset, root, skip_bad_names=dataset == "folder").records
        assert records
        assert all(os.path.isfile(record.path) for record in records)

    refusal(read, dataset, str(root))


def test_an_empty_dataset_is_refused(tmp_path):
    trees.write_images(tmp_path, ["-1_c1.jpg"])
    with pytest.raises(InputError, match="folder: no image is left under"):
        load("folder", tmp_path)
    trees.write_json(tmp_path / "train_reid.json", [])
    with pytest.raises(InputError, match=r"train_reid\.json: no entries"):
        load("TAG-PEDES", tmp_path)
