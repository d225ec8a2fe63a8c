"""Writers of the progress of a run: a bar or lines on the screen, metrics.json, TensorBoard."""

from __future__ import annotations

import datetime
import json
import logging
import math
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from fastreid.utils.events import EventStorage, EventWriter, get_event_storage
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from agreid_plugin.data.atomic_write import atomic_write
from agreid_plugin.engine.checkpoints import make_tensorboard_tolerant, make_tolerant

_logger = logging.getLogger("fastreid.train")
WINDOW = 20
"""Iterations over which a noisy value is smoothed (by its median)."""


class _Fresh:
    """Finds the values that came since the last look, each by its own iteration.

    The host keeps one last iteration for all values, and so loses an evaluation made in an iteration written before.
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def see(self, names: Iterable[str], iteration: int) -> None:
        """Know values that a run before has written."""
        self._seen.update(dict.fromkeys(names, iteration))

    def values(self, storage: EventStorage) -> dict[int, dict[str, float]]:
        """Return iteration -> {name: value} of what is new."""
        fresh: dict[int, dict[str, float]] = {}
        for name, (value, iteration) in storage.latest_with_smoothing_hint(WINDOW).items():
            if iteration > self._seen.get(name, -1):
                self._seen[name] = iteration
                fresh.setdefault(iteration, {})[name] = value
        return fresh


class JSONWriter(EventWriter):
    """Appends one JSON object a line: the values of an iteration, under `iteration`.

    Lines of `start_iter` and later, which a run wrote that was killed and is resumed before them, are taken out, and
    so is a line that it had not finished.
    """

    def __init__(self, path: str | Path, start_iter: int = 0):
        self._path, self._fresh = Path(path), _Fresh()
        if self._path.exists():
            self._cut(start_iter)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._append, self._shut = make_tolerant(self._path, self._put, self._file.close)

    def _cut(self, start_iter: int) -> None:
        kept = [line for line in map(_parse, self._path.read_bytes().splitlines()) if line["iteration"] < start_iter]
        for line in kept:
            self._fresh.see(line, line["iteration"])
        with atomic_write(self._path) as draft:
            draft.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in kept), encoding="utf-8")

    def write(self) -> None:
        """Append what is new."""
        fresh = sorted(self._fresh.values(get_event_storage()).items())
        lines = "".join(
            json.dumps({"iteration": iteration, **values}, sort_keys=True) + "\n" for iteration, values in fresh
        )
        self._append(lines)

    def _put(self, lines: str) -> None:
        self._file.write(lines)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._shut()


def _parse(line: bytes) -> dict[str, float]:
    try:
        return {"iteration": math.inf, **json.loads(line)}
    except (ValueError, TypeError):
        return {"iteration": math.inf}


class TensorboardWriter(EventWriter):
    """Writes every value as a TensorBoard scalar; those of `start_iter` and later in older files are void."""

    def __init__(self, folder: str | Path, start_iter: int = 0):
        self._writer = SummaryWriter(str(folder), purge_step=start_iter or None)
        make_tensorboard_tolerant(self._writer)
        self._fresh = _Fresh()

    def write(self) -> None:
        """Add what is new."""
        for iteration, values in self._fresh.values(get_event_storage()).items():
            for name, value in values.items():
                self._writer.add_scalar(name, value, iteration)

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class ProgressWriter(EventWriter):
    """Shows how training goes: a bar on a terminal, a line each time otherwise.

    Both have epoch, time left, loss terms, accuracy, learning rate and images a second.
    """

    def __init__(self, start_iter: int, max_iter: int, iters_per_epoch: int, batch_size: int):
        self._max_iter, self._iters_per_epoch, self._batch_size = max_iter, iters_per_epoch, batch_size
        self._last = (time.perf_counter(), start_iter)
        self._bar = (
            tqdm(total=max_iter, initial=start_iter, unit="it", dynamic_ncols=True) if sys.stderr.isatty() else None
        )

    def write(self) -> None:
        """Show the state after this iteration, unless it was shown before."""
        storage = get_event_storage()
        now, done = time.perf_counter(), min(storage.iter + 1, self._max_iter)
        last_time, last_done = self._last
        if done <= last_done:
            return
        seconds = (now - last_time) / (done - last_done)
        self._last = (now, done)
        epoch = (done - 1) // self._iters_per_epoch + 1
        state = f"epoch {epoch}  {self._values(storage)}  {self._batch_size / seconds:.0f} images/s"
        if self._bar is not None:
            self._bar.set_description_str(state, refresh=False)
            self._bar.update(done - last_done)
            return
        left = datetime.timedelta(seconds=round(seconds * (self._max_iter - done)))
        _logger.info("iteration %d/%d  %s  %s left", done, self._max_iter, state, left)

    @staticmethod
    def _values(storage: EventStorage) -> str:
        latest = storage.latest_with_smoothing_hint(WINDOW)
        parts = [f"{name} {value:.4g}" for name, (value, _) in latest.items() if "loss" in name]
        if "cls_accuracy" in latest:
            parts.append(f"accuracy {latest['cls_accuracy'][0]:.1%}")
        if "lr" in latest:
            parts.append(f"lr {latest['lr'][0]:.2e}")
        return "  ".join(parts)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
