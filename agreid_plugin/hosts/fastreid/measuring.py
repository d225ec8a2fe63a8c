"""What benchmarks share: a process for each measurement, and its peak memory."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def in_process(function: Callable[..., Result], *arguments: object) -> Result:
    """Run a function in a new process, so that its peak memory is its own.

    A server that has imported the function's module once starts them all, as importing takes seconds.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__])
    with context.Pool(1) as pool:
        return pool.apply(function, arguments)


def peak_memory() -> float:
    """Return the most memory this process has had so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
