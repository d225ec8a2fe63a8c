"""Ablation: a grid of rows and seeds, each trained by the `fastreid train` command, of either host."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import mean
from typing import Any

from agreid_plugin.data.atomic_write import atomic_write
from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.data.files import read_json
from agreid_plugin.data.protocols import protocol
from agreid_plugin.engine.ablation_table import write_picture, write_tables
from agreid_plugin.engine.checkpoints import find_marked
from agreid_plugin.engine.checks import MARKER
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.evaluation import NUMBERS, Metrics, load_results
from agreid_plugin.evaluation.results import FILE_NAME as RESULTS
from agreid_plugin.host import find_host, load_host
from agreid_plugin.trust import OPTION, trusted

COMMAND = (sys.executable, "-m", "agreid_plugin")
RECORD, OUTPUT, EVALUATION = "ablation_run.json", "stdout.txt", "eval"
SEED = {"fastreid": "SEED", "mmengine": "randomness.seed"}
RESERVED_KEYS = {"SEED": "seeds", "randomness.seed": "seeds", "OUTPUT_DIR": "output", "work_dir": "output"}
"""Keys of the hosts that a row may not set -> the key of the grid's file that does."""
UNCHECKED = {"fastreid": ("TEST.EXPECTED_RESULTS", "[]"), "mmengine": ()}
"""Overrides that free an ablated row from the results that its recipe expects."""


@dataclass(frozen=True)
class Run:
    """One row with one seed: its configuration, as `KEY VALUE` overrides of a file, and its folder.

    Attributes:
        row: the row's name.
        seed: the seed.
        config: the configuration file.
        overrides: the row's `KEY VALUE` pairs.
        folder: the run's folder.
        datasets: names of the datasets it is evaluated on.
        settings: key -> value of its configuration as far as it is not the host's default, as JSON has it.
    """

    row: str
    seed: int
    config: Path
    overrides: tuple[str, ...]
    folder: Path
    datasets: tuple[str, ...]
    settings: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.row}, seed {self.seed}"

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
        with atomic_write(self.folder / RECORD) as draft:
            text = json.dumps({**about, **outcome, "settings": self.settings}, indent=2)
            draft.write_text(text + "\n", encoding="utf-8")

    def check_folder(self) -> None:
        """Refuse a folder with another run than this one: its numbers would stand under a wrong name."""
        record, advice = self.record(), "name another --output, or delete the folder"
        if not record and any((self.folder / name).exists() for name in (RESULTS, MARKER)):
            raise InputError(f"{self.folder} holds a run that 'fastreid ablate' did not make; {advice}")
        before, now = record.get("settings", {}), self.settings if record else {}
        for key in sorted(now.keys() | before.keys()):
            then, asked = (settings.get(key, "at its default") for settings in (before, now))
            if then != asked:
                what = f"{key} {then}, row {self.row!r} asks for {asked}"
                raise InputError(f"{self.folder} was made with {what}; {advice}")

    def results(self) -> dict[str, Metrics]:
        """Return the numbers of the final evaluation by the protocol's full name; nothing before there was one."""
        path = self.folder / EVALUATION / RESULTS
        entries = load_results(path).values() if path.exists() else ()
        return {each.protocol: each for by_name in entries for each in by_name.values()}

    def state(self, protocols: Sequence[str] = ()) -> str:
        """Return what is to be done, in a word or two: done, to evaluate, to continue or to train."""
        if self.record().get("finished"):
            found = self.results()
            return "done" if found and found.keys() >= set(protocols) else "to evaluate"
        return "to continue" if (self.folder / MARKER).exists() else "to train"

    def command(self, verb: str, *options: object) -> list[str]:
        """Return the command that trains or evaluates with the run's configuration."""
        host = find_host(self.config)
        trust = [OPTION] if trusted() else []
        overrides = [*self.overrides, SEED[host], str(self.seed), *UNCHECKED[host]]
        return [*COMMAND, verb, *map(str, ("--config", self.config, *options)), *trust, "--", *overrides]


@dataclass(frozen=True)
class Grid:
    """Runs, row by row, and the columns of their table: full names of protocols (none: all) and numbers."""

    folder: Path
    runs: tuple[Run, ...]
    protocols: tuple[str, ...]
    metrics: tuple[str, ...]

    def pending(self) -> list[Run]:
        """Return the runs that are not done."""
        return [run for run in self.runs if run.state(self.protocols) != "done"]


def plan(path: Path, content: Mapping[str, Any], output: str | None = None) -> Grid:
    """Return the grid of a file, after checking every row's configuration and folders.

    Args:
        path: the file, beside which the configurations are looked for.
        content: what it says, its form checked before.
        output: folder of the runs, instead of the file's.

    Raises:
        InputError: a row that cannot be trained, or folders that hold other runs than the file asks for.
    """
    folder = Path(output or content.get("output") or Path("logs", path.stem))
    runs = tuple(run for name in content["rows"] for run in _plan_row(path, content, name, folder))
    owners: dict[Path, str] = {}
    for run in runs:
        if owners.setdefault(run.folder.parent, run.row) != run.row:
            raise InputError(f"{path}: rows {owners[run.folder.parent]!r} and {run.row!r} would share a folder: rename")
    dataset = _require_one_dataset(path, runs)
    for name in content["metrics"]:
        if name not in NUMBERS:
            raise unknown(f"{path}: metric", name, NUMBERS)
    protocols = tuple(_full_name(dataset, name) for name in content["protocols"])
    for run in runs:
        run.check_folder()
    return Grid(folder, runs, protocols, tuple(content["metrics"]))


def _plan_row(path: Path, content: Mapping[str, Any], name: Any, folder: Path) -> list[Run]:
    row, overrides = str(name), dict(content["rows"][name] or {})
    config = overrides.pop("config", content.get("config"))
    slug = re.sub(r"[^a-z0-9]+", "-", row.lower()).strip("-")
    if not slug:
        raise InputError(f"{path}: row {row!r} has no letter or digit to call its folder by")
    if not isinstance(config, str):
        raise InputError(f"{path}: row {row!r} names no config, and the file has none for all rows")
    for key in RESERVED_KEYS.keys() & overrides.keys():
        raise InputError(
            f"{path}: row {row!r} sets {key}, which comes from {RESERVED_KEYS[key]} of the file: remove it"
        )
    file = path.parent / config
    pairs = tuple(text for key, value in overrides.items() for text in (key, repr(value)))
    reader = load_host(find_host(file), "config.settings")
    try:
        datasets, settings = reader.read_settings(file, pairs)
    except InputError as error:
        raise InputError(f"{path}: row {row!r}: {str(error).removeprefix('command line: ')}") from None
    key = SEED[find_host(file)]
    return [
        Run(row, seed, file, pairs, folder / slug / f"seed{seed}", datasets, {**settings, key: seed})
        for seed in content["seeds"]
    ]


def _require_one_dataset(path: Path, runs: Sequence[Run]) -> str:
    """Return the dataset that all rows are evaluated on."""
    found = {dataset: run.row for run in runs for dataset in run.datasets}
    if len(found) != 1:
        named = ", ".join(f"{dataset} ({row})" for dataset, row in found.items()) or "none of ours"
        raise InputError(f"{path}: a table has one test set, but those of the rows are {named}")
    return next(iter(found))


def _full_name(dataset: str, name: str) -> str:
    if dataset in DATASETS:
        return str(protocol(dataset, name))
    if name.removeprefix(f"{dataset}/") != "ALL":
        raise unknown(f"{dataset} protocol", name, ["ALL"])
    return f"{dataset}/ALL"


def run(grid: Grid, dry_run: bool = False) -> Iterator[str]:
    """Train what is not done, then write the table; yields lines about the progress.

    Args:
        grid: what to train.
        dry_run: only yield the plan.

    Raises:
        InputError: a run failed; what is done stays.
    """
    pending = grid.pending()
    yield from _describe(grid, len(pending))
    if dry_run:
        return
    for place, current in enumerate(pending, start=1):
        number = f"[{len(grid.runs) - len(pending) + place}/{len(grid.runs)}] {current}:"
        yield f"{number} {current.state()}, output in {current.folder / OUTPUT}"
        start = time.monotonic()
        _make(current, grid.protocols)
        yield f"{number} done in {_duration(time.monotonic() - start)}{_estimate(grid, pending[place:])}"
    yield from table(grid)


def _describe(grid: Grid, pending: int) -> Iterator[str]:
    rows = dict.fromkeys(run.row for run in grid.runs)
    count = f"{len(rows)} rows x {len(grid.runs) // len(rows)} seeds = {len(grid.runs)} runs"
    left = f"{len(grid.runs) - pending} done, {pending} to do{_estimate(grid, grid.pending())}"
    yield f"{grid.runs[0].datasets[0]}, {count} in {grid.folder}: {left}"
    for row in rows:
        states = [f"seed {run.seed} {run.state(grid.protocols)}" for run in grid.runs if run.row == row]
        yield f"  {row}: {', '.join(states)}"


def _estimate(grid: Grid, pending: Sequence[Run]) -> str:
    """Return how long runs take by those that are finished, of the same row if there are any."""
    known = [(run.row, run.record()["seconds"]) for run in grid.runs if run.record().get("seconds")]
    if not known or not pending:
        return ""
    total = 0.0
    for run in pending:
        total += mean([seconds for row, seconds in known if row == run.row] or [seconds for _, seconds in known])
    return f", about {_duration(total)} left"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _make(run: Run, protocols: Sequence[str]) -> None:
    """Train a run, or what is left of it, and evaluate it."""
    start, is_new = time.monotonic(), run.state() == "to train"
    run.folder.mkdir(parents=True, exist_ok=True)
    record = run.record()
    if not record.get("finished"):
        if is_new:  # what a run left that never came to a checkpoint would mix with this one's
            for name in ("metrics.json", RESULTS, OUTPUT):
                (run.folder / name).unlink(missing_ok=True)
        run.keep(finished=False)
        _call(run, "train", "--output", run.folder, *([] if is_new else ["--resume"]))
    run.keep(finished=True, seconds=record.get("seconds"))
    names = ("--protocols", *(name.partition("/")[2] for name in protocols)) if protocols else ()
    _call(run, "eval", "--weights", find_marked(run.folder), "--output", run.folder / EVALUATION, *names)
    run.keep(finished=True, seconds=time.monotonic() - start if is_new else record.get("seconds"))


def _call(run: Run, verb: str, *options: object) -> None:
    """Run a command; one that fails ends the grid, and Ctrl-C lets it save what it has."""
    output = run.folder / OUTPUT
    with output.open("a", encoding="utf-8") as file:
        child = subprocess.Popen(run.command(verb, *options), stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            code = child.wait()
        except KeyboardInterrupt:
            child.terminate()  # from a terminal it has had the signal, too: two within a moment count as one
            child.wait()
            raise
    if code:
        lines = [line for line in output.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        last = lines[-1].strip().removeprefix("fastreid: error: ") if lines else "it printed nothing"
        raise InputError(f"{run}: {verb} failed with code {code}, see {output}; what is done stays. It said: {last}")


def table(grid: Grid) -> Iterator[str]:
    """Write the table of the runs that are done; yields it."""
    pending = grid.pending()
    rows: dict[str, dict] = {}
    for run in grid.runs:
        if run not in pending:
            rows.setdefault(run.row, {})[run.seed] = run.results()
    if not rows:
        raise InputError(f"no run is done in {grid.folder}: leave out --table-only to train")
    if pending:
        yield f"not in the table, as they are not done: {'; '.join(map(str, pending))}"
    every = [metrics for seeds in rows.values() for metrics in seeds.values()]
    protocols = grid.protocols or [name for name in every[0] if all(name in metrics for metrics in every)]
    yield write_tables(grid.folder, rows, protocols, grid.metrics)
    yield write_picture(grid.folder, rows, protocols, grid.metrics)
