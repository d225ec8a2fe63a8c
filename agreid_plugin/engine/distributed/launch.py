"""Launch of a run in one process or many: those of a launcher, or those that the command starts on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from agreid_plugin.engine.checks import claim_output, process_count
from agreid_plugin.engine.distributed.environment import (
    LOOPBACK,
    PYTORCH,
    LaunchOptions,
    RankInfo,
    find_launcher,
    parse_address,
    read_rank_info,
)
from agreid_plugin.engine.distributed.process_group import (
    CLAIMED,
    JOINING,
    TIMEOUT,
    DistributedProcess,
    current_process,
    report_once,
)
from agreid_plugin.engine.distributed.rendezvous import connect, open_store, split_store
from agreid_plugin.engine.distributed.supervisor import supervise
from agreid_plugin.engine.distributed.worker import ProcessTask
from agreid_plugin.errors import InputError, RunError, first_line, require_within


@contextmanager
def join_launcher(options: LaunchOptions) -> Iterator[None]:
    """Join the rendezvous of a launcher's processes, if there is one; errors of the block are raised in only one."""
    launcher = find_launcher(options)
    place = read_rank_info(launcher, options.dist_url)
    if place.world_size > 1 or launcher == PYTORCH:
        DistributedProcess(place, _timeout(options))
    with report_once():
        yield


def world_size(options: LaunchOptions) -> int:
    """Return how many processes the run has, on all machines."""
    mine = current_process()
    return process_count(options) * options.num_machines if mine is None else mine.place.world_size


def claim(folder: Path, resume: bool) -> bool:
    """Make sure the run can write its folder and overwrites no other; returns whether it goes on with what is there.

    torchrun starts a run again with the same command: such an elastic restart goes on, asked to or not.
    """
    mine = current_process()
    if mine is not None and mine.place.attempt and mine.launch.check([CLAIMED]):
        resume = True
    claim_output(folder, resume)
    if mine is not None:
        mine.launch.set(CLAIMED, str(folder))
    return resume


def launch(
    function: Callable[..., None],
    arguments: tuple,
    options: LaunchOptions,
    timeout: float | None = None,
    backend: str | None = None,
    modules: Sequence[str] = (),
) -> None:
    """Run `function(*arguments)` in every process that the command line asks for, or in this one of a launcher's.

    Args:
        function: what to run; it can be pickled.
        arguments: its arguments.
        options: which processes.
        timeout: seconds that processes wait for each other, where `--dist-timeout` does not say.
        backend: of torch's process group; by default NCCL with GPUs and gloo without.
        modules: what the function will import, for the server that starts processes.
    """
    mine = current_process()
    if mine is not None and mine.place.world_size > 1:
        mine.timeout = _timeout(options, timeout)
        mine.join(backend)
        function(*arguments)
        mine.leave()
    elif world_size(options) == 1:
        function(*arguments)
    else:
        _start(ProcessTask(function, arguments, _timeout(options, timeout), backend, tuple(modules)), options)


def _timeout(options: LaunchOptions, default: float | None = None) -> float:
    given = options.dist_timeout if options.dist_timeout is not None else default
    return TIMEOUT if given is None else require_within("--dist-timeout", given, 1, 7 * 24 * 3600)


def _start(work: ProcessTask, options: LaunchOptions) -> None:
    """Start this machine's processes with the store of the rendezvous, which the first machine opens."""
    processes, machine = process_count(options), options.machine_rank
    address, port = parse_address(options.dist_url) if options.dist_url else (LOOPBACK, 0)
    store = connect(address, port, min(work.timeout, JOINING)) if machine else open_store(port)
    _agree(store, machine, processes, options.num_machines)
    places = [
        RankInfo(
            rank=machine * processes + local_rank,
            world_size=processes * options.num_machines,
            local_rank=local_rank,
            local_size=processes,
            machine=machine,
            address=address,
            port=store.port,
        )
        for local_rank in range(processes)
    ]
    _, watched = split_store(store)
    supervise(work, places, watched, several_machines=options.num_machines > 1)


def _agree(store: dist.Store, machine: int, processes: int, machines: int) -> None:
    """Refuse machines with different options."""
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
