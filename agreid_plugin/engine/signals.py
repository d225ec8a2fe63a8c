"""Signals that end a run: the step under way is finished and saved before it stops; a second signal stops at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import AuthenticationError
from types import FrameType, TracebackType
from typing import Any

import torch
import torch.distributed as dist

from agreid_plugin.errors import Stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ONE_SIGNAL = 2.0
"""Seconds within which signals are one: a terminal, a launcher and a batch system may each send theirs."""


class Interruption:
    """Takes the signals as long as it is entered.

    Within `deferred` the first one is only noted in `asked`; anywhere else, and the second time, `Stopped` is raised.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._deferred, self._since, self._process = False, 0.0, os.getpid()
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # no other may
            self._before = take_signals(self._take)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            _end_data_workers()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let the block decide when to stop."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _take(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if os.getpid() != self._process:
            return  # a data worker, forked with this handler; its main process decides
        leave_closed_terminal()
        if not self._deferred:
            raise Stopped(number)
        if self.asked is None:
            self.asked, self._since = number, time.monotonic()
            _print_signal(number)
        elif time.monotonic() - self._since > ONE_SIGNAL:
            raise Stopped(number)


def take_signals(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Handle the signals, but for a hang-up that is ignored, as under nohup; return the handlers before."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return {number: signal.signal(number, handler) for number in SIGNALS if not (ignored and number == signal.SIGHUP)}


@contextmanager
def ignore_hangups() -> Iterator[None]:
    """Let processes that the block starts, and the server that forks them, outlive a terminal that is closed."""
    if threading.current_thread() is not threading.main_thread():  # no other may
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def leave_closed_terminal() -> None:
    """Send to nowhere what is printed from here on to a closed terminal: printing there fails and would end the run."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)


def _print_signal(number: int) -> None:
    """Say once that the signal was heard; a process that the command has started leaves that to the command."""
    started = multiprocessing.parent_process() is not None
    if not started and is_main_process():
        print_signal(number)


def print_signal(number: int) -> None:
    """Say that a signal was heard, without Python's streams: it may have come while they were at work."""
    name = signal.Signals(number).name
    os.write(2, f"fastreid: {name}: finishing what is under way; once more to stop at once\n".encode())


def is_main_process() -> bool:
    """Return whether this process speaks for the run: rank 0, or the only one."""
    return not dist.is_initialized() or dist.get_rank() == 0


def agree_on_signal(number: int | None) -> int | None:
    """Return the signal that any process was sent, the same in all processes; a collective call."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return number
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    highest = torch.tensor(number or 0, device=device)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return int(highest) or None


def _end_data_workers() -> None:
    """End the data workers that are left, as they leave the one signal that Python sends them at its end to us."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would take their end for a crash
    try:
        for child in multiprocessing.active_children():
            if child.daemon:
                child.kill()
                child.join()
    finally:
        signal.signal(signal.SIGCHLD, before)


def ignore_signals_in_worker(worker: int) -> None:  # noqa: ARG001 - the loader passes it
    """Ignore signals in a data worker, whose main process decides about them; the second SIGTERM ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    sys.excepthook = _unless_nobody_asks


def _unless_nobody_asks(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say nothing of a main process that has hung up, as it does if another worker dies: it tells that itself.

    What a worker's own work raises goes to the main process, and never here.
    """
    if not issubclass(kind, ConnectionError | EOFError | AuthenticationError):
        sys.__excepthook__(kind, error, trace)
