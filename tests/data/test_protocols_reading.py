"""Protocol files are checked when they are read; a complaint names the file and the row."""

import pytest
import trees

from agreid_plugin.data.protocols import read_protocols
from agreid_plugin.errors import InputError

GOOD = """
Mine:
  A2G:
    query: {view: aerial, time: [day, dusk], camera: 3}
    gallery: {platform: cctv}
    hide: [same_camera_same_id, same_time]
    restrict: query_in_gallery
    list: test.txt
    kind: image
    source: me
    note: mine
"""


def test_a_full_row(tmp_path):
    row = read_protocols(trees.write_text(tmp_path / "p.yml", GOOD))["Mine"]["A2G"]
    assert str(row) == "Mine/A2G"
    assert row.query == {"view": ("aerial",), "time": ("day", "dusk"), "camera": ("3",)}
    assert row.gallery == {"platform": ("cctv",)}
    assert row.hide == ("same_camera_same_id", "same_time")
    assert (row.restrict, row.list_file, row.kind, row.note) == ("query_in_gallery", "test.txt", "image", "mine")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Mine: {A2G: {source: me, hides: []}}", ["Mine/A2G", "key 'hides' unknown", "did you mean hide"]),
        ("Mine: {A2G: {source: me, hide: [same_cam]}}", ["Mine/A2G", "hiding rule 'same_cam' unknown"]),
        ("Mine: {A2G: {source: me, query: {veiw: aerial}}}", ["Mine/A2G: query filter 'veiw'", "did you mean view"]),
        ("Mine: {A2G: {source: me, query: {view: areal}}}", ["query filter: view 'areal'", "did you mean aerial"]),
        ("Mine: {A2G: {source: me, gallery: aerial}}", ["gallery filter: expected property: value"]),
        ("Mine: {A2G: {source: me, restrict: ids}}", ["restrict 'ids' unknown", "query_in_gallery"]),
        ("Mine: {A2G: {source: me, kind: txt}}", ["kind 'txt' unknown", "did you mean text"]),
        ("Mine: {A2G: {hide: []}}", ["Mine/A2G: no source"]),
        ("Mine: {A2G: [1]}", ["Mine/A2G: expected a row"]),
        ("[1, 2]", ["expected dataset -> protocol -> row"]),
        ("Mine: {A2G: {", ["not valid YAML"]),
    ],
)
def test_bad_rows(tmp_path, text, words):
    with pytest.raises(InputError) as error:
        read_protocols(trees.write_text(tmp_path / "p.yml", text))
    assert all(word in str(error.value) for word in ["p.yml", *words])
    assert "\n" not in str(error.value)
