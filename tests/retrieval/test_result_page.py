"""Results shown: the table, the page and the contact sheet."""

import base64
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from agreid_plugin.errors import InputError
from agreid_plugin.retrieval.index import Entry, Match, SearchResult
from agreid_plugin.retrieval.result_page import (
    LINE,
    THUMBNAIL,
    as_json,
    draw_sheet,
    format_result,
    make_page,
    thumbnail,
)
from agreid_plugin.types import View

RED, BLUE = (200, 30, 30), (20, 40, 220)


@pytest.fixture
def red(tmp_path) -> str:
    return picture(tmp_path / "red.png", RED, (40, 120))


@pytest.fixture
def blue(tmp_path) -> str:
    return picture(tmp_path / "blue & <b>'\"wide.jpg", BLUE, (600, 300))


def match(path: str, score: float, view: View | None = None, **labels) -> Match:
    return Match(score, Entry(path, view, **labels))


def short(path: str) -> str:
    """Return a file by its name and its folder's, as it is shown among others of that folder."""
    return "/".join(Path(path).parts[-2:])


def picture(path, color, size) -> str:
    Image.new("RGB", size, color).save(path)
    return str(path)


def test_a_table_is_aligned():
    lines = format_result(SearchResult("q", (match("x/a.jpg", 0.5, View.AERIAL), match("b.jpg", -0.25)))).splitlines()
    assert [line.split() for line in lines] == [
        ["rank", "score", "view", "path"],
        ["------", "-------", "------", "-------"],
        ["1", "0.5000", "aerial", "x/a.jpg"],
        ["2", "-0.2500", "-", "b.jpg"],
    ]
    assert lines[0].index("path") == lines[2].index("x/a.jpg") == lines[3].index("b.jpg")
    assert lines[2].index("0.5000") == lines[3].index("-0.2500") + 1


def test_a_table_without_views_has_no_such_column():
    assert "view" not in format_result(SearchResult("q", (match("a.jpg", 0.5),)))


def test_plain_answers_are_json():
    told = as_json([SearchResult("q", (match("ä.jpg", 0.12345678, View.GROUND), match("b", 0.1)), ("cut",))])
    assert json.loads(json.dumps(told)) == [
        {
            "query": "q",
            "notes": ["cut"],
            "hits": [
                {"rank": 1, "path": "ä.jpg", "score": 0.123457, "view": "ground"},
                {"rank": 2, "path": "b", "score": 0.1, "view": None},
            ],
        }
    ]


class Reader(HTMLParser):
    """Collects what a browser would: elements with their attributes, and text."""

    def __init__(self, text: str):
        super().__init__()
        self.elements, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


def test_a_page_has_everything_inside_and_escapes_it(red, blue):
    query = "<script>alert('&')</script> \"coat\""
    found = [
        SearchResult(query, (match(red, 0.5, View.AERIAL), match(blue, 0.25, View.GROUND)), ("a <note>",)),
        SearchResult("second", (match(blue, 0.125),)),
    ]
    text = make_page(found, "gallery: <here>")
    read = Reader(text)
    tags = [tag for tag, _ in read.elements]
    assert tags.count("img") == tags.count("figure") == 3
    assert not {"script", "note", "here", "link"} & set(tags)
    words = "".join(read.words)
    for expected in (query, "a <note>", "second", "gallery: <here>", "0.5000 aerial", "0.1250", short(blue)):
        assert expected in words
    images = [attributes for tag, attributes in read.elements if tag == "img"]
    assert [image["alt"] for image in images] == [short(red), short(blue), short(blue)]
    assert all(set(image) == {"src", "alt"} for image in images)
    for image, color, size in zip(images, (RED, BLUE, BLUE), ((40, 120), (128, 64), (128, 64)), strict=True):
        kind, _, data = image["src"].partition(",")
        assert kind == "data:image/jpeg;base64"
        with Image.open(io.BytesIO(base64.b64decode(data))) as small:
            assert small.size == size
            assert np.asarray(small).mean(axis=(0, 1)) == pytest.approx(color, abs=6)
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text


def test_a_page_and_a_sheet_show_no_path_of_the_machine(tmp_path):
    files = [tmp_path / name for name in ("a/q.png", "another/q.png", "g/1/x.png", "g/2/x.png")]
    for path in files:
        path.parent.mkdir(parents=True)
    query, moved, *found = (picture(path, RED, (4, 4)) for path in files)
    answer = SearchResult(query, tuple(match(path, 0.5) for path in found), is_image=True)
    text = make_page([answer])
    assert str(tmp_path) not in text
    read = Reader(text)
    assert [attributes["alt"] for tag, attributes in read.elements if tag == "img"] == [
        "query",
        "g/1/x.png",
        "g/2/x.png",
    ]
    assert "<h1>q.png</h1>" in text
    np.testing.assert_array_equal(draw_sheet([answer]), draw_sheet([replace(answer, query=moved)]))


def test_a_page_can_be_written_whatever_the_names_are(tmp_path):
    path = picture(tmp_path / "bytes.png", RED, (4, 4))
    text = make_page([SearchResult("a\udcffb\nc", (match(path, 0.5, View.GROUND, camera=9, pid=116, time=0.0),))])
    assert "<b>1</b> · 0.5000 ground, camera 9, pid 116, 1970-01-01T00:00:00<span" in text
    assert b"a\\udcffb\\nc" in text.encode("utf-8")


def test_a_thumbnail_is_upright_and_rgb(tmp_path):
    image = Image.new("L", (300, 100), 90)
    exif = image.getexif()
    exif[0x0112] = 6  # taken with the camera on its side
    image.save(tmp_path / "side.jpg", exif=exif)
    small = thumbnail(str(tmp_path / "side.jpg"))
    assert small.mode == "RGB"
    assert small.height > small.width
    assert small.width <= THUMBNAIL[0]
    assert small.height <= THUMBNAIL[1]


@pytest.mark.parametrize("show", [make_page, draw_sheet])
def test_an_image_that_is_gone_is_named(tmp_path, show):
    with pytest.raises(InputError, match=r"image .*gone\.jpg cannot be shown"):
        show([SearchResult("q", (match(str(tmp_path / "gone.jpg"), 0.5),))])


def test_a_sheet_shows_every_image_once(red, blue):
    one = np.asarray(draw_sheet([SearchResult("q", (match(red, 0.5), match(blue, 0.25)))]))
    assert count(one, RED) == 85 * 256  # 40 x 120, as large as it can be
    assert count(one, BLUE) == pytest.approx(128 * 64, rel=0.05)
    many = np.asarray(draw_sheet([SearchResult("q", tuple(match(red, 0.5) for _ in range(12))), SearchResult("r", ())]))
    assert count(many, RED) == 12 * 85 * 256
    assert many.shape[1] > one.shape[1]
    assert many.shape[0] > one.shape[0] + THUMBNAIL[1]  # a second row


def test_a_long_query_is_broken_into_lines(red):
    hits = (match(red, 0.5),)
    heights = [draw_sheet([SearchResult(text, hits)]).height for text in ("red", "a red coat " * 30, "x" * 400)]
    assert heights[1] >= heights[0] + 2 * LINE
    assert heights[2] >= heights[0] + 2 * LINE
    drawn = np.asarray(draw_sheet([SearchResult("W" * 400, hits)]))
    assert (drawn[:, -4:] == drawn[0, 0]).all()  # nothing runs into the margin


def count(image: np.ndarray, color: tuple[int, int, int]) -> int:
    return int((abs(image.astype(int) - color) < 12).all(axis=2).sum())
