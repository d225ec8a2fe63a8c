"""A grid of rows and seeds, trained one after another: each run in a folder and a process of its own, resumable."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from fastreid.utils.events import EventStorage

from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.data.protocols import protocol
from agreid_plugin.errors import InputError, first_line, unknown
from agreid_plugin.evaluation import NUMBERS
from agreid_plugin.evaluation.results import FILE_NAME as RESULTS
from agreid_plugin.hosts.fastreid import checks
from agreid_plugin.hosts.fastreid.ablation_runs import EVALUATION, FEATURES, Grid, Run
from agreid_plugin.hosts.fastreid.ablation_table import table
from agreid_plugin.hosts.fastreid.agsynth import make_missing
from agreid_plugin.hosts.fastreid.data import source_of
from agreid_plugin.hosts.fastreid.datasets import host_name
from agreid_plugin.hosts.fastreid.processes import in_process
from agreid_plugin.hosts.fastreid.prompt_stage import PromptStage
from agreid_plugin.hosts.fastreid.trainer import Trainer
from agreid_plugin.hosts.interruption import Interruption
from agreid_plugin.trust import OPTION, trust, trusted

OUTPUT, WEIGHTS = "stdout.txt", "model_final.pth"
OWN_KEYS = {"SEED": "seeds", "OUTPUT_DIR": "output"}
WARM_UP, TIMED = 2, 5  # training steps of a probe
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
    owners: dict[Path, str] = {}
    for run in runs:
        if owners.setdefault(run.folder.parent, run.row) != run.row:
            raise InputError(f"{path}: rows {owners[run.folder.parent]!r} and {run.row!r} would share a folder: rename")
    tests = {source_of(name) or name: run.row for run in runs for name in run.load().DATASETS.TESTS}
    if len(tests) > 1:
        named = ", ".join(f"{dataset} ({row})" for dataset, row in tests.items())
        raise InputError(f"{path}: a table has one test set, but DATASETS.TESTS of the rows are {named}")
    (dataset,) = tests
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
    done = len(grid.runs) - len(pending)
    rows = dict.fromkeys(run.row for run in grid.runs)
    yield (
        f"{grid.dataset}, {len(rows)} rows x {len(grid.runs) // len(rows)} seeds = {len(grid.runs)} runs in "
        f"{grid.folder}: {done} done, {len(pending)} to do"
    )
    for row in rows:
        yield f"  {row}: " + ", ".join(f"seed {run.seed} {run.state}" for run in grid.runs if run.row == row)
    seconds: dict[str, float] = {}
    if pending:
        seconds, how = _estimate(grid, pending, dry_run)
        yield f"time left: {how}"
    if dry_run:
        return
    for place, current in enumerate(pending, start=1):
        number = f"[{done + place}/{len(grid.runs)}] {current}:"
        yield f"{number} {current.state}, output in {current.folder / OUTPUT}"
        start = time.monotonic()
        _make(current, grid.dataset)
        seconds.update(_measured([current]))
        left = sum(seconds[run.row] for run in pending[place:])
        yield f"{number} done in {_duration(time.monotonic() - start)}, about {_duration(left)} left"
    yield from table(grid)


def _estimate(grid: Grid, pending: Sequence[Run], dry_run: bool) -> tuple[dict[str, float], str]:
    """Return the seconds that a run of each row takes, and in words what all will take and how that is known."""
    seconds = _measured(grid.runs)
    untimed = list({run.row: run for run in pending if run.row not in seconds}.values())
    try:
        for run in () if dry_run else untimed:
            make_missing(run.load())
        seconds |= {run.row: in_process(_probe, run, trusted()) for run in untimed}
    except InputError as error:
        if dry_run:  # the dataset may be missing, and a plan makes none
            return {}, f"not known, as no training step can be timed: {error}"
        raise
    how = [f"finished runs of {len(seconds) - len(untimed)} rows"] if len(seconds) > len(untimed) else []
    how += [f"{TIMED} timed steps of {len(untimed)} rows times their iterations, no evaluation"] if untimed else []
    return seconds, f"about {_duration(sum(seconds[run.row] for run in pending))}, from {' and '.join(how)}"


def _measured(runs: Iterable[Run]) -> dict[str, float]:
    """Return the time of a run that went through in one go, by row."""
    found = {run.row: run.record().get("seconds") for run in runs if run.done}
    return {row: seconds for row, seconds in found.items() if seconds}


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


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
    options = ["train", "--config", run.config, "--output", run.folder, *([] if anew else ["--resume"])]
    options += [OPTION] if trusted() else []
    command = [*COMMAND, *map(str, options), "--", *run.arguments]
    with (run.folder / OUTPUT).open("a", encoding="utf-8") as output:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output).returncode
    _check_exit(run, "training", code)


def _evaluate(run: Run, dataset: str) -> None:
    """Keep the features of all test images, so that a later table may have other columns."""
    unfinished = run.folder / f"unfinished-{FEATURES}"
    unfinished.unlink(missing_ok=True)
    options = ["eval", "--config", run.config, "--weights", run.folder / WEIGHTS, "--save-features", unfinished]
    whole = host_name(dataset) if dataset in DATASETS else dataset
    overrides = [*run.arguments, "DATASETS.TESTS", repr((whole,)), "TEST.PROTOCOLS", "[]"]
    command = [*map(str, options), "--output", str(run.folder / EVALUATION), "--", *overrides]
    _check_exit(run, "evaluation", in_process(_command, command, run.folder / OUTPUT))
    unfinished.replace(run.folder / FEATURES)


def _check_exit(run: Run, what: str, code: int) -> None:
    if code:
        output = run.folder / OUTPUT
        lines = [line for line in output.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        last = lines[-1].strip().removeprefix("fastreid: error: ") if lines else "it printed nothing"
        raise InputError(f"{run}: {what} failed with code {code}, see {output}; what is done stays. It said: {last}")


def _command(arguments: Sequence[str], output: Path) -> int:
    """Run `python -m agreid_plugin` with arguments, in this process; returns the exit code."""
    _print_into(output)
    sys.argv = ["fastreid", *arguments]
    try:
        runpy.run_module("agreid_plugin", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _probe(run: Run, trusting: bool) -> float:
    """Return the seconds that training would take by a few steps of it."""
    trust(trusting)
    _print_into(Path(os.devnull))
    cfg = run.load()
    with tempfile.TemporaryDirectory() as folder, EventStorage(0), Interruption():  # which ends the data workers
        cfg.OUTPUT_DIR = folder
        cfg.MODEL.DEVICE = cfg.MODEL.DEVICE if torch.cuda.is_available() else "cpu"
        try:
            trainer = Trainer(cfg)
            trainer.iter = 0
            for hook in trainer._hooks:
                if isinstance(hook, PromptStage):
                    hook.pretend()
            for step in range(WARM_UP + TIMED):
                if step == WARM_UP:
                    start = time.perf_counter()
                trainer.run_step()
        except Exception as error:
            raise InputError(f"row {run.row!r} cannot be trained: {first_line(error)}") from None
        return (time.perf_counter() - start) / TIMED * trainer.max_iter


def _print_into(path: Path) -> None:
    with path.open("a", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
