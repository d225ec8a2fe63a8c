"""Crash reports of data workers: the error of a worker that died names the file it worked on."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.utils.data import get_worker_info

from agreid_plugin.errors import InputError

MAX_WORKERS = 256
DEATH_MESSAGE = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)([^.]*)")
"""Message of torch about workers that died, with their process ids."""
_OUT_OF_MEMORY = "out of memory? use fewer data workers, or a smaller batch"
HINTS = {
    "Killed": _OUT_OF_MEMORY,
    "unexpectedly": _OUT_OF_MEMORY,  # torch's message for the same if it finds out later
    "Bus error": "shared memory is full: use fewer data workers, or enlarge /dev/shm",
}
_logbooks: weakref.WeakSet[Logbook] = weakref.WeakSet()


class Logbook:
    """Record of the item that each data worker works on, in memory shared with the main process.

    Args:
        get_name: returns the file of an item.
    """

    def __init__(self, get_name: Callable[[int], str]):
        self._get_name = get_name
        self._notes = torch.full((MAX_WORKERS, 2), -1, dtype=torch.int64).share_memory_()  # process, item
        _logbooks.add(self)

    def note(self, index: int) -> None:
        """Record the item if this process is a data worker."""
        worker = get_worker_info()
        if worker is not None:
            self._notes[worker.id % MAX_WORKERS] = torch.tensor([os.getpid(), index])

    def last_file(self, process: int) -> str | None:
        """Return the file of the last item that a worker took up, None if the process is no worker of this dataset."""
        for noted, index in self._notes.tolist():
            if noted == process:
                return self._get_name(index)
        return None


def describe_crash(error: BaseException) -> InputError | None:
    """Return an error that names the last file of workers that died, None for any other error."""
    # The message with the process ids may be the cause of a shorter one.
    found = DEATH_MESSAGE.search(str(error.__cause__)) or DEATH_MESSAGE.search(str(error))
    if found is None:
        return None
    _stop_raising()
    processes = [int(number) for number in re.findall(r"\d+", found[1])]
    noted = {book.last_file(process) for book in _logbooks for process in processes}
    files = sorted(file for file in noted if file is not None)
    how = found[2].strip().removeprefix("is ") or "exited"
    hint = next((f" ({text})" for word, text in HINTS.items() if word in how), "")
    at = f"the last file it worked on is {', '.join(files)}" if files else "it had not taken up a file yet"
    return InputError(f"a data worker (pid {found[1].strip()}) died: {how}{hint}; {at}")


def _stop_raising() -> None:
    """Keep torch from raising again when the other workers end: its loader may live on for a while."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextmanager
def name_worker_crashes() -> Iterator[None]:
    """Turn the error of data workers that die during a block into one line that names their last file.

    torch may raise its error anywhere in the main process, not only where it waits for a batch.
    """
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError) as error:
        # a batch cannot be fetched from a worker that is dying, whose death torch is told of a moment later
        crash = describe_crash(error if isinstance(error, RuntimeError) else _await_death() or error)
        if crash is None:
            raise
        raise crash from None


def _await_death() -> RuntimeError | None:
    """Return torch's error about a worker that has died or is about to, None if none does within a second."""
    for _ in range(20):
        try:
            torch._C._error_if_any_worker_fails()
        except RuntimeError as error:
            return error
        time.sleep(0.05)
    return None
