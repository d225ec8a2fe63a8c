"""Charts: learning curves and expert usage from a run's history, bars of several models under several protocols."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from agreid_plugin.data.files import read_text
from agreid_plugin.errors import InputError
from agreid_plugin.visualize.experts import History
from agreid_plugin.visualize.style import DASHES, INK, PALETTE, add_title, apply_style, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HISTORY_FILES = ("metrics.json", "*/vis_data/scalars.json")
"""Where fast-reid and mmengine keep them, below the folder of a run; the latter has one for each session."""
STEPS = ("iteration", "iter", "step")
EXPERTS = "experts/"
RESULTS = ("mAP", "Rank-1")
TOTAL = ("total_loss", "loss")
"""What the hosts call the sum of all losses."""
MAX_CURVES = 2 * len(PALETTE)

Line = dict[str, Any]
PANEL, NAMES, LINE = 1.7, 1.4, 0.16  # inches: a protocol's width, the names' width, the height of one bar
MARKERS = "os^Dv"

Values = Mapping[str, Sequence[float]]
"""Name of a number -> its value with each seed, in percent."""


def read_history(run: str | Path) -> list[Line]:
    """Return what the run wrote down, a dictionary a step; nothing if there is no such file.

    Raises:
        InputError: the file is not lines of JSON.
    """
    found = sorted(path for pattern in HISTORY_FILES for path in Path(run).glob(pattern))
    lines: list[Line] = []
    for path in found:
        for number, text in enumerate(read_text(path).splitlines(), start=1):
            if text.strip():
                lines.append(_parse_line(path, number, text))
    return lines


def _parse_line(path: Path, number: int, text: str) -> Line:
    try:
        line = json.loads(text)
    except ValueError:
        line = None
    if not isinstance(line, dict):
        raise InputError(f"{path}: line {number} is no JSON object: it was cut off, or is not a run's history")
    return line


def get_step(line: Line) -> float | None:
    """Return when a line was written."""
    return next((line[name] for name in STEPS if isinstance(line.get(name), int | float)), None)


def get_series(lines: Sequence[Line], name: str) -> tuple[list[float], list[float]]:
    """Return the steps and values of a number."""
    pairs = ((get_step(line), line[name]) for line in lines if isinstance(line.get(name), int | float))
    kept = {step: value for step, value in pairs if step is not None}
    return list(kept), list(kept.values())


def expert_history(lines: Sequence[Line]) -> tuple[History, str]:
    """Return every expert's share over training by the name of its group, and what the steps are."""
    names = sorted({name for line in lines for name in line if name.startswith(EXPERTS)})
    found: dict[str, tuple[list[float], dict[int, list[float]]]] = {}
    for name in names:
        group, _, expert = name.removeprefix(EXPERTS).rpartition("/")
        steps, values = get_series(lines, name)
        if not expert.isdigit() or not steps:
            continue
        known, by_expert = found.setdefault(group, (steps, {}))
        by_expert[int(expert)] = [dict(zip(steps, values, strict=True)).get(step, np.nan) for step in known]
    counted = any("iteration" in line for line in lines if any(name in line for name in names))
    return found, "iteration" if counted else "epoch"


@apply_style
def draw_curves(lines: Sequence[Line], title: str, protocol: str = "") -> Figure:
    """Draw the losses and, of a protocol, the results over training.

    Args:
        lines: the history.
        title: stands above both.
        protocol: its full name; results are left out without it, and where there are fewer than two.

    Raises:
        InputError: there are no losses in the history.
    """
    names = {name for line in lines for name in line if "loss" in name}
    losses = sorted(names, key=lambda name: (name not in TOTAL, name))[:MAX_CURVES]
    if not losses:
        raise InputError("the run wrote down no losses")
    results = {name: get_series(lines, f"{protocol}/{name}") for name in RESULTS} if protocol else {}
    results = {name: values for name, values in results.items() if len(values[0]) > 1}
    drawing = figure(7.2 if results else 4.6, 2.7)
    panels = drawing.subplots(1, 2 if results else 1, squeeze=False)[0]
    for place, name in enumerate(losses):
        steps, values = get_series(lines, name)
        width, color = 1.6 if place == 0 else 1.0, PALETTE[place % len(PALETTE)]
        shown = name.removeprefix("loss_").replace("_", " ")
        panels[0].plot(steps, values, color=color, lw=width, ls=DASHES[place // len(PALETTE)], label=shown)
    panels[0].set(yscale="log", xlabel="iteration", ylabel="loss", title="losses")
    panels[0].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7, handlelength=1.6)
    for place, (name, (steps, values)) in enumerate(results.items()):
        panels[1].plot(steps, values, color=PALETTE[place], lw=1.4, marker="o^"[place], ms=3, label=name)
    if results:
        unit = "iteration" if any("iteration" in line for line in lines) else "epoch"
        panels[1].set(xlabel=unit, ylabel="%", title=protocol, ylim=(0, None))
        panels[1].legend(loc="lower right")
    add_title(drawing, title)
    return drawing


@apply_style
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
    add_title(drawing, title, about)
    return drawing


def _bars(panel: Axes, values: Sequence[Sequence[float]], place: int, count: int, name: str) -> None:
    """Draw one number of all rows: (rows, seeds), seeds perhaps of different number."""
    height = 0.8 / count
    at = np.arange(len(values)) - 0.4 + height * (place + 0.5)
    color = PALETTE[place % len(PALETTE)]
    panel.barh(at, [mean(each) for each in values], height * 0.9, color=color, alpha=0.45, label=name)
    for level, each in zip(at, values, strict=True):
        panel.scatter(each, [level] * len(each), s=5, color=INK, marker=MARKERS[place % len(MARKERS)], lw=0, zorder=3)
