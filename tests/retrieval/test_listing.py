"""Images that are to go into an index, from folders and tables."""

import pytest

from agreid_plugin.data.datasets import load
from agreid_plugin.errors import InputError
from agreid_plugin.retrieval.index import Entry, parse_time
from agreid_plugin.retrieval.listing import list_gallery
from agreid_plugin.synth import make_agsynth
from agreid_plugin.types import View


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "crops").mkdir()
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / "crops" / name).write_text("an image")
    return tmp_path


def table(folder, text: str):
    (folder / "t.csv").write_text(text)
    return list_gallery(folder / "t.csv")[0]


def test_a_folder_tells_nothing_but_paths(folder):
    assert list_gallery(folder) == ([Entry(str(folder / "crops/a.jpg")), Entry(str(folder / "crops/b.jpg"))], [])


@pytest.mark.parametrize("kind", ["folder", "table", "dataset"])
def test_names_that_no_index_can_keep_are_refused_or_left_out(tmp_path, kind):
    crops = tmp_path / "crops"
    crops.mkdir()
    names = ["1_c1_a\nb.jpg", "1_c2.jpg", "2_c1_\udcff.jpg"]
    if kind == "table":
        names.pop()  # a table is UTF-8
        (tmp_path / "crops.csv").write_text('path\n"crops/1_c1_a\nb.jpg"\ncrops/1_c2.jpg\n')
    for name in names:
        (crops / name).write_text("an image")
    place = tmp_path / "crops.csv" if kind == "table" else crops
    given = (place, "folder", ["train"]) if kind == "dataset" else (place,)
    entries, bad = list_gallery(*given, skip_bad_images=True)
    assert [entry.path for entry in entries] == [str(crops / "1_c2.jpg")]
    assert bad == [str(crops / name) for name in names if name != "1_c2.jpg"]
    with pytest.raises(InputError) as caught:
        list_gallery(*given)
    line = str(caught.value)
    assert line.isprintable()
    assert all(words in line for words in ("cannot be kept by a name", r"1_c1_a\nb.jpg", "--skip-bad-images"))
    assert (r"2_c1_\udcff.jpg" in line) == (kind != "table")


def test_a_table_tells_all_that_an_index_keeps(folder):
    rows = "path,view,camera,pid,platform,time,weather,caption_1,zone\n"
    rows += f"crops/a.jpg,UAV,3,7,,2026-05-31T14:30,rain,a man in red,\n{folder}/crops/b.jpg,ground,,,cctv,,,,north\n"
    first, second = table(folder, rows)
    when = parse_time("2026-05-31T14:30")
    assert first == Entry(str(folder / "crops/a.jpg"), View.AERIAL, 3, 7, "uav", when, {"weather": "rain"})
    assert second == Entry(str(folder / "crops/b.jpg"), View.GROUND, platform="cctv", tags={"zone": "north"})


def test_a_column_of_words_called_time_is_a_tag(folder):
    (entry,) = table(folder, "path,time\ncrops/a.jpg,night\n")
    assert (entry.time, entry.tags) == (None, {"time": "night"})


def test_a_column_without_a_name_is_left_out(folder):
    (entry,) = table(folder, ",path,zone,\n7,crops/a.jpg,north,8\n")
    assert entry == Entry(str(folder / "crops/a.jpg"), tags={"zone": "north"})


def test_the_last_row_of_a_path_counts(folder):
    (entry,) = table(folder, "path,camera\ncrops/a.jpg,1\ncrops/a.jpg,2\n")
    assert entry.camera == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name\na.jpg\n", "no column path"),
        ("path\n", "no rows below the header"),
        ("path\ncrops/z.jpg\n", "1 of its 1 images do not exist, first .*z.jpg"),
        ("path\n../a.jpg\n", "line 2: .* leads out of the dataset's folder; write such a path in full"),
        ("path,view\ncrops/a.jpg,areal\n", r"line 2: view 'areal' unknown \(did you mean aerial\?\)"),
        ("path,camera\ncrops/a.jpg,door\n", "line 2: camera 'door' is no number"),
        ("path,camera\ncrops/a.jpg,-7\n", "line 2: .*camera -7 should be a number from 0"),
        ("path,time\ncrops/a.jpg,2026-01-01\ncrops/b.jpg,noon\n", "line 3: time 'noon' cannot be read"),
        ("path,red coat\ncrops/a.jpg,yes\n", "line 2: .*tag 'red coat' should be named with letters"),
    ],
)
def test_a_bad_table_is_one_line(folder, text, words):
    with pytest.raises(InputError, match=words) as caught:
        table(folder, text)
    assert len(str(caught.value).splitlines()) == 1


def test_of_a_dataset_those_images_count_that_its_tests_search_in(agsynth):
    known = load("CARGO", agsynth)
    assert {entry.path for entry in list_gallery(agsynth, "CARGO")[0]} == {each.path for each in known.split("gallery")}
    others, _ = list_gallery(agsynth, "CARGO", ["train", "query"])
    assert {entry.path for entry in others} == {each.path for each in known.split("train", "query")}
    assert {entry.tags["split"] for entry in others} == {"train", "query"}


def test_of_a_text_set_those_images_count_that_its_tests_search_in(tmp_path):
    make_agsynth(tmp_path, ids=4, images_per_id=4, size=(32, 16), layout="tag-pedes", workers=1, progress=False)
    assert {entry.tags["split"] for entry in list_gallery(tmp_path, "TAG-PEDES")[0]} == {"test"}


def test_a_dataset_without_these_splits_is_one_line(agsynth, folder):
    with pytest.raises(
        InputError, match=r"no image of split val; CARGO has train, query, gallery: name some with --spl"
    ):
        list_gallery(agsynth, "CARGO", ["val"])
    with pytest.raises(InputError, match=r"split 'galery' unknown \(did you mean gallery\?\)"):
        list_gallery(agsynth, "CARGO", ["galery"])


def test_what_is_no_gallery(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match="is neither a folder nor a CSV table"):
        list_gallery(tmp_path / "notes.txt")
    with pytest.raises(InputError, match="has no images in it"):
        list_gallery(tmp_path)
