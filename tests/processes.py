"""Several processes of a test, forked from it, so that nothing is imported again and what it registered is there.

Machines, each of which starts processes, are threads of the test.
"""

import json
import multiprocessing
import os
import queue
import socket
import threading
from collections.abc import Callable
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
    results = context.Queue()
    given = (count, free_port(), grouped, work, results)
    processes = [context.Process(target=_run, args=(rank, *given)) for rank in range(count)]
    for process in processes:
        process.start()
    try:
        found = dict(results.get(timeout=MOST_SECONDS) for _ in processes)
    except queue.Empty:
        raise AssertionError(f"{count} processes did not end within {MOST_SECONDS} s") from None
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    return [found[rank] for rank in range(count)]


def returned_by(count: int, work: Callable[[int], Any], folder: Path) -> list[Any]:
    """Run `work(rank)` in processes that share a gloo group; return what each returned, through files in a folder."""

    def save() -> str:
        torch.save(work(dist.get_rank()), folder / f"{dist.get_rank()}.pt")
        dist.barrier()  # gloo may abort whose partner goes while it still exchanges
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


def _run(rank: int, count: int, port: int, grouped: bool, work: Callable[[], str], results) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(count))
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME="lo")
    try:
        if grouped:
            dist.init_process_group("gloo")
        told = work()
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
    results.put((rank, told))


def on_machines(call: Callable[[int], None], number: int = 2) -> list[BaseException | None]:
    """Run `call(machine)` for all machines at the same time, and return how each ended."""
    ends: list[BaseException | None] = [None] * number

    def one(machine: int) -> None:
        try:
            call(machine)
        except Exception as error:
            ends[machine] = error

    threads = [threading.Thread(target=one, args=(machine,)) for machine in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(MOST_SECONDS)
    assert not any(thread.is_alive() for thread in threads), f"{number} machines did not end"
    return ends


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
