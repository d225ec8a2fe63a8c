"""One process that the command starts: the work it does, how it reports a failure, and that it ends with its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from agreid_plugin.engine.distributed.environment import Place
from agreid_plugin.engine.distributed.process_group import Member
from agreid_plugin.errors import InputError, RunError, first_line
from agreid_plugin.host import input_error_in

INPUT, LOST, ERROR = "input", "lost", "error"


@dataclass(frozen=True)
class Work:
    """What every process does: `function(*arguments)` among the others, importing `modules` for it."""

    function: Callable[..., None]
    arguments: tuple
    timeout: float
    backend: str | None = None
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """How a process failed."""

    rank: int
    kind: str
    message: str
    trace: str = ""

    def as_error(self) -> Exception:
        """Return what to raise where the command shows it."""
        return InputError(self.message) if self.kind == INPUT else RunError(self.message, self.trace)


@dataclass
class Child:
    """A process and what it has told."""

    process: BaseProcess
    connection: Connection
    rank: int
    report: Report | None = None

    def listen(self) -> None:
        """Take the report, if there is one."""
        with suppress(EOFError, OSError):
            while self.report is None and self.connection.poll():
                self.report = self.connection.recv()

    @property
    def failed(self) -> bool:
        """Whether it reported a failure, or ended as if it had one."""
        return self.report is not None or self.process.exitcode not in (None, 0)


def start(work: Work, place: Place) -> Child:
    """Start a process that does the work at a place."""
    context = choose_context([work.function.__module__, *work.modules])
    ours, theirs = context.Pipe()
    surroundings = (dict(os.environ), os.getcwd())  # a server that starts processes may be older than these
    process = context.Process(target=_child, args=(theirs, work, place, surroundings))
    process.start()
    theirs.close()
    return Child(process, ours, place.rank)


def choose_context(modules: list[str]) -> multiprocessing.context.BaseContext:
    """Return how to start processes: without GPUs from a server that has imported what they need once for all."""
    if torch.cuda.is_available() or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules, __name__])
    return context


def _child(connection: Connection, work: Work, place: Place, surroundings: tuple[dict[str, str], str]) -> None:
    """Do the work in a process that ends with its parent, and report a failure."""
    environment, folder = surroundings
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    os.setpgid(0, 0)  # a terminal's Ctrl-C reaches the command, which passes it on once
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    member = None
    try:
        member = Member(place, work.timeout)
        member.join(work.backend)
        work.function(*work.arguments)
        member.leave()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        connection.send(_report(place.rank, error if member is None else member.explained(error)))
        sys.exit(1)


def _end_with_parent(connection: Connection) -> None:
    with suppress(EOFError, OSError):
        connection.recv()  # nothing is ever sent: it ends with whoever holds the other end
    os._exit(1)


def _report(rank: int, error: Any) -> Report:
    line = input_error_in(error)
    if line is not None:
        return Report(rank, INPUT, line)
    if isinstance(error, RunError):
        return Report(rank, LOST, str(error), error.trace)
    trace = "".join(traceback.format_exception(error))
    return Report(rank, ERROR, f"process {rank} failed: {type(error).__name__}: {first_line(error)}", trace)
