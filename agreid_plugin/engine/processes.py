"""Work in a process of its own, and what that process took."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from agreid_plugin.errors import InputError

Result = TypeVar("Result")


def in_process(function: Callable[..., Result], *arguments: object, advice: str = "run the command again") -> Result:
    """Run a function in a new process, so that its memory and its output are its own.

    A server that has imported the function's module once starts them all, as importing takes seconds.

    Args:
        function: what to run.
        arguments: what it is given.
        advice: what to do where the process is killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__])
    try:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(function, *arguments).result()
    except BrokenProcessPool:
        raise InputError(f"a process was killed, perhaps for want of memory: {advice}") from None


def print_into(path: Path) -> None:
    """Have all that this process prints from here on, in C++ too, go to the end of a file."""
    with path.open("a", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


def peak_memory() -> float:
    """Return the most memory this process has had so far, in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # in bytes there, else in kilobytes
