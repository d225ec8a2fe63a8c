"""Process group of fast-reid for the processes of one machine, and a wrapper for parallel models on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from fastreid.utils import comm
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from agreid_plugin.engine.distributed.process_group import default_backend, prepare_device


class AnyDeviceDataParallel(DistributedDataParallel):
    """`DistributedDataParallel` on this process's GPU, or on none for a CPU model, whatever the host asks."""

    @wraps(DistributedDataParallel.__init__)
    def __init__(self, module: nn.Module, device_ids: list[int] | None = None, **kwargs: Any):
        on_gpu = next(module.parameters()).is_cuda and device_ids is not None
        super().__init__(module, device_ids=[torch.cuda.current_device()] if on_gpu else None, **kwargs)


def plain(model: nn.Module) -> nn.Module:
    """Return the model inside a wrapper for many processes."""
    return getattr(model, "module", model)


def share(tensors: Iterable[Tensor]) -> None:
    """Give every process the main one's values."""
    if comm.get_world_size() > 1:
        for values in tensors:
            dist.broadcast(values, src=0)


def distributed_worker(
    local_rank: int,
    main_func: Callable,
    world_size: int,
    num_gpus_per_machine: int,
    machine_rank: int,
    dist_url: str,
    args: tuple,
) -> None:
    """Join the process group and run `main_func`: what the host's own `launch` starts in each spawned process."""
    prepare_device(local_rank, num_gpus_per_machine)
    rank = machine_rank * num_gpus_per_machine + local_rank
    dist.init_process_group(default_backend(), init_method=dist_url, world_size=world_size, rank=rank)
    comm.synchronize()
    try:
        with local_group(machine_rank):
            main_func(*args)
    finally:
        dist.destroy_process_group()


@contextmanager
def local_group(machine: int | str) -> Iterator[None]:
    """Give the host its group of the processes on this machine; every rank makes every group, as torch demands.

    It is taken back in the end, with the one of all processes that the host caches: gloo may abort a process at whose
    exit a group is still there.
    """
    machines: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(machines, machine)
    for each in dict.fromkeys(machines):
        group = dist.new_group([rank for rank, theirs in enumerate(machines) if theirs == each])
        if each == machine:
            comm._LOCAL_PROCESS_GROUP = group
    try:
        yield
    finally:
        comm._LOCAL_PROCESS_GROUP = None
        comm._get_global_gloo_group.cache_clear()
