"""Pictures from plain arrays: what is drawn is what was given."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from agreid_plugin.errors import InputError
from agreid_plugin.types import UNKNOWN, Record, View
from agreid_plugin.visualize.charts import draw_curves, expert_history, read_history
from agreid_plugin.visualize.experts import ExpertUsageTable, draw_experts
from agreid_plugin.visualize.patches import (
    Choice,
    PatchView,
    count_shares,
    draw_attention,
    draw_choices,
    fade,
    relative_attention,
)
from agreid_plugin.visualize.ranks import shorten_lines
from agreid_plugin.visualize.run_page import Section, render_sections
from agreid_plugin.visualize.scatter import choose_images
from agreid_plugin.visualize.style import break_lines

COLOR = (9, 9, 200)


def looked(*places: list[int]) -> PatchView:
    """An image of one color with a grid of 2 x 1 patches."""
    pixels = np.full((64, 32, 3), COLOR, dtype=np.uint8)
    return PatchView(Record("a.png", 1, 3, View.AERIAL), pixels, (2, 1), (Choice("identity", np.array(places)),))


def test_a_patch_is_the_paler_the_fewer_choose_it():
    found = looked([0], [0])
    np.testing.assert_array_equal(count_shares(found, found.choices[0]), [[1], [0]])
    np.testing.assert_array_equal(count_shares(looked([0], [1]), looked([0], [1]).choices[0]), [[0.5], [0.5]])
    picture = fade(found.pixels, np.array([[1.0], [0.5]]))
    middle = picture.shape[0] // 2
    assert (picture[:middle] == COLOR).all()
    assert (picture[middle:] == [round(c + 0.39 * (255 - c)) for c in COLOR]).all()


@pytest.mark.parametrize(("places", "whole"), [([[0]], 1.5), ([[0, 1]], 2.0)])
def test_chosen_patches_keep_their_colors_in_the_picture(places, whole):
    pixels = np.asarray(draw_choices([looked(*places)], "title"))
    full = (pixels == COLOR).all(axis=-1)
    columns = np.flatnonzero(full.any(axis=0))
    parts = np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1)  # the image, and the patches chosen of it
    areas = [full[:, part].sum() for part in parts if len(part) > 20]
    assert len(areas) == 2
    assert sum(areas) / areas[0] == pytest.approx(whole, abs=0.08)  # a line around the patches takes some


def test_long_words_are_broken_and_stay_on_a_narrow_picture():
    pixels = np.asarray(draw_choices([looked([0])], "a title of several words " * 3, about="what it shows " * 12))
    assert (pixels[:, -3:] == 255).all()
    lines = break_lines("one two " * 20, 2.0, 11).split("\n")
    assert len(lines) > 3
    assert " ".join(lines) == "one two " * 20
    assert break_lines("incomprehensibilities", 0.3, 11) == "incomprehensibilities"


def test_few_images_get_a_scale_as_high_as_many():
    found = PatchView(Record("a.png", 1), np.zeros((64, 32, 3), np.uint8), (2, 1), attention=np.array([0.1, 0.3]))
    heights = []
    for count in (1, 8):
        pixels = np.asarray(draw_attention([found] * count, "title")).astype(int)
        scale = (pixels[:, :, 0] - pixels[:, :, 2] > 100).sum(axis=0)  # its upper half is orange
        heights.append(scale[-120:].max() / len(pixels))
    assert heights[0] == pytest.approx(heights[1], abs=0.08)


def test_a_page_can_be_read_on_a_phone():
    told = Section("Summary", rows=[["epochs", "8"]])
    numbers = Section("Results", "", [["CARGO/ALL", "28.7"]], ["protocol", "Rank-1"])
    drawn = Section("Pictures", pictures={"a": Image.new("RGB", (1000, 9)), "b": Image.new("RGB", (300, 9))})
    made = render_sections("run", "config.yaml", [told, numbers, drawn])
    assert '<tr><td>epochs</td><td class="words">8</td></tr>' in made
    assert '<tr><td>CARGO/ALL</td><td class="number">28.7</td></tr>' in made
    assert made.count('<div class="wide"><table>') == 2
    assert re.findall(r"--least: (\d+)px", made) == ["720", "300"]


def test_a_page_shows_every_figure_and_runs_nothing_that_a_name_holds():
    bad = "<script>alert('&')</script>\udcff\n\"x\" {{ 7 * 7 }}"
    sections = [Section(bad, bad, [[bad, "1.5"]], [bad, bad], {bad: Image.new("RGB", (9, 9), COLOR)}), Section("B")]
    made = render_sections(bad, bad, sections)
    assert "<script" not in made
    assert "{{ 7 * 7 }}" in made
    assert made.count("&lt;script&gt;") == 10  # title, 2 headings, 2 lines, link, 3 cells, picture
    made.encode("utf-8")
    (source,) = re.findall(r'<img src="data:image/png;base64,([^"]*)"', made)
    with Image.open(io.BytesIO(base64.b64decode(source))) as image:
        assert image.getpixel((0, 0)) == COLOR
    targets, ids = (re.findall(rf'{name}="#?([^"]*)"', made) for name in ("href", "section id"))
    assert targets == ids
    assert len(set(ids)) == 2


def test_attention_is_told_against_the_mean_patch():
    found = PatchView(Record("a.png", 1), np.zeros((4, 2, 3), np.uint8), (2, 1), attention=np.array([0.1, 0.3]))
    np.testing.assert_allclose(relative_attention(found), [[0.5], [1.5]])


def test_a_long_caption_ends_with_dots():
    assert shorten_lines(["a man", "in red"], 2) == ["a man", "in red"]
    assert shorten_lines(["a man", "in a red coat", "and blue jeans"], 2) == ["a man", "in a red ..."]


def test_cameras_that_nobody_knows_have_no_numbers():
    known, unknown = (
        ExpertUsageTable("a", "", (0, 1), ((0, camera), (1, camera)), np.ones((2, 2))) for camera in (3, UNKNOWN)
    )
    assert (known.has_cameras, unknown.has_cameras) == (True, False)
    marked = [(np.asarray(draw_experts([each], "title")) < 128).sum() for each in (known, unknown)]
    assert marked[0] > marked[1]


def test_identities_with_colors_are_seen_from_both_views_and_shown_whole():
    records = [Record(f"{n}", n % 5, n, View(n % 2) if n % 5 < 2 else View.AERIAL) for n in range(40)]
    places, colored = choose_images(records, 2, 20)
    assert colored == [0, 1]
    assert len(places) == 20
    assert {n for n in range(40) if n % 5 < 2} <= set(places)
    with pytest.raises(InputError, match="1 to 8"):
        choose_images(records, 9, 20)


def test_histories_of_both_hosts_are_read(tmp_path):
    assert read_history(tmp_path) == []
    (tmp_path / "metrics.json").write_text('{"iteration": 3, "experts/router/aerial/0": 0.25, "total_loss": 1}\n')
    found, unit = expert_history(read_history(tmp_path))
    assert (found, unit) == ({"router/aerial": ([3], {0: [0.25]})}, "iteration")
    folder = tmp_path / "other" / "20260101" / "vis_data"
    folder.mkdir(parents=True)
    (folder / "scalars.json").write_text('{"experts/router/1": 0.5, "step": 2}\n')
    found, unit = expert_history(read_history(tmp_path / "other"))
    assert (found, unit) == ({"router": ([2], {1: [0.5]})}, "epoch")
    with pytest.raises(InputError, match="no losses"):
        draw_curves(read_history(tmp_path / "other"), "title")


def test_a_damaged_history_is_named(tmp_path):
    (tmp_path / "metrics.json").write_text('{"iteration": 3}\n{"iterat')
    with pytest.raises(InputError, match=r"metrics.json: line 2 is no JSON object"):
        read_history(tmp_path)
