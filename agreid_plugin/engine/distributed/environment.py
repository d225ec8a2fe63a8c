"""Rank and world size of this process, from the environment of torchrun, SLURM's srun or MPI."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from agreid_plugin.errors import InputError

NONE, PYTORCH, SLURM, MPI = LAUNCHERS = ("none", "pytorch", "slurm", "mpi")
NEEDED = {
    PYTORCH: (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
        "torchrun --nproc-per-node N -m agreid_plugin ...",
    ),
    SLURM: (("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODELIST"), "srun fastreid ..."),
    MPI: (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"), "mpirun fastreid ..."),
}
"""Launcher -> environment variables that it sets, and how it is used."""
BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class LaunchOptions:
    """Processes that the command line asks for.

    Attributes:
        num_gpus: GPUs on this machine, one process each.
        num_processes: processes on this machine without GPUs.
        num_machines: machines in all.
        machine_rank: number of this machine.
        dist_url: where machines meet.
        launcher: what has started the processes, one of `LAUNCHERS`; None finds out.
        dist_timeout: seconds that processes wait for each other.
    """

    num_gpus: int | None = None
    num_processes: int | None = None
    num_machines: int = 1
    machine_rank: int = 0
    dist_url: str | None = None
    launcher: str | None = None
    dist_timeout: float | None = None


@dataclass(frozen=True)
class RankInfo:
    """Rank of a process in its run, and the address of the rendezvous.

    Attributes:
        rank: number of the process among all.
        world_size: number of processes.
        local_rank: number of the process on its machine.
        local_size: number of processes on its machine.
        machine: number of the machine, or anything else that machines differ in.
        address: host name of the rendezvous.
        port: port of the rendezvous.
        opens: whether this process opens the store of the rendezvous, which is there otherwise.
        attempt: how often the launcher has restarted the run.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    machine: int | str = 0
    address: str = LOOPBACK
    port: int = 0
    opens: bool = False
    attempt: int = 0


def find_launcher(options: LaunchOptions) -> str:
    """Return the launcher of this process: that of `--launcher`, else the one that the environment shows.

    A batch script of SLURM's, or a step of one task, is no distributed run; and who asks for processes by number gets
    them.
    """
    launcher = options.launcher or _detect_launcher(os.environ)
    counted = options.num_gpus or options.num_processes or options.num_machines > 1
    if counted and launcher == SLURM and not options.launcher:
        return NONE
    names, usage = NEEDED.get(launcher, ((), ""))
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise InputError(f"--launcher {launcher}: {missing[0]} is not set; start the command as {usage}")
    if counted and launcher != NONE:
        raise InputError(
            f"--launcher {launcher} starts the processes: leave out --num-gpus, --num-processes, --num-machines"
        )
    return launcher


def _detect_launcher(environment: Mapping[str, str]) -> str:
    if BY_TORCHRUN in environment:
        return PYTORCH
    if "SLURM_STEP_ID" in environment and _tasks(environment) > 1:
        return SLURM
    return NONE


def read_rank_info(launcher: str, dist_url: str | None = None) -> RankInfo:
    """Return the rank that a launcher has given this process; rank 0 of 1 without one."""
    places = {PYTORCH: _read_torchrun, SLURM: _read_slurm, MPI: _read_mpi}
    if launcher == NONE:
        return RankInfo()
    try:
        return places[launcher](os.environ, dist_url)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--launcher {launcher}: a variable of its environment is no number: {error}") from None


def _read_torchrun(environment: Mapping[str, str], dist_url: str | None) -> RankInfo:
    rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    if dist_url:
        raise InputError("--dist-url: torchrun has its own, give it --master-addr and --master-port")
    return RankInfo(
        rank=rank,
        world_size=world_size,
        local_rank=int(environment["LOCAL_RANK"]),
        local_size=int(environment.get("LOCAL_WORLD_SIZE", world_size)),
        machine=int(environment.get("GROUP_RANK", 0)),
        address=environment["MASTER_ADDR"],
        port=int(environment["MASTER_PORT"]),
        opens=rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != str(True),
        attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", 0)),
    )


def _read_slurm(environment: Mapping[str, str], dist_url: str | None) -> RankInfo:
    rank, node = int(environment["SLURM_PROCID"]), int(environment.get("SLURM_NODEID", 0))
    per_node = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE", "1")
    nodes = environment.get("SLURM_STEP_NODELIST") or environment["SLURM_NODELIST"]
    address, port = _find_rendezvous(environment, dist_url, first_node(nodes))
    return RankInfo(
        rank=rank,
        world_size=_tasks(environment),
        local_rank=int(environment.get("SLURM_LOCALID", 0)),
        local_size=tasks_on(per_node, node),
        machine=node,
        address=address,
        port=port,
        opens=rank == 0,
    )


def _read_mpi(environment: Mapping[str, str], dist_url: str | None) -> RankInfo:
    rank, world_size = (int(environment[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    local_size = int(environment.get("OMPI_COMM_WORLD_LOCAL_SIZE", world_size))
    here = LOOPBACK if local_size == world_size else None
    address, port = _find_rendezvous(environment, dist_url, here)
    return RankInfo(
        rank=rank,
        world_size=world_size,
        local_rank=int(environment["OMPI_COMM_WORLD_LOCAL_RANK"]),
        local_size=local_size,
        machine=os.uname().nodename,
        address=address,
        port=port,
        opens=rank == 0,
    )


def _tasks(environment: Mapping[str, str]) -> int:
    """Return how many tasks a step of SLURM's has; an interactive shell is a step of one in a job of many."""
    return int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", 1))


def _find_rendezvous(environment: Mapping[str, str], dist_url: str | None, first: str | None) -> tuple[str, int]:
    """Return the rendezvous: `--dist-url`, `MASTER_ADDR` and `MASTER_PORT`, else the first machine."""
    if dist_url:
        return parse_address(dist_url)
    address = environment.get("MASTER_ADDR") or first
    if address is None:
        raise InputError("--launcher mpi on several machines: say where they meet, --dist-url tcp://10.0.0.1:29500")
    job = int(re.sub(r"\D", "", environment.get("SLURM_JOB_ID", "")) or 0)  # so that jobs on one node do not meet
    return address, int(environment.get("MASTER_PORT") or 20000 + job % 10000)


def parse_address(url: str) -> tuple[str, int]:
    """Return address and port of `tcp://address:port`."""
    try:
        parts = urlsplit(url)
        address, port = parts.hostname if parts.scheme == "tcp" else None, parts.port
    except ValueError:
        address = port = None
    if not (address and port):
        raise InputError(f"--dist-url {url} should be like tcp://10.0.0.1:29500")
    return address, port


def first_node(nodes: str) -> str:
    """Return the first of SLURM's list of nodes: `node[03-05,9],gpu1` -> `node03`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes.strip())[0]
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first)


def tasks_on(per_node: str, node: int) -> int:
    """Return how many tasks a node has, by SLURM's list for all of them: `2(x3),1` is 2, 2, 2 and 1."""
    counts: list[int] = []
    for part in per_node.split(","):
        count, _, repeated = part.partition("(x")
        counts += [int(count)] * int(repeated.rstrip(")") or 1)
    return counts[node] if node < len(counts) else counts[-1]
