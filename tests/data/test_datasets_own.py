"""People's own images: folders and tables, no class to write."""

import pytest
import trees

from agreid_plugin.data.datasets import load
from agreid_plugin.errors import InputError
from agreid_plugin.types import UNKNOWN, View

A, G = View.AERIAL, View.GROUND


def test_folder_with_market_names(tmp_path):
    trees.write_images(tmp_path, ["train/0002_c1s1_000451_03.jpg", "query/0007_c2s1.png", "gallery/-1_c3s1.jpg"])
    trees.write_images(tmp_path, ["gallery/0007_c3s1.jpg"])
    own = load("folder", tmp_path)
    assert [(r.split, r.pid, r.camera, r.view) for r in own.records] == [
        ("gallery", 7, 3, None),
        ("query", 7, 2, None),
        ("train", 2, 1, None),
    ]
    assert own.notes == ("1 images of identity -1 left out",)


def test_folder_with_a_pattern_of_its_own(tmp_path):
    trees.write_images(tmp_path, ["drone_anna_k1_night.jpg", "ground_ben_k2_day.jpg"])
    pattern = r"(?P<view>\w+?)_(?P<pid>[a-z]+)_(?P<camera>k\d)_(?P<time>\w+)"
    own = load("folder", tmp_path, pattern=pattern, split="gallery")
    assert [(r.pid, r.camera, r.view, r.split) for r in own.records] == [(0, 0, A, "gallery"), (1, 1, G, "gallery")]
    assert own.records[0].tags == {"time": "night", "identity": "anna"}
    assert own.notes == ("no folder train, val, query, gallery: all images are of split gallery",)


def test_folder_with_a_folder_an_identity(tmp_path):
    trees.write_images(tmp_path, ["train/anna/1.jpg", "train/ben/2.jpg", "query/anna/day/3.jpg", "gallery/anna/4.jpg"])
    own = load("folder", tmp_path, identity_folders=True)
    assert sorted((r.split, r.pid, r.camera) for r in own.records) == [
        ("gallery", 0, UNKNOWN),
        ("query", 0, UNKNOWN),
        ("train", 0, UNKNOWN),
        ("train", 1, UNKNOWN),
    ]


def test_folder_with_aerial_cameras(tmp_path):
    trees.write_images(tmp_path, ["1_c01.jpg", "1_c2.jpg"])
    own = load("folder", tmp_path, aerial_cameras=[1])
    assert [(r.camera, r.view) for r in own.records] == [(1, A), (2, G)]


def test_csv_with_everything(tmp_path):
    trees.write_images(tmp_path, ["a/1.jpg", "a/2.jpg"])
    table = trees.write_text(
        tmp_path / "people.csv",
        "path,pid,camera,view,split,platform,caption,caption_2,time,hair\n"
        'a/1.jpg,5,3,aerial,query,uav,"a man, running",,day,long\n'
        "\n"
        "a/2.jpg,6,,,gallery,,,,,\n",
    )
    for root in (tmp_path, table):
        first, second = load("csv", root).records
        assert (first.pid, first.camera, first.view, first.split, first.platform) == (5, 3, A, "query", "uav")
        assert first.captions == ("a man, running",)
        assert (first.tags, first.attributes) == ({"time": "day"}, {"hair": "long"})
        assert (second.pid, second.camera, second.view, second.split) == (6, UNKNOWN, None, "gallery")
        assert (second.captions, second.tags, second.attributes) == ((), {}, {})


def test_csv_attributes_are_the_images_own_and_unknown_ones_are_left_out(tmp_path):
    trees.write_images(tmp_path, ["1.jpg", "2.jpg", "3.jpg"])
    table = "path,pid,hair,bag\n1.jpg,1,long,none\n2.jpg,1,short,Unknown\n3.jpg,2,,none\n"
    trees.write_text(tmp_path / "t.csv", table)
    own = load("csv", tmp_path)
    assert [r.attributes for r in own.records] == [{"hair": "long", "bag": "none"}, {"hair": "short"}, {"bag": "none"}]
    assert own.schema.groups == {"bag": ("none",), "hair": ("long", "short")}
    assert own.undescribed == ()


def test_csv_columns_without_a_name_are_left_out(tmp_path):
    trees.write_images(tmp_path, ["1.jpg"])
    trees.write_text(tmp_path / "t.csv", ",path,pid,hair\n0,1.jpg,1,long\n")
    (record,) = load("csv", tmp_path).records
    assert record.attributes == {"hair": "long"}


def test_csv_tells_what_carries_the_camera(tmp_path):
    trees.write_images(tmp_path, ["1.jpg", "2.jpg", "3.jpg", "4.jpg"])
    table = "path,pid,view,platform\n1.jpg,1,Wearable,\n2.jpg,1,ground,cctv\n3.jpg,1,drone,\n4.jpg,1,uav,kite\n"
    trees.write_text(tmp_path / "t.csv", table)
    assert [r.platform for r in load("csv", tmp_path).records] == ["wearable", "cctv", "", "kite"]


def test_csv_with_the_least(tmp_path):
    trees.write_images(tmp_path / "pictures", ["x.jpg", "y.jpg"])
    trees.write_text(tmp_path / "t.csv", "pid;path\nzoe;x.jpg\nadam;y.jpg\n")
    own = load("csv", tmp_path, images=str(tmp_path / "pictures"), delimiter=";", split="query")
    assert [(r.pid, r.split, r.tags) for r in own.records] == [
        (1, "query", {"identity": "zoe"}),
        (0, "query", {"identity": "adam"}),
    ]


def test_a_number_among_names_is_a_name(tmp_path):
    trees.write_images(tmp_path, ["x.jpg", "y.jpg"])
    trees.write_text(tmp_path / "t.csv", "path,pid\nx.jpg,zoe\ny.jpg,7\n")
    found = [(r.pid, r.tags) for r in load("csv", tmp_path).records]
    assert found == [(1, {"identity": "zoe"}), (0, {"identity": "7"})]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("path,person\nx.jpg,1\n", ["no column pid", "found path, person"]),
        ("path,pid\nx.jpg\n", ["line 2", "1 values for 2 columns"]),
        ('path,pid\n"x.jpg,1\n', ["not CSV", "line 2"]),
        ("path,pid,view\nx.jpg,1,top\n", ["line 2", "view 'top' unknown", "aerial"]),
        ("path,pid,split\nx.jpg,1,galery\n", ["line 2", "split 'galery' unknown", "did you mean gallery"]),
        ("path,pid\nx.jpg,\n", ["line 2", "no pid: say who"]),
        ("path,pid\nx.jpg,1\nz.jpg,1\n", ["1 of its 2 images do not exist", "z.jpg"]),
        ("path,pid\n", ["no rows"]),
        ("", ["no column path, pid", "found nothing"]),
        ("path;pid\nx.jpg;1\n", ["no column path, pid", "';' separates its columns, save it with ','"]),
    ],
)
def test_bad_tables(tmp_path, table, words):
    trees.write_images(tmp_path, ["x.jpg"])
    trees.write_text(tmp_path / "t.csv", table)
    with pytest.raises(InputError) as error:
        load("csv", tmp_path)
    assert all(word in str(error.value) for word in ["t.csv", *words])
    assert "\n" not in str(error.value)


def test_which_table(tmp_path):
    with pytest.raises(InputError, match="0 CSV files, expected one"):
        load("csv", tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pattern": r"(?P<id>\d+)"}, ["no group named pid", "only id"]),
        ({"pattern": r"(?P<pid>\d+"}, ["not a regular expression"]),
        ({"pattern": r"x(?P<pid>\d+)"}, ["1 of 1 names", "x(?P<pid>", "1_c1.jpg"]),
        ({"pattern": r"(?P<pid>x*)"}, ["1 of 1 names", "1_c1.jpg"]),
        ({"pattern": r"(?P<pid>\d+)_(?P<view>c\d)"}, ["1_c1.jpg", "view 'c1' unknown"]),
        ({"identity_folders": True}, ["1 of 1 names", "1_c1.jpg"]),
        ({"split": "trian"}, ["split 'trian' unknown", "did you mean train"]),
        ({"paterns": "x"}, ["folder: option 'paterns' unknown", "did you mean pattern"]),
    ],
)
def test_bad_folder_options(tmp_path, options, words):
    trees.write_images(tmp_path, ["1_c1.jpg"])
    with pytest.raises(InputError) as error:
        load("folder", tmp_path, **options)
    assert all(word in str(error.value) for word in words)
