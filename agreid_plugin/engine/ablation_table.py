"""Table of a grid of runs: mean and spread over seeds, significance against the first row, and a picture.

Shapes: N queries that have a match, of each seed.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev

import numpy as np
from tabulate import tabulate

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import Metrics, PerQuery, compare, require_comparable
from agreid_plugin.evaluation.confidence import DRAWS, SIGNIFICANT
from agreid_plugin.evaluation.metrics import format_views
from agreid_plugin.visualize.charts import draw_grid

PICTURE = "ablation.png"

Row = Mapping[int, Mapping[str, Metrics]]
"""Seed -> protocol's full name -> its numbers."""


@dataclass(frozen=True)
class Cell:
    """One number of a row: mean and sample standard deviation over seeds, and the p-value against the first row."""

    mean: float
    spread: float | None
    p: float | None

    def __str__(self) -> str:
        spread = "" if self.spread is None else f" ± {self.spread:.2f}"
        return f"{self.mean:.2f}{spread}{'*' if self.p is not None and self.p < SIGNIFICANT else ''}"


def compute_cells(row: Row, first: Row, protocol: str, numbers: Sequence[str]) -> list[Cell]:
    """Return numbers of a row under one protocol.

    The p-values are those of `compare`, the seeds that both rows have side by side: a draw of an identity takes its
    queries in all of them. There are none for the first row itself, nor between views given and views predicted.
    """
    common = [seed for seed in row if seed in first]
    p_values: dict[str, float] = {}
    if row is not first and common:
        pair = [_pool([each[seed][protocol] for seed in common]) for each in (first, row)]
        if "" in (pair[0].views, pair[1].views) or pair[0].views == pair[1].views:
            p_values = {name: difference.p for name, difference in compare(*pair).items()}
    values = {name: [metrics[protocol][name] for metrics in row.values()] for name in numbers}
    spreads = {name: stdev(each) if len(each) > 1 else None for name, each in values.items()}
    return [Cell(mean(each), spreads[name], p_values.get(name)) for name, each in values.items()]


def _pool(seeds: Sequence[Metrics]) -> Metrics:
    """Return one evaluation that holds the single queries of several, (seeds x N,)."""
    missing = next((entry.protocol for entry in seeds if entry.per_query is None), None)
    if missing:
        raise InputError(f"{missing}: results of single queries were not kept; delete the runs' eval folders")
    arrays = [entry.per_query.arrays() for entry in seeds]
    joint = PerQuery(**{name: np.concatenate([each[name] for each in arrays]) for name in arrays[0]})
    return replace(seeds[0], per_query=joint)


def write_tables(folder: Path, rows: Mapping[str, Row], protocols: Sequence[str], numbers: Sequence[str]) -> str:
    """Write ablation.md and ablation.csv; returns the former's text.

    Args:
        folder: where to.
        rows: the rows by name, the one that others are compared with first.
        protocols: full names of the protocols.
        numbers: which of `NUMBERS`.

    Raises:
        InputError: runs that were asked other queries, by name; their views may differ, as every row has its own.
    """
    for each in protocols:
        runs = {f"{name}, seed {seed}": row[seed][each] for name, row in rows.items() for seed in row}
        require_comparable({name: replace(metrics, views="") for name, metrics in runs.items()})
    first_name, first = next(iter(rows.items()))
    head = ["row", "seeds", "views", "distance"]
    columns = [f"{protocol} {number}" for protocol in protocols for number in numbers]
    about = {name: [name, len(row), *_describe_row(row, protocols[0])] for name, row in rows.items()}
    cells = {
        name: [cell for each in protocols for cell in compute_cells(row, first, each, numbers)]
        for name, row in rows.items()
    }
    lines = [[*about[name], *map(str, cells[name])] for name in rows]
    text = tabulate(lines, [*head, *columns], tablefmt="github", disable_numparse=True)
    text = f"{text}\n\n{_caption(first_name, first, protocols)}\n"
    (folder / "ablation.md").write_text(text, encoding="utf-8")
    with (folder / "ablation.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*head, *(f"{column} {part}" for column in columns for part in ("mean", "spread", "p"))])
        for name in rows:
            writer.writerow([*about[name], *(v for cell in cells[name] for v in (cell.mean, cell.spread, cell.p))])
    return text


def write_picture(folder: Path, rows: Mapping[str, Row], protocols: Sequence[str], numbers: Sequence[str]) -> str:
    """Draw ablation.png, the seeds of every row beside each other; returns where it is, or why there is none.

    The arguments are those of `write_tables`.
    """
    values = {
        name: {
            each: {number: [seed[each][number] for seed in row.values()] for number in numbers} for each in protocols
        }
        for name, row in rows.items()
    }
    seeds = sorted({seed for row in rows.values() for seed in row})
    try:
        picture = draw_grid(values, folder.name, f"dots: seeds {', '.join(map(str, seeds))}; bars: their means")
    except InputError as error:  # no matplotlib: the tables are there all the same
        return f"no picture of it: {error}"
    picture.save(folder / PICTURE)
    return f"drawn in {folder / PICTURE}"


def _describe_row(row: Row, protocol: str) -> list[str]:
    """Return how a row's views are known and its features compared."""
    entries = [metrics[protocol] for metrics in row.values()]
    views = {format_views(entry.views) for entry in entries}
    return [" / ".join(sorted(views)), " / ".join(sorted({entry.distance for entry in entries}))]


def _caption(name: str, row: Row, protocols: Sequence[str]) -> str:
    entries = next(iter(row.values()))
    sources = "; ".join(f"{each}: {entries[each].queries} queries ({entries[each].source})" for each in protocols)
    return (
        f"Percent, mean ± sample standard deviation over seeds. *: differs from {name} with p < {SIGNIFICANT}, by a "
        f"two-sided paired bootstrap over query identities ({DRAWS} draws) of the difference averaged over the seeds "
        "that both rows have; the seeds are taken as they are, and the many numbers of a table are not corrected for. "
        f"Rows with views given and rows with views predicted are not tested against each other. {sources}."
    )
