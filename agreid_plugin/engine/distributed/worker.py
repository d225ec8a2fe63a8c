"""Worker process that the command starts: its task, its report of a failure, its end with the parent."""

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

from agreid_plugin.engine.distributed.environment import RankInfo
from agreid_plugin.engine.distributed.process_group import DistributedProcess
from agreid_plugin.errors import InputError, RunError, first_line
from agreid_plugin.host import input_error_in

INPUT, LOST, ERROR = "input", "lost", "error"


@dataclass(frozen=True)
class ProcessTask:
    """Task of every process: `function(*arguments)`, which imports `modules`."""

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
    """A worker process and its report."""

    process: BaseProcess
    connection: Connection
    rank: int
    report: Report | None = None

    def listen(self) -> None:
        """Receive the report, if there is one."""
        with suppress(EOFError, OSError):
            while self.report is None and self.connection.poll():
                self.report = self.connection.recv()

    @property
    def failed(self) -> bool:
        """Whether it reported a failure, or ended as if it had one."""
        return self.report is not None or self.process.exitcode not in (None, 0)


def start(work: ProcessTask, place: RankInfo) -> Child:
    """Start a process that runs the task with a rank."""
    context = choose_context([work.function.__module__, *work.modules])
    ours, theirs = context.Pipe()
    environment = (dict(os.environ), os.getcwd())  # a server that starts processes may be older than these
    process = context.Process(target=_child, args=(theirs, work, place, environment))
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


def _child(connection: Connection, work: ProcessTask, place: RankInfo, environment: tuple[dict[str, str], str]) -> None:
    """Run the task in a process that ends with its parent, and report a failure."""
    variables, folder = environment
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    os.setpgid(0, 0)  # a terminal's Ctrl-C reaches the command, which passes it on once
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    member = None
    try:
        member = DistributedProcess(place, work.timeout)
        member.join(work.backend)
        work.function(*work.arguments)
        member.leave()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        connection.send(_report(place.rank, error if member is None else member.explain(error)))
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
