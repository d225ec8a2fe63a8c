"""Several processes of a test, forked from it, so that nothing is imported again and what it registered is there.

Machines, each of which starts processes, are threads of the test.
"""

import json
import logging
import multiprocessing
import os
import queue
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from conftest import Outcome

MOST_SECONDS = 120


def in_processes(count: int, work: Callable[[], str], grouped: bool = True) -> list[str]:
    """Run `work` in processes; return what each returned, or the error it raised, by rank.

    They are told what torchrun would tell them, and share a gloo group if they are to be `grouped`.
    """
    context = multiprocessing.get_context("fork")
    results, all_told = context.Queue(), context.Event()
    given = (count, free_port(), grouped, work, results, all_told)
    processes = [context.Process(target=_run, args=(rank, *given)) for rank in range(count)]
    for process in processes:
        process.start()
    try:
        found = dict(_next_result(results, processes) for _ in processes)
    finally:
        all_told.set()
        for process in processes:
            process.join(5)
            process.kill()
    return [found[rank] for rank in range(count)]


def returned_by(count: int, work: Callable[[int], Any], folder: Path) -> list[Any]:
    """Run `work(rank)` in processes that share a gloo group; return what each returned, through files in a folder."""

    def save() -> str:
        torch.save(work(dist.get_rank()), folder / f"{dist.get_rank()}.pt")
        return "saved"

    assert in_processes(count, save) == ["saved"] * count
    return [torch.load(folder / f"{rank}.pt") for rank in range(count)]


def in_a_process(command: Callable[..., Outcome], argv: list) -> Outcome:
    """Run a command in a process of its own, as what it leaves behind would trouble the tests that come next."""

    def work() -> str:
        outcome = command(*argv)
        return json.dumps([outcome.code, outcome.out, outcome.err])

    (told,) = in_processes(1, work, grouped=False)
    return Outcome(*json.loads(told))


def _next_result(results, processes: list) -> tuple[int, str]:
    deadline = time.monotonic() + MOST_SECONDS
    while time.monotonic() < deadline:
        with suppress(queue.Empty):
            return results.get(timeout=1)
        died = [process.exitcode for process in processes if process.exitcode]
        assert not died, f"a process ended with {died} and told nothing"
    raise AssertionError(f"{len(processes)} processes did not end within {MOST_SECONDS} s")


def _run(rank: int, count: int, port: int, grouped: bool, work: Callable[[], str], results, all_told) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(count))
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME="lo")
    try:
        if grouped:
            dist.init_process_group("gloo")
        told = work()
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
    results.put((rank, told))
    all_told.wait(MOST_SECONDS)  # gloo may abort whose partner goes while it still exchanges


def on_machines(call: Callable[[int], None], number: int = 2) -> list[BaseException | None]:
    """Run `call(machine)` for all machines at the same time, and return how each ended."""
    ends: list[BaseException | None] = [None] * number
    all_there = threading.Barrier(number)

    def one(machine: int) -> None:
        try:
            all_there.wait(MOST_SECONDS)
            call(machine)
        except BaseException as error:
            ends[machine] = error

    threads = [threading.Thread(target=one, args=(machine,), daemon=True) for machine in range(number)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + MOST_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    logging.disable(logging.NOTSET)  # machines do not share a process: one switched it on while the other had it off
    assert not any(thread.is_alive() for thread in threads), f"{number} machines did not end; so far: {ends}"
    return ends


def free_port() -> int:
    """Return a port of this machine that nobody listens at.

    It is below those that the system hands out by itself, one of which another test could have before it is opened.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    for port in random.SystemRandom().sample(range(20_000 + worker, 32_000, 8), 100):
        with socket.socket() as free, suppress(OSError):
            free.bind(("", port))
            return port
    raise AssertionError("no port is free")
