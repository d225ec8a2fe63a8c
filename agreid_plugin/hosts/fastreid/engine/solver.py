"""Optimizer, learning rate schedule and mixed precision of fast-reid, with what its keys cannot say."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Mapping
from typing import Any

import torch
from fastreid.engine import hooks
from fastreid.engine.train_loop import SimpleTrainer
from fastreid.solver.lr_scheduler import WarmupLR
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from agreid_plugin.engine.checkpoints import describe_schedule_change, mismatch_error
from agreid_plugin.engine.compilation import check_backend
from agreid_plugin.engine.configuration import describe_shortening, fit_warmup, is_below
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.hosts.fastreid.config.loading import Key, declare

_logger = logging.getLogger("fastreid.train")

STEPS = ("epoch", "iteration")
POSITION = ("last_epoch", "base_lrs", "lr_lambdas")
"""What a checkpoint has of a schedule beside its settings."""
KEYS = (
    Key("SOLVER.BETAS", [], "Betas of Adam and its kin, as [0.9, 0.98]; empty: the optimizer's own.", entry=0.9),
    Key("SOLVER.LR_FACTORS", [], "Rows [module, factor]: parameters below it learn at a multiple of BASE_LR."),
    Key("SOLVER.DECAY_VECTORS", True, "Weight decay for biases and all else that is no matrix; False: for matrices."),
    Key("SOLVER.SWA_EPOCH", 0, "First of the epochs whose mean weights are the final ones (SWA); 0: the last weights."),
    Key("SOLVER.SCHED_STEP", "epoch", "CosineAnnealingLR: the rate falls once an epoch | iteration."),
)
declare(KEYS)


def check_solver(cfg) -> None:
    """Check these keys as far as they can be told from the configuration alone."""
    solver = cfg.SOLVER
    if solver.SCHED_STEP not in STEPS:
        raise unknown("SOLVER.SCHED_STEP", solver.SCHED_STEP, STEPS)
    if not 0 <= solver.SWA_EPOCH <= solver.MAX_EPOCH:
        raise InputError(
            f"SOLVER.SWA_EPOCH is {solver.SWA_EPOCH}, but must be 0 to {solver.MAX_EPOCH}, SOLVER.MAX_EPOCH"
        )
    if solver.SCHED_STEP == "iteration" and solver.SCHED != "CosineAnnealingLR":
        raise InputError(f"SOLVER.SCHED_STEP iteration is for CosineAnnealingLR, SOLVER.SCHED is {solver.SCHED}")
    if solver.SCHED_STEP == "iteration" and solver.BASE_LR <= 0:
        raise InputError(f"SOLVER.BASE_LR is {solver.BASE_LR:g}, but must be above 0")
    if solver.SCHED == "CosineAnnealingLR" and solver.DELAY_EPOCHS >= solver.MAX_EPOCH:
        raise InputError(
            f"SOLVER.DELAY_EPOCHS is {solver.DELAY_EPOCHS}, SOLVER.MAX_EPOCH {solver.MAX_EPOCH}: the cosine schedule "
            "has no epoch left; lower DELAY_EPOCHS"
        )
    fitting = [beta for beta in solver.BETAS if _is_number(beta) and 0 <= beta < 1]
    if solver.COMPILE:
        check_backend("SOLVER.COMPILE", solver.COMPILE)
    if solver.COMPILE and solver.CACHED_CHUNK:
        raise InputError("SOLVER.COMPILE and SOLVER.CACHED_CHUNK do not go together: leave one of them out")
    if solver.BETAS and not len(fitting) == len(solver.BETAS) == 2:
        raise InputError(f"SOLVER.BETAS takes two numbers from 0 to below 1, got {list(solver.BETAS)}")
    for row in solver.LR_FACTORS:
        if not (isinstance(row, list | tuple) and len(row) == 2 and isinstance(row[0], str) and _is_number(row[1])):
            raise InputError(f"SOLVER.LR_FACTORS takes rows [module, factor], got {row!r}")


def check_frozen_layers(cfg, model: nn.Module) -> None:
    """Refuse layers to freeze of which the host would freeze nothing.

    It freezes parameters whose names begin with a pattern of `MODEL.FREEZE_LAYERS`, for `SOLVER.FREEZE_ITERS` steps.
    """
    layers, parameters = cfg.MODEL.FREEZE_LAYERS, [name for name, _ in model.named_parameters()]
    if layers and cfg.SOLVER.FREEZE_ITERS < 1:
        raise InputError(
            f"MODEL.FREEZE_LAYERS names {', '.join(layers)}, but SOLVER.FREEZE_ITERS is {cfg.SOLVER.FREEZE_ITERS}: "
            "say for how many iterations, or leave the layers out"
        )
    modules = [name for name, _ in model.named_modules() if name]
    for layer in layers:
        try:
            is_found = any(re.match(layer, name) for name in parameters)
        except re.error as error:
            raise InputError(f"MODEL.FREEZE_LAYERS {layer!r} is no pattern: {error}") from None
        if not is_found:
            raise unknown("MODEL.FREEZE_LAYERS", layer, modules)


def adjust(cfg, model: nn.Module, optimizer: Optimizer) -> None:
    """Give a new optimizer the betas, rates and decays that the host's keys cannot say."""
    solver, names = cfg.SOLVER, {id(value): name for name, value in model.named_parameters()}
    if not solver.BETAS and not solver.LR_FACTORS and solver.DECAY_VECTORS:
        return
    for module, _ in solver.LR_FACTORS:
        if not any(is_below(name, module) for name in names.values()):
            _logger.warning("SOLVER.LR_FACTORS: the model has no %s", module)
    groups: dict[tuple, dict] = {}
    for group in optimizer.param_groups:
        for value in group["params"]:
            name = names[id(value)]
            rate = group["lr"] * math.prod(factor for module, factor in solver.LR_FACTORS if is_below(name, module))
            decays = solver.DECAY_VECTORS or (value.dim() > 1 and not name.endswith("bias"))
            own = {"lr": rate, "weight_decay": group["weight_decay"] if decays else 0.0}
            key = (*own.values(), group.get("freeze_status"))
            groups.setdefault(key, {**group, **own, "params": []})["params"].append(value)
    optimizer.param_groups[:] = groups.values()
    if solver.BETAS:
        _set_betas(cfg, optimizer)


def _set_betas(cfg, optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        if "betas" not in group:
            raise InputError(f"SOLVER.BETAS is for Adam and its kin, SOLVER.OPT is {cfg.SOLVER.OPT}")
        group["betas"] = tuple(cfg.SOLVER.BETAS)


def warmup_iterations(cfg, iterations_per_epoch: int) -> int:
    """Return for how many iterations the learning rate warms up, whichever key says it, fitted to the run."""
    warmup, iterations = _configured_warmup(cfg, iterations_per_epoch), cfg.SOLVER.MAX_EPOCH * iterations_per_epoch
    return fit_warmup(warmup, iterations, _left_by_warmup(cfg, iterations_per_epoch)) if iterations else warmup


def warmup_note(cfg, iterations_per_epoch: int) -> str:
    """Say that the warm-up was shortened to fit into the run; nothing if it was not."""
    warmup, fitted = _configured_warmup(cfg, iterations_per_epoch), warmup_iterations(cfg, iterations_per_epoch)
    note = describe_shortening(warmup, fitted, cfg.SOLVER.MAX_EPOCH * iterations_per_epoch)
    return f"SOLVER.WARMUP_{'EPOCHS' if cfg.SOLVER.WARMUP_EPOCHS else 'ITERS'}: {note}" if note else ""


def _configured_warmup(cfg, iterations_per_epoch: int) -> int:
    return cfg.SOLVER.WARMUP_EPOCHS * iterations_per_epoch or cfg.SOLVER.WARMUP_ITERS


def _left_by_warmup(cfg, iterations_per_epoch: int) -> int:
    """Return how many iterations a warm-up has to leave: a cosine needs a step of its own."""
    if cfg.SOLVER.SCHED != "CosineAnnealingLR":
        return 0
    return iterations_per_epoch if cfg.SOLVER.SCHED_STEP == "epoch" else 1


def cosine_by_iteration(cfg, optimizer: Optimizer, iters_per_epoch: int) -> dict[str, LRScheduler]:
    """Build warm-up and a cosine from the rate of each group to `ETA_MIN_LR / BASE_LR` of it, a step an iteration."""
    solver = cfg.SOLVER
    waiting = max(solver.WARMUP_ITERS, solver.DELAY_EPOCHS * iters_per_epoch)
    steps, least = solver.MAX_EPOCH * iters_per_epoch - waiting, solver.ETA_MIN_LR / solver.BASE_LR
    schedulers: dict[str, LRScheduler] = {"lr_sched": CosineByIteration(optimizer, steps, least)}
    if solver.WARMUP_ITERS:
        schedulers["warmup_sched"] = WarmupLR(  # the last one made decides where the rate starts
            optimizer, solver.WARMUP_FACTOR, solver.WARMUP_ITERS, solver.WARMUP_METHOD
        )
    return schedulers


class CosineByIteration(LambdaLR):
    """A cosine from the rate of each group to a share of it.

    Its settings are attributes, which a checkpoint keeps, unlike the function that they go into.

    Args:
        optimizer: the optimizer.
        steps: iterations from the whole rate to the least.
        least: the share that is left then.
    """

    def __init__(self, optimizer: Optimizer, steps: int, least: float):
        self.steps, self.least = steps, least

        def factor(step: int) -> float:
            return least + (1 - least) * (1 + math.cos(math.pi * min(step / steps, 1))) / 2

        super().__init__(optimizer, factor)

    def _get_closed_form_lr(self) -> list[float]:
        """Return the rates at this place, by torch's name for it."""
        return [rate * factor(self.last_epoch) for rate, factor in zip(self.base_lrs, self.lr_lambdas, strict=True)]


def continue_schedule(schedule: LRScheduler, state: Mapping[str, Any]) -> None:
    """Give a schedule the position that a checkpoint has of it; its settings stay those of this run.

    torch takes the old settings along: a run that is made longer would go by its old length.

    Raises:
        InputError: one of them counts epochs and the other iterations.
    """
    own = schedule.state_dict()
    before, now = _counted_in(state), _counted_in(own)
    if before != now:
        raise mismatch_error("schedule", f"SOLVER.SCHED_STEP was {before} there, it is {now} here")
    settings = {name: value for name, value in own.items() if not name.startswith("_") and name not in POSITION}
    schedule.load_state_dict({name: state[name] for name in own.keys() - settings.keys() if name in state})
    told = describe_schedule_change(settings, state)
    if told:
        _logger.warning(told)
        _take_rate(schedule)


def _counted_in(state: Mapping[str, Any]) -> str:
    """Return what a schedule's position counts: a `CosineByIteration` alone has `steps`."""
    return "iteration" if "steps" in state else "epoch"


def _take_rate(schedule: LRScheduler) -> None:
    """Set the rates that a schedule says at its position, where it can; otherwise its next step says them anew."""
    if schedule.last_epoch > 0 and hasattr(schedule, "_get_closed_form_lr"):
        schedule._last_lr = schedule._get_closed_form_lr()
        for group, rate in zip(schedule.optimizer.param_groups, schedule._last_lr, strict=True):
            group["lr"] = rate


class IterationScheduler(hooks.LRScheduler):
    """The host's hook, its schedule taking a step with every iteration that warm-up and delay leave."""

    def after_step(self) -> None:
        """Step the schedule that is due."""
        super().after_step()
        trainer = self.trainer
        waiting = max(trainer.warmup_iters, trainer.delay_epochs * trainer.iters_per_epoch)
        if trainer.iter + 1 > waiting:
            self._scheduler["lr_sched"].step()

    def after_epoch(self) -> None:
        """Leave the rate alone."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_logger = logging.getLogger("fastreid.amp")


class AMPTrainer(SimpleTrainer):
    """Autocast training: float16 with a gradient scaler on CUDA, bfloat16 without one elsewhere.

    On a CPU it is off until `enabled` is set: bfloat16 is emulated there on most machines and many times slower.
    """

    def __init__(self, model, data_loader, optimizer, param_wrapper, grad_scaler=None):
        super().__init__(model, data_loader, optimizer, param_wrapper)
        self.device_type = next(model.parameters()).device.type
        self.enabled = self.device_type != "cpu"
        on_cuda = self.device_type == "cuda"
        self.dtype = torch.float16 if on_cuda else torch.bfloat16
        self.grad_scaler = grad_scaler or torch.amp.GradScaler(self.device_type, enabled=on_cuda)
        self._told = False

    def run_step(self) -> None:
        """Take one optimizer step."""
        assert self.model.training, "the model was left in evaluation mode"
        if not self.enabled and not self._told:
            _logger.warning("mixed precision is off: the model is on a CPU (SOLVER.AMP.ON_CPU True forces it)")
            self._told = True
        start = time.perf_counter()
        data = next(self._data_loader_iter)
        data_time = time.perf_counter() - start

        with torch.autocast(self.device_type, dtype=self.dtype, enabled=self.enabled):
            loss_dict = self.model(data)
            loss = sum(loss_dict.values())

        self.optimizer.zero_grad()
        self.grad_scaler.scale(loss).backward()
        self._write_metrics(loss_dict, data_time)
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()
