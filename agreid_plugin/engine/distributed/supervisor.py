"""Supervisor of the processes that the command starts on one machine: signals, failures, and that none is left."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from types import FrameType

import torch
import torch.distributed as dist

from agreid_plugin.engine.distributed.environment import RankInfo
from agreid_plugin.engine.distributed.process_group import FAILURE
from agreid_plugin.engine.distributed.rendezvous import read, silence
from agreid_plugin.engine.distributed.worker import ERROR, LOST, Child, ProcessTask, Report, start
from agreid_plugin.engine.signals import ONE_SIGNAL, ignore_hangups, leave_closed_terminal, print_signal, take_signals
from agreid_plugin.errors import RunError, Stopped

ON_REQUEST = (128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of a process that was asked to end, and did in its own time."""
STOPPING = 5.0
"""Seconds between asking a process to end and ending it."""
PATIENCE = 2.0
"""Seconds in which another process may turn out to be the cause, after one that lost it has waited, too."""
LEAVING = 30.0
"""Seconds in which processes end, once the first machine is gone: with all done, theirs have nothing left to do."""


def supervise(work: ProcessTask, places: list[RankInfo], store: dist.Store, several_machines: bool) -> None:
    """Run the task in a process for every rank, and return when all have succeeded.

    When one fails, the others are ended, and its error is raised here. Signals to the command are sent on to all.
    """
    with ignore_hangups():
        children = [start(work, place) for place in places]
    watch = Watch(children, store, several_machines)
    try:
        with watch.relay_signals():
            watch.wait_for_end()
    finally:
        watch.end()
    watch.conclude()


@dataclass
class Watch:
    """Watch over children, which finds the failure that caused the others."""

    children: list[Child]
    store: dist.Store
    several_machines: bool
    asked: int = 0  # signal that the command was sent
    elsewhere: str = ""  # what failed on another machine
    deadline: float | None = field(default=None, init=False)
    _cause: Report | None = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)
    _alone: float | None = field(default=None, init=False)  # since when the first machine is gone
    _codes: list[int | None] = field(default_factory=list, init=False)

    @contextmanager
    def relay_signals(self) -> Iterator[None]:
        """Send signals to this process on to the children; a second one kills them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = take_signals(self._relay)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _relay(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self.asked:
            self.asked, self._since = number, time.monotonic()
            leave_closed_terminal()
            print_signal(number)
            self._send(signal.SIGTERM if number == signal.SIGHUP else number)  # they ignore a hang-up
        elif time.monotonic() - self._since > ONE_SIGNAL:
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        for child in self.children:
            if child.process.exitcode is None:
                with suppress(ProcessLookupError):
                    os.kill(child.process.pid, number)

    def wait_for_end(self) -> None:
        """Wait until all have ended, or one has failed and the others had time to report why."""
        while any(child.process.exitcode is None for child in self.children):
            wait([child.process.sentinel for child in self.children if child.process.exitcode is None], timeout=0.5)
            for child in self.children:
                child.listen()
            self._check_other_machines()
            if self.deadline is None and (self.elsewhere or any(child.failed for child in self.children)):
                self.deadline = time.monotonic() + PATIENCE
            if self.deadline is not None and not self.asked and (self.cause() or time.monotonic() > self.deadline):
                return

    def _check_other_machines(self) -> None:
        """Read whether processes of another machine have failed, before they are missed here."""
        if not self.several_machines or self.elsewhere:
            return
        if self._alone is not None:  # whoever asked again would be told the same, with a page of C++ frames
            if time.monotonic() > self._alone + LEAVING:
                self.elsewhere = "the first machine has gone, and its processes with it"
            return
        try:
            with silence():
                self.elsewhere = read(self.store, FAILURE)
        except RuntimeError:
            self._alone = time.monotonic()

    def cause(self) -> Report | None:
        """Return the failure that no other process caused."""
        for child in self.children:
            if child.report is not None and child.report.kind != LOST:
                return child.report
            if child.report is None and child.process.exitcode and not self.asked:
                return self._describe_exit(child)
        return None

    def _describe_exit(self, child: Child) -> Report | None:
        """Return how a process ended that could not report it; None for one that ended after a signal."""
        code = child.process.exitcode
        if code in ON_REQUEST:
            return None
        how = f"was killed by {_name(-code)}" if code < 0 else f"ended with exit code {code}"
        if code == -signal.SIGABRT and torch.cuda.is_available():
            how += ", as NCCL does when an exchange takes longer than --dist-timeout,"
        step = self._step(child.rank)
        return Report(child.rank, ERROR, f"process {child.rank} {how}{f' at step {step}' if step else ''}")

    def _step(self, rank: int) -> str:
        try:
            return read(self.store, f"step/{rank}")
        except RuntimeError:  # of another machine, which is gone
            return ""

    def end(self) -> None:
        """End all children: SIGTERM first, SIGKILL after some seconds."""
        self._cause = self.cause()  # what is sent now is none
        self._codes = [child.process.exitcode for child in self.children]
        if self._cause is not None:
            with suppress(RuntimeError), silence():
                self.store.compare_set(FAILURE, "", self._cause.message)
        self._send(signal.SIGTERM)
        deadline = time.monotonic() + STOPPING
        for child in self.children:
            child.process.join(max(0, deadline - time.monotonic()))
        self._send(signal.SIGKILL)
        for child in self.children:
            child.process.join()
            child.listen()
            child.connection.close()

    def conclude(self) -> None:
        """Raise what ended the children, if anything did."""
        if self._cause is not None:
            raise self._cause.as_error()
        if self.asked and any(self._codes):  # else all was done when they were asked
            raise Stopped(self.asked)
        for code in self._codes:
            if code in ON_REQUEST:
                raise Stopped(code - 128)
        lost = [child.report for child in self.children if child.report is not None]
        if lost:
            raise lost[0].as_error()
        if self.elsewhere:
            raise RunError(self.elsewhere)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
