"""Training: an optimizer that learns, any device, and processes that stop together."""

from __future__ import annotations

from typing import Any

import torch

from agreid_plugin.hosts.fastreid.compat.mending import host, replace
from agreid_plugin.hosts.host_fixes import Patches

PATCHES = Patches()
patch = PATCHES.add


def _weights_stand_still() -> bool:
    model = torch.nn.PReLU()  # one weight, set without drawing a random number
    optimizer, _ = host("solver").build_optimizer(host("config").get_cfg(), model)
    before = model.weight.item()
    optimizer.zero_grad()
    model(-torch.ones(1)).sum().backward()
    optimizer.step()
    return model.weight.item() == before


@patch("after", "zero_grad() of torch >= 2 drops the flat gradient buffer: no weight changes", _weights_stand_still)
def optimizer_without_flat_buffer() -> None:
    """Give the optimizer the parameters themselves, one group for each (lr, weight decay, frozen).

    Faster than the flat buffer (fewer and larger steps), and parameters without a gradient are left alone.
    """
    solver = host("solver.build")
    host_build, host_params = solver.build_optimizer, solver.get_default_optimizer_params

    def merged_params(*args: Any, **kwargs: Any) -> list[dict]:
        groups: dict[tuple, dict] = {}
        for group in host_params(*args, **kwargs):
            key = tuple(sorted((k, v) for k, v in group.items() if k != "params"))
            groups.setdefault(key, {**group, "params": []})["params"] += group["params"]
        return list(groups.values())

    def build_optimizer(cfg, model, contiguous=True):  # noqa: ARG001
        return host_build(cfg, model, contiguous=False)

    solver.get_default_optimizer_params = merged_params
    replace("build_optimizer", build_optimizer, "solver.build", "solver", "engine.defaults")


@patch(
    "after",
    "the host's mixed-precision trainer demands CUDA",
    lambda: host("engine.defaults").AMPTrainer.__module__.startswith("fastreid."),
)
def amp_on_any_device() -> None:
    """Train with autocast where it pays, in full precision on a CPU."""
    from agreid_plugin.hosts.fastreid.engine.amp import AMPTrainer

    replace("AMPTrainer", AMPTrainer, "engine.defaults", "engine.train_loop")


@patch(
    "after",
    "a loss that is not finite stops the host's main process alone, and the others wait for it for ever",
    lambda: host("engine.train_loop").SimpleTrainer._write_metrics.__module__.startswith("fastreid."),
)
def stop_together() -> None:
    """Have every process learn all losses, and stop by them."""
    from agreid_plugin.hosts.fastreid.engine.loss_logging import write_metrics

    host("engine.train_loop").SimpleTrainer._write_metrics = write_metrics


@patch(
    "after",
    "the host's data loader demands CUDA and waits for ever when an image cannot be read",
    lambda: hasattr(host("data.build").DataLoaderX, "preload"),
)
def loader_on_any_device() -> None:
    """Load batches without CUDA streams of the host's and without its thread."""
    from agreid_plugin.hosts.fastreid.data.prefetch import DeviceLoader

    replace("DataLoaderX", DeviceLoader, "data.data_utils", "data.build")


@patch(
    "after",
    "the host's launcher and its DistributedDataParallel demand CUDA",
    lambda: host("engine.launch")._distributed_worker.__module__.startswith("fastreid."),
)
def processes_on_any_device() -> None:
    """Launch gloo processes where there is no GPU."""
    from agreid_plugin.hosts.fastreid.engine.distributed import AnyDeviceDataParallel, distributed_worker

    replace("_distributed_worker", distributed_worker, "engine.launch")
    replace("DistributedDataParallel", AnyDeviceDataParallel, "engine.defaults")
