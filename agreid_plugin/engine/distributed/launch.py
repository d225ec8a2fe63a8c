"""A run in one process or in many: those that a launcher has started, or that the command starts on this machine."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from agreid_plugin.engine.checks import claim_output, process_count
from agreid_plugin.engine.distributed.environment import LOOPBACK, PYTORCH, Place, address_of, launcher_of, place_of
from agreid_plugin.engine.distributed.process_group import CLAIMED, JOINING, TIMEOUT, Member, member, told_once
from agreid_plugin.engine.distributed.rendezvous import connect, open_store, parts_of
from agreid_plugin.engine.distributed.supervisor import supervise
from agreid_plugin.engine.distributed.worker import Work
from agreid_plugin.errors import InputError, RunError, first_line, require_within


@contextmanager
def started(args: Namespace) -> Iterator[None]:
    """Have what follows go wrong in one process alone, whatever has started how many.

    Processes of a launcher meet here already, so that each can tell what the others need not repeat.
    """
    launcher = launcher_of(args)
    place = place_of(launcher, args.dist_url)
    if place.world_size > 1 or launcher == PYTORCH:
        Member(place, _timeout(args))
    with told_once():
        yield


def world_size(args: Namespace) -> int:
    """Return how many processes the run has, on all machines."""
    mine = member()
    return process_count(args) * args.num_machines if mine is None else mine.place.world_size


def claim(folder: Path, args: Namespace) -> None:
    """Make sure the run can write its folder and overwrites no other; have an elastic restart continue its own run.

    torchrun starts a run anew with the same command. What it wrote before is then no other run.
    """
    mine = member()
    if mine is not None and mine.place.attempt and mine.launch.check([CLAIMED]):
        args.resume = True
    claim_output(folder, args.resume)
    if mine is not None:
        mine.launch.set(CLAIMED, str(folder))


def launch(
    function: Callable[..., None],
    arguments: tuple,
    args: Namespace,
    timeout: float | None = None,
    backend: str | None = None,
) -> None:
    """Run `function(*arguments)` in every process that the command line asks for, or in this one of a launcher's.

    Args:
        function: what to run; it can be pickled.
        arguments: its arguments.
        args: the command line.
        timeout: seconds that processes wait for each other, where `--dist-timeout` does not say.
        backend: of torch's process group; by default NCCL with GPUs and gloo without.
    """
    mine = member()
    if mine is not None and mine.place.world_size > 1:
        mine.timeout = _timeout(args, timeout)
        mine.join(backend)
        function(*arguments)
        mine.leave()
    elif world_size(args) == 1:
        function(*arguments)
    else:
        _start(Work(function, arguments, _timeout(args, timeout), backend), args)


def _timeout(args: Namespace, default: float | None = None) -> float:
    given = args.dist_timeout if args.dist_timeout is not None else default
    return TIMEOUT if given is None else require_within("--dist-timeout", given, 1, 7 * 24 * 3600)


def _start(work: Work, args: Namespace) -> None:
    """Start this machine's processes at the meeting point, which the first machine opens."""
    processes, machine = process_count(args), args.machine_rank
    address, port = address_of(args.dist_url) if args.dist_url else (LOOPBACK, 0)
    store = connect(address, port, min(work.timeout, JOINING)) if machine else open_store(port)
    _agree(store, machine, processes, args.num_machines)
    places = [
        Place(
            rank=machine * processes + local_rank,
            world_size=processes * args.num_machines,
            local_rank=local_rank,
            local_size=processes,
            machine=machine,
            address=address,
            port=store.port,
        )
        for local_rank in range(processes)
    ]
    _, watched = parts_of(store)
    supervise(work, places, watched, several_machines=args.num_machines > 1)


def _agree(store: dist.Store, machine: int, processes: int, machines: int) -> None:
    """Refuse machines that were told different things."""
    layout = f"--num-machines {machines} with {processes} processes each"
    try:
        theirs = store.compare_set("layout", "", layout).decode()
        taken = store.add(f"machine/{machine}", 1) > 1
    except RuntimeError as error:
        raise RunError(f"the first machine has gone before this one, {machine}, met it: {first_line(error)}") from None
    if theirs != layout:
        raise InputError(f"another machine has {theirs}, this one {layout}: they must be the same")
    if taken:
        raise InputError(f"--machine-rank {machine} is taken: two machines have the same number")
