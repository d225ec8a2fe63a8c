"""How long a grid takes: by what its finished runs took, by a few steps of training where a row has none."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path

from fastreid.utils.events import EventStorage

from agreid_plugin.data.workers import crashes_named
from agreid_plugin.engine.processes import in_process, print_into
from agreid_plugin.engine.signals import Interruption
from agreid_plugin.errors import InputError, first_line
from agreid_plugin.hosts.fastreid.ablation_runs import Grid, Run
from agreid_plugin.hosts.fastreid.config.loading import use_cpu_without_gpu
from agreid_plugin.hosts.fastreid.data.agsynth import make_missing
from agreid_plugin.hosts.fastreid.engine.distributed import plain
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer
from agreid_plugin.hosts.fastreid.models.base import method_of
from agreid_plugin.trust import trust, trusted

WARM_UP, TIMED = 2, 5  # training steps of a row without a finished run


def estimate(grid: Grid, pending: Sequence[Run], dry_run: bool) -> tuple[dict[str, float], str]:
    """Return the seconds that a run of each row takes, and in words what all will take and how that is known.

    Args:
        grid: all runs.
        pending: those that are left to do.
        dry_run: make no dataset, and tell it if none can be timed for want of one.
    """
    seconds = measured(grid.runs)
    untimed = list({run.row: run for run in pending if run.row not in seconds}.values())
    try:
        for run in () if dry_run else untimed:
            make_missing(run.load())
        seconds |= {run.row: in_process(probe, run, trusted()) for run in untimed}
    except InputError as error:
        if dry_run:  # the dataset may be missing, and a plan makes none
            return {}, f"not known, as no training step can be timed: {error}"
        raise
    how = [f"finished runs of {len(seconds) - len(untimed)} rows"] if len(seconds) > len(untimed) else []
    how += [f"{TIMED} timed steps of {len(untimed)} rows times their iterations, no evaluation"] if untimed else []
    return seconds, f"about {duration(sum(seconds[run.row] for run in pending))}, from {' and '.join(how)}"


def measured(runs: Iterable[Run]) -> dict[str, float]:
    """Return the seconds of a run that went through in one go, by row."""
    found = {run.row: run.record().get("seconds") for run in runs if run.done}
    return {row: seconds for row, seconds in found.items() if seconds}


def duration(seconds: float) -> str:
    """Return a time as hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


def probe(run: Run, trusting: bool) -> float:
    """Return the seconds that training would take by a few steps of it; prints into nowhere from then on."""
    trust(trusting)
    print_into(Path(os.devnull))
    cfg = run.load()
    with tempfile.TemporaryDirectory() as folder, EventStorage(0), Interruption():  # which ends the data workers
        cfg.OUTPUT_DIR = folder
        use_cpu_without_gpu(cfg)
        try:
            with crashes_named():
                trainer = Trainer(cfg)
                method_of(cfg).skip_stages(plain(trainer.model))
                return _seconds_a_step(trainer) * trainer.max_iter
        except Exception as error:
            raise InputError(f"row {run.row!r} cannot be trained: {first_line(error)}") from None


def _seconds_a_step(trainer: Trainer) -> float:
    trainer.iter = 0
    for _ in range(WARM_UP):
        trainer.run_step()
    start = time.perf_counter()
    for _ in range(TIMED):
        trainer.run_step()
    return (time.perf_counter() - start) / TIMED
