"""The picture of a grid shows what it was given."""

import numpy as np
from matplotlib.colors import to_rgb

from agreid_plugin.visualize import charts
from agreid_plugin.visualize.charts import draw_grid
from agreid_plugin.visualize.style import PALETTE

ROWS = {
    "whole": {"CARGO/A2G": {"Rank-1": [60.0, 60.0, 60.0], "mAP": [30.0, 30.0, 30.0]}},
    "half": {"CARGO/A2G": {"Rank-1": [20.0, 30.0, 40.0], "mAP": [15.0, 15.0]}},
}


def longest(picture: np.ndarray, color: str) -> list[int]:
    """The widths in pixels of the bars in a color, from top to bottom."""
    pale = 255 * (0.45 * np.array(to_rgb(color)) + 0.55)
    widths = (np.abs(picture - pale).max(axis=-1) < 3).sum(axis=1)
    filled = np.flatnonzero(widths > 20)
    bars = np.split(filled, np.flatnonzero(np.diff(filled) > 1) + 1)
    return [int(np.max(widths[bar])) for bar in bars if len(bar) > 10]


def test_bars_are_as_long_as_the_means():
    picture = np.asarray(draw_grid(ROWS, "title")).astype(float)
    ranks, precisions = (longest(picture, color) for color in PALETTE[:2])
    ranks, precisions = ranks[-2:], precisions[-2:]  # the legend comes before them
    np.testing.assert_allclose(np.array([*ranks, *precisions]) / ranks[0], [1, 0.5, 0.5, 0.25], atol=0.02)


def test_a_seed_is_a_dot(monkeypatch):
    drawn = []
    native = charts._bars
    monkeypatch.setattr(charts, "_bars", lambda panel, *rest: (drawn.append(panel), native(panel, *rest)))
    draw_grid(ROWS, "title")
    dots = [tuple(dot.get_offsets()[:, 0]) for dot in drawn[-1].collections]
    assert dots == [(60, 60, 60), (20, 30, 40), (30, 30, 30), (15, 15)]


def test_every_protocol_has_a_panel():
    one = draw_grid(ROWS, "title")
    two = draw_grid({name: {**row, "CARGO/ALL": row["CARGO/A2G"]} for name, row in ROWS.items()}, "title")
    assert two.width > 1.4 * one.width
