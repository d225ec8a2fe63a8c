"""A grid of rows and seeds, trained one after another: each run in a folder and a process of its own, resumable."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.data.protocols import protocol
from agreid_plugin.engine.processes import in_process, print_into
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.evaluation import NUMBERS
from agreid_plugin.evaluation.results import FILE_NAME as RESULTS
from agreid_plugin.hosts.fastreid.ablation_runs import EVALUATION, FEATURES, Grid, Run
from agreid_plugin.hosts.fastreid.ablation_table import table
from agreid_plugin.hosts.fastreid.ablation_time import duration, estimate, measured
from agreid_plugin.hosts.fastreid.config import checks
from agreid_plugin.hosts.fastreid.data.datasets import dataset_of, host_name
from agreid_plugin.hosts.fastreid.engine.checkpoints import FINAL
from agreid_plugin.trust import OPTION, trusted

OUTPUT = "stdout.txt"
OWN_KEYS = {"SEED": "seeds", "OUTPUT_DIR": "output"}
COMMAND = (sys.executable, "-m", "agreid_plugin")


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
    runs = tuple(run for name in content["rows"] for run in _runs_of(path, content, name, folder))
    _require_own_folders(path, runs)
    dataset = _tested(path, runs)
    for name in content["metrics"]:
        if name not in NUMBERS:
            raise unknown(f"{path}: metric", name, NUMBERS)
    protocols = tuple(_full_name(dataset, name) for name in content["protocols"])
    for run in runs:
        run.check_folder()
    return Grid(folder, runs, dataset, protocols, tuple(content["metrics"]))


def _runs_of(path: Path, content: Mapping[str, Any], name: Any, folder: Path) -> list[Run]:
    row, overrides = str(name), dict(content["rows"][name] or {})
    config = overrides.pop("config", content.get("config"))
    slug = re.sub(r"[^a-z0-9]+", "-", row.lower()).strip("-")
    if not slug:
        raise InputError(f"{path}: row {row!r} has no letter or digit to call its folder by")
    if not isinstance(config, str):
        raise InputError(f"{path}: row {row!r} names no config, and the file has none for all rows")
    for key in OWN_KEYS.keys() & overrides.keys():
        raise InputError(f"{path}: row {row!r} sets {key}, which comes from {OWN_KEYS[key]} of the file: remove it")
    pairs = tuple(text for key, value in overrides.items() for text in (key, repr(value)))
    runs = [Run(row, seed, path.parent / config, pairs, folder / slug / f"seed{seed}") for seed in content["seeds"]]
    try:
        checks.check_config(runs[0].load())
    except InputError as error:
        raise InputError(f"{path}: row {row!r}: {str(error).removeprefix('command line: ')}") from None
    return runs


def _require_own_folders(path: Path, runs: Sequence[Run]) -> None:
    owners: dict[Path, str] = {}
    for run in runs:
        if owners.setdefault(run.folder.parent, run.row) != run.row:
            raise InputError(f"{path}: rows {owners[run.folder.parent]!r} and {run.row!r} would share a folder: rename")


def _tested(path: Path, runs: Sequence[Run]) -> str:
    """Return the dataset that all rows are tested on."""
    tests = {dataset_of(name): run.row for run in runs for name in run.load().DATASETS.TESTS}
    if len(tests) > 1:
        named = ", ".join(f"{dataset} ({row})" for dataset, row in tests.items())
        raise InputError(f"{path}: a table has one test set, but DATASETS.TESTS of the rows are {named}")
    return next(iter(tests))


def _full_name(dataset: str, name: str) -> str:
    if dataset in DATASETS:
        return str(protocol(dataset, name))
    if name.removeprefix(f"{dataset}/") != "ALL":
        raise unknown(f"{dataset} protocol", name, ["ALL"])
    return f"{dataset}/ALL"


def run(grid: Grid, dry_run: bool = False) -> Iterator[str]:
    """Train what is not done, then write the table; yields lines for whoever waits.

    Args:
        grid: what to train.
        dry_run: tell the plan only.

    Raises:
        InputError: a run failed; what is done stays.
    """
    pending = [run for run in grid.runs if not run.done]
    yield from _states(grid, len(pending))
    seconds: dict[str, float] = {}
    if pending:
        seconds, how = estimate(grid, pending, dry_run)
        yield f"time left: {how}"
    if not dry_run:
        yield from _make_all(grid, pending, seconds)
        yield from table(grid)


def _states(grid: Grid, pending: int) -> Iterator[str]:
    """Tell how far a grid is, row by row."""
    rows = dict.fromkeys(run.row for run in grid.runs)
    yield (
        f"{grid.dataset}, {len(rows)} rows x {len(grid.runs) // len(rows)} seeds = {len(grid.runs)} runs in "
        f"{grid.folder}: {len(grid.runs) - pending} done, {pending} to do"
    )
    for row in rows:
        yield f"  {row}: " + ", ".join(f"seed {run.seed} {run.state}" for run in grid.runs if run.row == row)


def _make_all(grid: Grid, pending: Sequence[Run], seconds: dict[str, float]) -> Iterator[str]:
    """Make what is left to do; `seconds`, by row, are corrected by what each run takes."""
    done = len(grid.runs) - len(pending)
    for place, current in enumerate(pending, start=1):
        number = f"[{done + place}/{len(grid.runs)}] {current}:"
        yield f"{number} {current.state}, output in {current.folder / OUTPUT}"
        start = time.monotonic()
        _make(current, grid.dataset)
        seconds |= measured([current])
        left = sum(seconds[run.row] for run in pending[place:])
        yield f"{number} done in {duration(time.monotonic() - start)}, about {duration(left)} left"


def _make(run: Run, dataset: str) -> None:
    """Train a run, or what is left of it, and keep its features."""
    start, anew = time.monotonic(), run.state == "to train"
    run.folder.mkdir(parents=True, exist_ok=True)
    if not run.trained:
        run.keep(finished=False)
        _train(run, anew)
        run.keep(finished=True)
    _evaluate(run, dataset)
    run.keep(finished=True, seconds=time.monotonic() - start if anew else run.record().get("seconds"))


def _train(run: Run, anew: bool) -> None:
    if anew:  # what a run left that never came to a checkpoint would mix with this one's
        for name in ("metrics.json", RESULTS, OUTPUT):
            (run.folder / name).unlink(missing_ok=True)
    command = [*COMMAND, *command_arguments("train", run, "--output", run.folder, *([] if anew else ["--resume"]))]
    with (run.folder / OUTPUT).open("a", encoding="utf-8") as output:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output).returncode
    _check_exit(run, "training", code)


def _evaluate(run: Run, dataset: str) -> None:
    """Keep the features of all test images, so that a later table may have other columns."""
    unfinished = run.folder / f"unfinished-{FEATURES}"
    unfinished.unlink(missing_ok=True)
    files = ("--weights", run.folder / f"{FINAL}.pth", "--save-features", unfinished)
    whole = host_name(dataset) if dataset in DATASETS else dataset
    command = [
        *command_arguments("eval", run, *files, "--output", run.folder / EVALUATION),
        *("DATASETS.TESTS", repr((whole,)), "TEST.PROTOCOLS", "[]"),
    ]
    _check_exit(run, "evaluation", in_process(_command, command, run.folder / OUTPUT))
    unfinished.replace(run.folder / FEATURES)


def command_arguments(command: str, run: Run, *options: object) -> list[str]:
    """Return what stands behind `fastreid` to run a command with a run's configuration; more overrides may follow."""
    trusting = [OPTION] if trusted() else []
    return [command, "--config", str(run.config), *map(str, options), *trusting, "--", *run.arguments]


def _check_exit(run: Run, what: str, code: int) -> None:
    if code:
        output = run.folder / OUTPUT
        lines = [line for line in output.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        last = lines[-1].strip().removeprefix("fastreid: error: ") if lines else "it printed nothing"
        raise InputError(f"{run}: {what} failed with code {code}, see {output}; what is done stays. It said: {last}")


def _command(arguments: Sequence[str], output: Path) -> int:
    """Run `python -m agreid_plugin` with arguments, in this process; returns the exit code."""
    print_into(output)
    sys.argv = ["fastreid", *arguments]
    try:
        runpy.run_module("agreid_plugin", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return int(end.code or 0)
    return 0
