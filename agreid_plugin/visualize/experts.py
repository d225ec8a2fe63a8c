"""Expert usage: heat maps of experts by cameras, and the shares of experts over training.

Shapes: E experts, C cameras.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from agreid_plugin.types import UNKNOWN, view_from_label, view_word
from agreid_plugin.visualize.style import DASHES, FAINT, MAP, PALETTE, VIEW_MARKERS, add_title, apply_style, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 3  # in a row
MAX_SPACIOUS = 4  # cameras below which there is room for two words


@dataclass(frozen=True)
class ExpertUsageTable:
    """How the images of each camera are shared out among a group of experts.

    Attributes:
        module: the mixture's name in the model.
        group: the group's, empty if there is one.
        experts: E numbers.
        cameras: C of (view, camera), `UNKNOWN` if unknown.
        shares: (E, C) of the images; a column adds up to the number of experts asked for an image, or to 1 where all
            are, with their weights.
    """

    module: str
    group: str
    experts: tuple[int, ...]
    cameras: tuple[tuple[int, int], ...]
    shares: np.ndarray

    @property
    def has_cameras(self) -> bool:
        """Whether the number of any camera is known."""
        return any(camera != UNKNOWN for _, camera in self.cameras)

    @property
    def name(self) -> str:
        """The group's name in metrics.json."""
        return f"{self.module}/{self.group}" if self.group else self.module


History = Mapping[str, tuple[Sequence[float], Mapping[int, Sequence[float]]]]
"""A group's name -> steps, and each expert's share at these steps."""


@apply_style
def draw_experts(
    shares: Sequence[ExpertUsageTable], title: str, history: History | None = None, unit: str = "epoch"
) -> Figure:
    """Draw a heat map of experts by cameras for each group, and below it the group's shares over training.

    Args:
        shares: the groups.
        title: stands above all.
        history: of training, if it is known.
        unit: what its steps are.
    """
    rows = [shares[start : start + PANELS] for start in range(0, len(shares), PANELS)]
    history = {name: values for name, values in (history or {}).items() if name in {each.name for each in shares}}
    high = max(0.17 * max(len(each.experts) for each in shares) + 0.75, 1.5)
    lower = 1.9 if history else 0.0
    drawing = figure(7.2, 0.5 + len(rows) * (high + lower))
    for drawn, row in zip(drawing.subfigures(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
        parts = drawn.subfigures(2, 1, height_ratios=(high, lower)) if history else [drawn]
        _maps(parts[0], row)
        if history:
            _lines(parts[1], row, history, unit)
    add_title(drawing, title)
    return drawing


def _maps(drawing: Figure, row: Sequence[ExpertUsageTable]) -> None:
    widths = [max(len(each.cameras), 3) for each in row]
    panels = drawing.subplots(1, len(row), squeeze=False, width_ratios=widths)[0]
    most = max(max(each.shares.max(), 2 / len(each.experts)) for each in row)  # even shares are not dark
    for number, (axes, each) in enumerate(zip(panels, row, strict=True)):
        image = axes.pcolormesh(100 * each.shares, cmap=MAP, vmin=0, vmax=100 * most, edgecolors="white", linewidth=0.8)
        axes.invert_yaxis()
        axes.set_yticks(np.arange(len(each.experts)) + 0.5, [str(expert) for expert in each.experts])
        names = [_camera(camera) for _, camera in each.cameras] if each.has_cameras else [""] * len(each.cameras)
        axes.set_xticks(np.arange(len(each.cameras)) + 0.5, names)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(format_label(each))
        if number == 0:
            axes.set_ylabel("expert")
        _views(axes, each)
    drawing.colorbar(image, ax=panels, label="share, %", pad=0.01, aspect=25).outline.set_visible(False)


def _views(axes: Axes, each: ExpertUsageTable) -> None:
    """Mark below the cameras' numbers which are aerial and which ground."""
    start = 0
    for view, members in groupby(each.cameras, key=lambda camera: camera[0]):
        count = len(list(members))
        known = view_from_label(view)
        span: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False}
        axes.plot((start + 0.1, start + count - 0.1), (-0.15, -0.15), color=VIEW_MARKERS[known], lw=2.5, **span)
        words = [view_word(known), "cameras" if count >= MAX_SPACIOUS else ""]
        axes.text(start + count / 2, -0.18, " ".join(words).strip(), ha="center", va="top", fontsize=7, **span)
        start += count


def _lines(drawing: Figure, row: Sequence[ExpertUsageTable], history: History, unit: str) -> None:
    panels = drawing.subplots(1, len(row), squeeze=False, sharey=True)[0]
    for number, (axes, each) in enumerate(zip(panels, row, strict=True)):
        axes.set_xlabel(unit)
        axes.set_title(format_label(each), fontsize=8)  # the panels are not as wide as the maps above them
        if number == 0:
            axes.set_ylabel("share in training, %")
        if each.name not in history:
            continue
        steps, by_expert = history[each.name]
        even = 100 * sum(values[-1] for values in by_expert.values()) / len(by_expert)
        axes.axhline(even, color=FAINT, lw=0.8, ls=(0, (1, 2)), label="even")
        for place, (expert, values) in enumerate(sorted(by_expert.items())):
            color, dash = PALETTE[place % len(PALETTE)], DASHES[place // len(PALETTE) % len(DASHES)]
            axes.plot(
                steps,
                100 * np.asarray(values),
                color=color,
                ls=dash,
                lw=1.1,
                marker="o",
                ms=2,
                label=str(expert),
            )
        axes.set_ylim(bottom=0)
    handles, labels = max((axes.get_legend_handles_labels() for axes in panels), key=lambda each: len(each[1]))
    drawing.legend(handles, labels, title="expert", loc="outside right center", handlelength=1.4, title_fontsize=8)


def format_label(each: ExpertUsageTable) -> str:
    """Return the words above a group's panel."""
    words = each.module.rpartition(".")[2].replace("_", " ")
    return f"{words}, {each.group}" if each.group else words


def _camera(number: int) -> str:
    return "?" if number == UNKNOWN else str(number)
