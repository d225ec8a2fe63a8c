"""What each data worker of a loader is at, so that the death of one names a file."""

from __future__ import annotations

import os
import re
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.utils.data import get_worker_info

from agreid_plugin.errors import InputError

MOST_WORKERS = 256
DEATH = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)([^.]*)")
"""How torch tells that workers are gone: by their process ids."""
_OUT_OF_MEMORY = "out of memory? use fewer data workers, or a smaller batch"
HINTS = {
    "Killed": _OUT_OF_MEMORY,
    "unexpectedly": _OUT_OF_MEMORY,  # what torch says of the same if it finds out later
    "Bus error": "shared memory is full: use fewer data workers, or enlarge /dev/shm",
}
_logbooks: weakref.WeakSet[Logbook] = weakref.WeakSet()


class Logbook:
    """Where data workers note the item that they take up, in memory that they share with the main process.

    Args:
        name_of: the file of an item.
    """

    def __init__(self, name_of: Callable[[int], str]):
        self._name_of = name_of
        self._notes = torch.full((MOST_WORKERS, 2), -1, dtype=torch.int64).share_memory_()  # process, item
        _logbooks.add(self)

    def note(self, index: int) -> None:
        """Note that this process, if it is a worker, takes up an item."""
        worker = get_worker_info()
        if worker is not None:
            self._notes[worker.id % MOST_WORKERS] = torch.tensor([os.getpid(), index])

    def last_file(self, process: int) -> str | None:
        """Return the file of the item that a worker took up last, None of a process that is no worker of these."""
        for noted, index in self._notes.tolist():
            if noted == process:
                return self._name_of(index)
        return None


def told_crash(error: BaseException) -> InputError | None:
    """Return what to say of workers that died, None of any other error."""
    # That a worker is gone may be what caused the error which says so with fewer words.
    found = DEATH.search(str(error.__cause__)) or DEATH.search(str(error))
    if found is None:
        return None
    _tell_once()
    processes = [int(number) for number in re.findall(r"\d+", found[1])]
    noted = {book.last_file(process) for book in _logbooks for process in processes}
    files = sorted(file for file in noted if file is not None)
    how = found[2].strip().removeprefix("is ") or "exited"
    hint = next((f" ({text})" for word, text in HINTS.items() if word in how), "")
    at = f"the last file it worked on is {', '.join(files)}" if files else "it had not taken up a file yet"
    return InputError(f"a data worker (pid {found[1].strip()}) died: {how}{hint}; {at}")


def _tell_once() -> None:
    """Keep torch from raising the same again when the other workers end: its loader may live on for a while."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextmanager
def crashes_named() -> Iterator[None]:
    """Say of workers that die in the meantime what they were at, in one line.

    torch may raise its error in whatever the main process is doing, not only where it waits for a batch.
    """
    try:
        yield
    except RuntimeError as error:
        told = told_crash(error)
        if told is None:
            raise
        raise told from None
