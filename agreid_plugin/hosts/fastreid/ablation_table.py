"""The runs of a grid, by what their folders hold, and the table of them.

Shapes: N queries that have a match, of each seed.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from fastreid.config import CfgNode, get_cfg
from tabulate import tabulate

from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.data.datasets.files import read_json
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import (
    Metrics,
    PerQuery,
    compare,
    covered,
    load_features,
    load_results,
    require_comparable,
)
from agreid_plugin.evaluation.bootstrap import DRAWS
from agreid_plugin.evaluation.confidence import SIGNIFICANT
from agreid_plugin.evaluation.results import FILE_NAME as RESULTS
from agreid_plugin.evaluation.results import VIEWS
from agreid_plugin.evaluation.test_sets import choose
from agreid_plugin.hosts.fastreid.config import key_paths, load_config
from agreid_plugin.hosts.fastreid.evaluator import comparison

RECORD, FEATURES, EVALUATION, CHECKPOINT = "ablation_run.json", "features.npz", "eval", "last_checkpoint"

Row = Mapping[int, Mapping[str, Metrics]]
"""Seed -> protocol's full name -> its numbers."""


@dataclass(frozen=True)
class Run:
    """One row with one seed: its configuration, as `KEY VALUE` overrides of a file, and its folder."""

    row: str
    seed: int
    config: Path
    overrides: tuple[str, ...]
    folder: Path

    def __str__(self) -> str:
        return f"{self.row}, seed {self.seed}"

    @property
    def arguments(self) -> list[str]:
        """All overrides; an ablated row is not held to the results that its recipe expects."""
        return [*self.overrides, "SEED", str(self.seed), "TEST.EXPECTED_RESULTS", "[]"]

    def load(self) -> CfgNode:
        """Return the configuration."""
        return load_config(self.config, self.arguments)

    def settings(self) -> dict[str, Any]:
        """Return every key that is not at the host's default or ours, but for the folder, as JSON has it."""
        values, defaults = (json.loads(json.dumps(_flat(cfg))) for cfg in (self.load(), get_cfg()))
        return {key: value for key, value in values.items() if value != defaults[key] and key != "OUTPUT_DIR"}

    def record(self) -> dict[str, Any]:
        """Return what was kept of the run; nothing if it was never started."""
        path = self.folder / RECORD
        record = read_json(path, dict) if path.exists() else {}
        seconds = record.get("seconds") or 0
        if not (isinstance(record.get("settings", {}), dict) and isinstance(seconds, int | float) and seconds >= 0):
            raise InputError(f"{path} is not what 'fastreid ablate' writes: delete the folder to train it again")
        return record

    def keep(self, **outcome: Any) -> None:
        """Write what the run is and how it went."""
        about = {"row": self.row, "seed": self.seed, "config": str(self.config), "overrides": self.overrides}
        text = json.dumps({**about, **outcome, "settings": self.settings()}, indent=2)
        unfinished = self.folder / f"unfinished-{RECORD}"
        unfinished.write_text(text + "\n", encoding="utf-8")
        unfinished.replace(self.folder / RECORD)

    @property
    def trained(self) -> bool:
        """Whether training came to its end; results.json alone may be of an earlier epoch."""
        return bool(self.record().get("finished")) and (self.folder / RESULTS).exists()

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.trained and (self.folder / FEATURES).exists()

    def check_folder(self) -> None:
        """Refuse a folder with another run than this one: its numbers would stand under a wrong name."""
        record, advice = self.record(), "name another --output, or delete the folder"
        if not record and any((self.folder / name).exists() for name in (RESULTS, CHECKPOINT)):
            raise InputError(f"{self.folder} holds a run that 'fastreid ablate' did not make; {advice}")
        before, now = record.get("settings", {}), self.settings() if record else {}
        for key in sorted(now.keys() | before.keys()):
            then, asked = (settings.get(key, "at its default") for settings in (before, now))
            if then != asked:
                what = f"{key} {then}, row {self.row!r} asks for {asked}"
                raise InputError(f"{self.folder} was made with {what}; {advice}")

    @property
    def state(self) -> str:
        """What is to be done, in words."""
        if self.trained:
            return "done" if self.done else "to evaluate"
        return "to continue" if (self.folder / CHECKPOINT).exists() else "to train"

    def metrics(self, protocols: Sequence[str]) -> dict[str, Metrics]:
        """Return the numbers under protocols (none: all) by full name, new ones from the features that were kept."""
        kept = self.folder / EVALUATION / RESULTS
        entries = load_results(kept).values() if kept.exists() else ()
        found = {each.protocol: each for by_name in entries for each in by_name.values()}
        if any(name not in found for name in protocols) or not found:
            features = load_features(self.folder / FEATURES)
            names = [name.partition("/")[2] for name in protocols if name not in found]
            every = not names and features.dataset.name in DATASETS
            wanted = covered(features) if every else choose(features.dataset, names).values()
            found |= {each.protocol: each for each in comparison(self.load()).compute(features, wanted)}
        return {name: found[name] for name in protocols or found}


def _flat(cfg: CfgNode) -> dict[str, Any]:
    return {path: attrgetter(path)(cfg) for path in key_paths(cfg)}


@dataclass(frozen=True)
class Grid:
    """Runs, row by row, and the columns of their table: full names of protocols (none: all) and numbers."""

    folder: Path
    runs: tuple[Run, ...]
    dataset: str
    protocols: tuple[str, ...]
    metrics: tuple[str, ...]


def table(grid: Grid) -> Iterator[str]:
    """Write the table of the runs that are done; yields it."""
    rows: dict[str, dict] = {}
    for run in grid.runs:
        if run.done:
            rows.setdefault(run.row, {})[run.seed] = run.metrics(grid.protocols)
    if not rows:
        raise InputError(f"no run is done in {grid.folder}: leave out --table-only to train")
    missing = [str(run) for run in grid.runs if not run.done]
    if missing:
        yield f"not in the table, as they are not done: {'; '.join(missing)}"
    every = [metrics for seeds in rows.values() for metrics in seeds.values()]
    protocols = grid.protocols or [name for name in every[0] if all(name in metrics for metrics in every)]
    yield write_tables(grid.folder, rows, protocols, grid.metrics)


@dataclass(frozen=True)
class Cell:
    """One number of a row: mean and sample standard deviation over seeds, and the p-value against the first row."""

    mean: float
    spread: float | None
    p: float | None

    def __str__(self) -> str:
        spread = "" if self.spread is None else f" ± {self.spread:.2f}"
        return f"{self.mean:.2f}{spread}{'*' if self.p is not None and self.p < SIGNIFICANT else ''}"


def cells(row: Row, first: Row, protocol: str, numbers: Sequence[str]) -> list[Cell]:
    """Return numbers of a row under one protocol.

    The p-values are those of `compare`, the seeds that both rows have side by side: a draw of an identity takes its
    queries in all of them. There are none for the first row itself, nor between views given and views predicted.
    """
    common = [seed for seed in row if seed in first]
    p_values: dict[str, float] = {}
    if row is not first and common:
        pair = [_pooled([each[seed][protocol] for seed in common]) for each in (first, row)]
        if "" in (pair[0].views, pair[1].views) or pair[0].views == pair[1].views:
            p_values = {name: difference.p for name, difference in compare(*pair).items()}
    values = {name: [metrics[protocol][name] for metrics in row.values()] for name in numbers}
    spreads = {name: stdev(each) if len(each) > 1 else None for name, each in values.items()}
    return [Cell(mean(each), spreads[name], p_values.get(name)) for name, each in values.items()]


def _pooled(seeds: Sequence[Metrics]) -> Metrics:
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
    """
    _require_same_queries(rows, protocols)
    first_name, first = next(iter(rows.items()))
    columns = [f"{protocol} {number}" for protocol in protocols for number in numbers]
    about = {name: [name, len(row), *_about(row, protocols[0])] for name, row in rows.items()}
    found = {
        name: [cell for protocol in protocols for cell in cells(row, first, protocol, numbers)]
        for name, row in rows.items()
    }
    head = ["row", "seeds", "views", "distance"]
    shown = [[*about[name], *map(str, found[name])] for name in rows]
    text = tabulate(shown, [*head, *columns], tablefmt="github", disable_numparse=True)
    text = f"{text}\n\n{_caption(first_name, first, protocols)}\n"
    (folder / "ablation.md").write_text(text, encoding="utf-8")
    with (folder / "ablation.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*head, *(f"{column} {part}" for column in columns for part in ("mean", "spread", "p"))])
        for name in rows:
            writer.writerow([*about[name], *(v for cell in found[name] for v in (cell.mean, cell.spread, cell.p))])
    return text


def _require_same_queries(rows: Mapping[str, Row], protocols: Sequence[str]) -> None:
    """Refuse runs that were asked other queries, by name; their views may differ, as every row tells its own."""
    for protocol in protocols:
        runs = {f"{name}, seed {seed}": row[seed][protocol] for name, row in rows.items() for seed in row}
        require_comparable({name: replace(metrics, views="") for name, metrics in runs.items()})


def _about(row: Row, protocol: str) -> list[str]:
    entries = [metrics[protocol] for metrics in row.values()]
    views = {VIEWS.get(entry.views, entry.views) for entry in entries}
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
