"""Training: an optimizer that learns, all losses, seeds, any device, and processes that stop together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial, wraps
from typing import Any

import torch

from agreid_plugin.engine.observers import FetchedLosses
from agreid_plugin.hosts.fastreid.compat.names import host, replace
from agreid_plugin.hosts.host_fixes import HostFixes
from agreid_plugin.types import Batch, HeadOutputs

HOST_FIXES = HostFixes()
fix = partial(HOST_FIXES.add, "fastreid")


def _weights_stand_still() -> bool:
    model = torch.nn.PReLU()  # one weight, set without drawing a random number
    optimizer, _ = host("solver").build_optimizer(host("config").get_cfg(), model)
    before = model.weight.item()
    optimizer.zero_grad()
    model(-torch.ones(1)).sum().backward()
    optimizer.step()
    return model.weight.item() == before


@fix("zero_grad() of torch >= 2 drops the flat gradient buffer: no weight changes", _weights_stand_still)
def optimizer_without_flat_buffer() -> None:
    """Give the optimizer the parameters themselves, one group for each (lr, weight decay, frozen).

    Faster than the flat buffer (fewer and larger steps), and parameters without a gradient stay as they are.
    """
    solver = host("solver.build")
    host_build, host_params = solver.build_optimizer, solver.get_default_optimizer_params

    @wraps(host_params)
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


@fix(
    "the host's mixed-precision trainer demands CUDA",
    lambda: host("engine.defaults").AMPTrainer.__module__.startswith("fastreid."),
)
def amp_on_any_device() -> None:
    """Train with autocast where it pays, in full precision on a CPU."""
    from agreid_plugin.hosts.fastreid.engine.solver import AMPTrainer

    replace("AMPTrainer", AMPTrainer, "engine.defaults", "engine.train_loop")


@fix(
    "a loss that is not finite stops only the host's main process, and the others wait forever",
    lambda: host("engine.train_loop").SimpleTrainer._write_metrics.__module__.startswith("fastreid."),
)
def stop_together() -> None:
    """Judge losses in every process, and log their means.

    The host judges before the optimizer steps, so the guard has to as well. It has fetched the losses in the forward
    pass; the host reads them from another stream of the GPU, which does not wait until they are computed.
    """

    def write_metrics(self, loss_dict: Mapping[str, torch.Tensor], data_time: float) -> None:
        guard = getattr(self, "guard", None)
        terms = guard.judge_losses() if guard is not None else None
        if terms is None:
            terms = FetchedLosses(loss_dict).require_finite(self.iter + 1)
        gathered = host("utils").comm.gather((terms, data_time), dst=0)
        if not gathered:  # on every process but the main one
            return
        means = {name: math.fsum(each[name] for each, _ in gathered) / len(gathered) for name in terms}
        storage = host("utils.events").get_event_storage()
        storage.put_scalar("data_time", max(seconds for _, seconds in gathered))
        storage.put_scalar("total_loss", sum(means.values()))
        if len(means) > 1:
            storage.put_scalars(**means)

    host("engine.train_loop").SimpleTrainer._write_metrics = write_metrics


@fix(
    "the host's set-up seeds a run with a number of its own; the host has no key for a seed",
    lambda: host("engine.defaults").default_setup.__module__.startswith("fastreid."),
)
def seed_by_configuration() -> None:
    """Seed by `SEED` and the rank, or with a drawn number if it is negative."""
    module, seed_all_rng = host("engine.defaults"), host("utils.env").seed_all_rng
    native = module.default_setup

    def default_setup(cfg: Any, args: Any) -> None:
        native(cfg, args)
        seed_all_rng(cfg.SEED + host("utils.comm").get_rank() if cfg.SEED >= 0 else None)

    module.seed_all_rng = lambda seed=None: None  # noqa: ARG005 - the host's call in its set-up
    replace("default_setup", default_setup, "engine.defaults", "engine")


@fix(
    "the host's architectures compute four losses and ignore others that MODEL.LOSSES.NAME asks for",
    lambda: not hasattr(host("modeling.meta_arch").Baseline.losses, "__wrapped__"),
)
def every_registered_loss() -> None:
    """Compute every registered loss, the mean over the heads of an architecture; the host's four stay as they are."""
    for architecture in (host("modeling.meta_arch").Baseline, host("modeling.meta_arch.mgn").MGN):
        _add_losses(architecture)  # MoCo and Distiller are kinds of Baseline


def _add_losses(architecture: type[torch.nn.Module]) -> None:
    build, compute = architecture.__init__, architecture.losses

    @wraps(build)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        from agreid_plugin.hosts.fastreid.models.losses import HOST_LOSSES, build_objectives

        build(self, *args, **kwargs)
        node = host("config").CfgNode
        cfg = next((each for each in (*args, *kwargs.values()) if isinstance(each, node)), None)
        if cfg is None:  # the host's own parts, given ready made
            self.objectives = torch.nn.ModuleDict()
        else:
            others = [name for name in cfg.MODEL.LOSSES.NAME if name not in HOST_LOSSES]
            self.objectives = build_objectives(cfg, others)

    @wraps(compute)
    def losses(self, *args: Any) -> dict[str, torch.Tensor]:
        terms = compute(self, *args)
        *branches, pids = args  # MGN has eight
        heads = [HeadOutputs(each["features"], each["features"], each["cls_outputs"]) for each in branches]
        for name, objective in self.objectives.items():
            terms[f"loss_{name}"] = sum(objective(head, Batch(pids=pids)) for head in heads) / len(heads)
        return terms

    architecture.__init__, architecture.losses = __init__, losses


@fix(
    "a Distiller's teacher has the classes of its configuration, of which a recipe has none, and random weights unsaid",
    lambda: not hasattr(host("modeling.meta_arch.distiller").Distiller.__init__, "checks_teachers"),
)
def teachers_of_recipes() -> None:
    """Give a teacher as many classes as its student where its configuration does not say, and refuse unfit weights."""
    module = host("modeling.meta_arch.distiller")
    build = module.Distiller.__init__

    @wraps(build)
    def __init__(self, cfg: Any) -> None:
        from agreid_plugin.hosts.fastreid.models.base import build_teacher, require_teachers, teacher_defaults

        names = {"get_cfg": partial(teacher_defaults, cfg), "build_model": build_teacher}
        before = {name: getattr(module, name) for name in names}
        vars(module).update(names)
        try:
            build(self, cfg)
        finally:
            vars(module).update(before)
        require_teachers(cfg, self.model_ts)

    __init__.checks_teachers = True
    module.Distiller.__init__ = __init__


@fix(
    "the host's data loader demands CUDA and waits forever when an image cannot be read",
    lambda: hasattr(host("data.build").DataLoaderX, "preload"),
)
def loader_on_any_device() -> None:
    """Load batches without the host's CUDA streams and thread."""
    from agreid_plugin.hosts.fastreid.data.batches import DeviceLoader

    replace("DataLoaderX", DeviceLoader, "data.data_utils", "data.build")


@fix(
    "the host's launcher and its DistributedDataParallel demand CUDA",
    lambda: host("engine.launch")._distributed_worker.__module__.startswith("fastreid."),
)
def processes_on_any_device() -> None:
    """Launch gloo processes where there is no GPU."""
    from agreid_plugin.hosts.fastreid.engine.distributed import AnyDeviceDataParallel, distributed_worker

    replace("_distributed_worker", distributed_worker, "engine.launch")
    replace("DistributedDataParallel", AnyDeviceDataParallel, "engine.defaults")
