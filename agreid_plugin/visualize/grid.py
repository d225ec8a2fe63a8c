"""The numbers of several models under several protocols: each seed a dot, the mean a bar behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from agreid_plugin.visualize.style import INK, PALETTE, figure, head, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL, NAMES, LINE = 1.7, 1.4, 0.16  # inches: a protocol's width, the names' width, the height of one bar
MARKERS = "os^Dv"

Values = Mapping[str, Sequence[float]]
"""Name of a number -> its value with each seed, in percent."""


@styled
def draw_grid(rows: Mapping[str, Mapping[str, Values]], title: str, about: str = "") -> Figure:
    """Draw a panel for each protocol, with a bar for each number of each row.

    Args:
        rows: name of a model -> full name of a protocol -> its numbers; all rows have the same protocols and numbers.
        title: stands above all panels.
        about: what the numbers are of, below them.
    """
    protocols = list(next(iter(rows.values())))
    numbers = list(next(iter(rows.values()))[protocols[0]])
    drawing = figure(NAMES + PANEL * len(protocols), 0.9 + LINE * len(rows) * (len(numbers) + 1))
    panels = drawing.subplots(1, len(protocols), sharex=True, sharey=True, squeeze=False)[0]
    for panel, protocol in zip(panels, protocols, strict=True):
        for place, number in enumerate(numbers):
            _bars(panel, [row[protocol][number] for row in rows.values()], place, len(numbers), number)
        panel.set(title=protocol, xlabel="%", xlim=(0, None))
        panel.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(rows)), list(rows))
    panels[0].invert_yaxis()  # the first row on top
    drawing.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=len(numbers))
    head(drawing, title, about)
    return drawing


def _bars(panel: Axes, values: Sequence[Sequence[float]], place: int, count: int, name: str) -> None:
    """Draw one number of all rows: (rows, seeds), seeds perhaps of different number."""
    height = 0.8 / count
    at = np.arange(len(values)) - 0.4 + height * (place + 0.5)
    color = PALETTE[place % len(PALETTE)]
    panel.barh(at, [mean(each) for each in values], height * 0.9, color=color, alpha=0.45, label=name)
    for level, each in zip(at, values, strict=True):
        panel.scatter(each, [level] * len(each), s=5, color=INK, marker=MARKERS[place % len(MARKERS)], lw=0, zorder=3)
