"""Processes for the host's launcher and trainer, on GPUs (NCCL) and on CPUs (gloo)."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from fastreid.utils import comm
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class AnyDeviceDataParallel(DistributedDataParallel):
    """`DistributedDataParallel` that takes the host's `device_ids` for a model on a CPU too."""

    def __init__(self, module: nn.Module, device_ids: list[int] | None = None, **kwargs: Any):
        on_gpu = next(module.parameters()).is_cuda
        super().__init__(module, device_ids=device_ids if on_gpu else None, **kwargs)


def distributed_worker(
    local_rank: int,
    main_func: Callable,
    world_size: int,
    processes_per_machine: int,
    machine_rank: int,
    dist_url: str,
    args: tuple,
) -> None:
    """Join the process group and run `main_func`: what the host's launcher starts in each spawned process."""
    on_gpu = torch.cuda.is_available()
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=dist_url,
        world_size=world_size,
        rank=machine_rank * processes_per_machine + local_rank,
    )
    if on_gpu:
        torch.cuda.set_device(local_rank)
    else:
        _share_processors(processes_per_machine)
    comm.synchronize()
    set_local_group(processes_per_machine)
    try:
        main_func(*args)
    finally:
        dist.destroy_process_group()


def _share_processors(processes: int) -> None:
    """Keep processes from taking each other's cores, and their data workers from importing torch once more each."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    if sys.platform == "linux":
        multiprocessing.set_start_method("fork", force=True)  # a spawned process would spawn its workers too


def set_local_group(processes_per_machine: int) -> None:
    """Give the host its group of the processes on this machine; every rank makes every group, as torch demands."""
    for start in range(0, dist.get_world_size(), processes_per_machine):
        ranks = list(range(start, start + processes_per_machine))
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            comm._LOCAL_PROCESS_GROUP = group
