"""A grid of rows and seeds, trained one after another: each run in a folder and a process of its own, resumable."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from fastreid.config import get_cfg
from fastreid.utils.events import EventStorage

from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.data.datasets.files import read_json
from agreid_plugin.data.protocols import protocol
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.evaluation import NUMBERS
from agreid_plugin.evaluation.results import FILE_NAME as RESULTS
from agreid_plugin.hosts.fastreid import ablation_table, checks
from agreid_plugin.hosts.fastreid.agsynth import make_missing
from agreid_plugin.hosts.fastreid.config import key_paths, load_config
from agreid_plugin.hosts.fastreid.data import source_of
from agreid_plugin.hosts.fastreid.trainer import Trainer

RECORD, OUTPUT, FEATURES, CHECKPOINT = "ablation_run.json", "stdout.txt", "features.npz", "last_checkpoint"
OWN_KEYS = {"SEED": "seeds", "OUTPUT_DIR": "output"}
WARM_UP, TIMED = 2, 5  # training steps of a probe
DEFAULT = "its default"


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

    def load(self):
        """Return the configuration; an ablated row is not held to the results that its recipe expects."""
        return load_config(self.config, [*self.overrides, "SEED", str(self.seed), "TEST.EXPECTED_RESULTS", "[]"])

    def settings(self) -> dict[str, Any]:
        """Return every key that is not the default, but for the folder."""
        cfg, default = self.load(), get_cfg()
        found = {key: _value(cfg, key) for key in key_paths(cfg) if _value(cfg, key) != _value(default, key)}
        return json.loads(json.dumps({key: value for key, value in found.items() if key != "OUTPUT_DIR"}))

    def arguments(self) -> list[str]:
        """Return what a command is told of the configuration."""
        return ["--", *self.overrides, "SEED", str(self.seed), "TEST.EXPECTED_RESULTS", "[]"]

    def record(self) -> dict[str, Any]:
        """Return what was kept of the run, nothing if it was never started."""
        return read_json(self.folder / RECORD, dict) if (self.folder / RECORD).exists() else {}

    def keep(self, **outcome: Any) -> None:
        """Write the run's record."""
        record = {"row": self.row, "seed": self.seed, "config": str(self.config), "overrides": self.overrides}
        text = json.dumps({**record, **outcome, "settings": self.settings()}, indent=2)
        (self.folder / RECORD).write_text(text + "\n", encoding="utf-8")

    @property
    def trained(self) -> bool:
        """Whether training has come to its end."""
        return bool(self.record().get("finished")) and (self.folder / RESULTS).exists()

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.trained and (self.folder / FEATURES).exists()


@dataclass(frozen=True)
class Grid:
    """Runs by row, and the columns of their table: protocols' full names (none: all) and numbers."""

    folder: Path
    runs: tuple[Run, ...]
    dataset: str
    protocols: tuple[str, ...]
    metrics: tuple[str, ...]


def plan(path: Path, content: Mapping[str, Any], output: str | None = None) -> Grid:
    """Return the grid of a file, its form checked before, after checking every row's configuration.

    Raises:
        InputError: a row that cannot be trained, or folders that hold other runs than the file asks for.
    """
    folder = Path(output or content.get("output") or Path("logs") / path.stem)
    runs = tuple(run for row in content["rows"] for run in _runs(path, content, row, folder))
    slugs = {run.folder.parent: run.row for run in reversed(runs)}
    for run in runs:
        if slugs[run.folder.parent] != run.row:
            raise InputError(f"{path}: rows {slugs[run.folder.parent]!r} and {run.row!r} share the folder of their runs")
        _check_folder(run)
    tests = {source_of(name) or name: run.row for run in runs for name in run.load().DATASETS.TESTS}
    if len(tests) > 1:
        named = ", ".join(f"{dataset} ({row})" for dataset, row in tests.items())
        raise InputError(f"{path}: one table has one test set, DATASETS.TESTS of the rows name {named}")
    (dataset,) = tests
    for name in content["metrics"]:
        if name not in NUMBERS:
            raise unknown(f"{path}: metric", name, NUMBERS)
    protocols = tuple(_full_name(dataset, name) for name in content["protocols"])
    return Grid(folder, runs, dataset, protocols, tuple(content["metrics"]))


def _runs(path: Path, content: Mapping[str, Any], name: Any, folder: Path) -> list[Run]:
    row, overrides = str(name), dict(content["rows"][name] or {})
    config = overrides.pop("config", content.get("config"))
    slug = re.sub(r"[^a-z0-9]+", "-", row.lower()).strip("-")
    if not slug or not isinstance(config, str):
        wanted = "config, and the file has none for all" if slug else "letter or digit to call its folder by"
        raise InputError(f"{path}: row {row!r} has no {wanted}")
    for key in OWN_KEYS.keys() & overrides.keys():
        raise InputError(f"{path}: row {row!r} sets {key}, which {OWN_KEYS[key]} of the file is for")
    pairs = tuple(text for key, value in overrides.items() for text in (key, repr(value)))
    runs = [Run(row, seed, path.parent / config, pairs, folder / slug / f"seed{seed}") for seed in content["seeds"]]
    try:
        checks.check_config(runs[0].load())
    except InputError as error:
        raise InputError(f"{path}: row {row!r}: {str(error).removeprefix('command line: ')}") from None
    return runs


def _full_name(dataset: str, name: str) -> str:
    if dataset in DATASETS:
        return str(protocol(dataset, name))
    if name.removeprefix(f"{dataset}/") != "ALL":
        raise unknown(f"{dataset} protocol", name, ["ALL"])
    return f"{dataset}/ALL"


def _check_folder(run: Run) -> None:
    """Refuse a folder with another run than this: its numbers would stand under a wrong name."""
    record, now = run.record(), run.settings()
    before = record.get("settings", {})
    advice = "name another --output, or delete the folder"
    if not record and any((run.folder / name).exists() for name in (RESULTS, CHECKPOINT)):
        raise InputError(f"{run.folder} holds a run that 'fastreid ablate' did not make; {advice}")
    for key in sorted(now.keys() | before.keys()) if record else ():
        then, asked = before.get(key, DEFAULT), now.get(key, DEFAULT)
        if then != asked:
            raise InputError(f"{run.folder} was made with {key} {then}, row {run.row!r} asks for {asked}; {advice}")


def run(grid: Grid, dry_run: bool = False) -> Iterator[str]:
    """Train what is not done, then write the table; yields lines for whoever waits.

    Raises:
        InputError: a run failed; what is done stays.
    """
    pending = [run for run in grid.runs if not run.done]
    rows, seeds = ([*dict.fromkeys(getattr(run, name) for run in grid.runs)] for name in ("row", "seed"))
    yield f"{grid.dataset}: {len(rows)} rows x {len(seeds)} seeds = {len(grid.runs)} runs in {grid.folder}"
    for row in rows:
        states = [f"{run.seed} {_state(run)}" for run in grid.runs if run.row == row]
        yield f"  {row}: seed {', '.join(states)}"
    yield f"{len(grid.runs) - len(pending)} done, {len(pending)} to do"
    if pending and not dry_run:
        make_missing(pending[0].load())
    seconds: dict[str, float] = {}
    if pending:
        seconds, how = _estimate(grid.runs, pending)
        yield f"time: about {_duration(_left(seconds, pending))} ({how})"
    if dry_run:
        return
    for place, current in enumerate(pending):
        number = f"[{len(grid.runs) - len(pending) + place + 1}/{len(grid.runs)}]"
        yield f"{number} {current}: {_state(current)}, output in {current.folder / OUTPUT}"
        start = time.monotonic()
        _make(current)
        # From now on the row's own measured time counts, the newest.
        seconds |= {current.row: taken} if (taken := current.record()["seconds"]) else {}
        left = _duration(_left(seconds, pending[place + 1 :]))
        yield f"{number} {current}: done in {_duration(time.monotonic() - start)}, about {left} left"
    yield from write_table(grid)


def _state(run: Run) -> str:
    if run.trained:
        return "done" if run.done else "to extract"
    return "to continue" if (run.folder / CHECKPOINT).exists() else "to train"


def _make(run: Run) -> None:
    """Train and extract what is missing of a run."""
    run.folder.mkdir(parents=True, exist_ok=True)
    log = run.folder / OUTPUT
    start, resumed = time.monotonic(), (run.folder / CHECKPOINT).exists()
    if not run.trained:
        run.keep(finished=False)
        command = ["train", "--config", run.config, "--output", run.folder, *(["--resume"] if resumed else [])]
        with log.open("a", encoding="utf-8") as file:
            argv = [sys.executable, "-m", "agreid_plugin", *map(str, command), *run.arguments()]
            _check_exit(run, subprocess.run(argv, stdout=file, stderr=file, stdin=subprocess.DEVNULL).returncode)
        run.keep(finished=True, seconds=None)
    part = run.folder / f"part-{FEATURES}"
    part.unlink(missing_ok=True)
    command = ["eval", "--config", run.config, "--weights", run.folder / "model_final.pth", "--save-features", part]
    # Every protocol's images are extracted, so that a later table may have other columns.
    whole = ["DATASETS.TESTS", repr((_whole_name(run),)), "TEST.PROTOCOLS", "[]"]
    command += ["--output", run.folder / ablation_table.EVALUATION, *run.arguments(), *whole]
    _check_exit(run, _apart(_command, [str(part) for part in command], log))
    part.replace(run.folder / FEATURES)
    run.keep(finished=True, seconds=None if resumed else time.monotonic() - start)
