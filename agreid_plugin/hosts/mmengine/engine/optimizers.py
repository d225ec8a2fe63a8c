"""Optimizer settings and learning rate schedules of fast-reid for mmengine, which has no such options."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from logging import WARNING
from typing import Any

import torch
from mmengine import optim
from mmengine.logging import print_log
from mmengine.optim import _ParamScheduler
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils import clip_grad_norm_

from agreid_plugin.engine.checkpoints import describe_schedule_change
from agreid_plugin.engine.configuration import describe_shortening, fit_warmup, is_below
from agreid_plugin.errors import InputError, require_int, require_within, unknown
from agreid_plugin.hosts.mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS, OPTIM_WRAPPERS, PARAM_SCHEDULERS

NORMS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm)
SETTINGS = ("bias_lr_mult", "bias_decay_mult", "norm_decay_mult", "decay_vectors", "lr_mult")
EACH = "each"


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class OptimWrapperConstructor(optim.DefaultOptimWrapperConstructor):
    """Rates and weight decays of parameters by fast-reid's rules; frozen parameters are left out.

    Parameters with the same of both make one group. `paramwise_cfg` has:

    - `bias_lr_mult`, `bias_decay_mult`: of parameters called `bias`, those of norms too, which mmengine leaves out;
    - `norm_decay_mult`: of the other parameters of norms;
    - `decay_vectors`: False for weight decay of matrices alone;
    - `lr_mult`: factors of rates by module, as `{'method.image_local': 10.0}`.
    """

    def _validate_cfg(self) -> None:
        super()._validate_cfg()
        for name in self.paramwise_cfg:
            if name not in SETTINGS:
                raise unknown("paramwise_cfg", name, SETTINGS)

    def add_params(self, params: list[dict], module: nn.Module, **_: Any) -> None:
        """Add the groups of a model's parameters."""
        groups: dict[tuple[float, float], list[Tensor]] = {}
        frozen = 0
        for name, owner, value in _parameters(module):
            if value.requires_grad:
                groups.setdefault(self.settings(name, owner, value), []).append(value)
            else:
                frozen += 1
        params.extend({"params": values, "lr": lr, "weight_decay": decay} for (lr, decay), values in groups.items())
        trained = sum(map(len, groups.values()))
        print_log(f"optimizer: {trained} parameters in {len(groups)} groups, {frozen} frozen", "current")
        self._check_modules(module)

    def settings(self, name: str, owner: nn.Module, value: Tensor) -> tuple[float, float]:
        """Return rate and weight decay of a parameter, which a module owns."""
        rate, decay, says = self.base_lr, self.base_wd or 0.0, self.paramwise_cfg
        if name.rpartition(".")[2] == "bias":
            rate, decay = rate * says.get("bias_lr_mult", 1.0), decay * says.get("bias_decay_mult", 1.0)
        elif isinstance(owner, NORMS):
            decay *= says.get("norm_decay_mult", 1.0)
        if not says.get("decay_vectors", True) and (value.dim() < 2 or name.endswith("bias")):
            decay = 0.0
        factors = (factor for module, factor in says.get("lr_mult", {}).items() if is_below(name, module))
        return rate * math.prod(factors), decay

    def _check_modules(self, model: nn.Module) -> None:
        names = [name for name, _ in model.named_parameters()]
        for module in self.paramwise_cfg.get("lr_mult", {}):
            if not any(is_below(name, module) for name in names):
                print_log(f"paramwise_cfg.lr_mult: the model has no {module}", "current", WARNING)


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Yield every parameter once, with its name and the module that owns it."""
    seen = set()
    for path, owner in model.named_modules():
        for name, value in owner.named_parameters(recurse=False):
            if value not in seen:
                seen.add(value)
                yield f"{path}.{name}" if path else name, owner, value


def clip_each(parameters: Sequence[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Clip the gradient of each parameter to a norm, as fast-reid does; returns the largest norm there was."""
    return torch.stack([clip_grad_norm_(value, max_norm, norm_type) for value in parameters]).max()


class _ClipsEach:
    """Lets `clip_grad` of mmengine's wrappers be `dict(type='each', max_norm=5.0)`; see `clip_each`."""

    def keep_clipping(self, clip_grad: dict | None) -> dict | None:
        """Return what mmengine's wrapper may know of it."""
        if not isinstance(clip_grad, dict | None):
            raise InputError(f"optim_wrapper.clip_grad={clip_grad!r} should be a dictionary or None")
        self._each = bool(clip_grad) and clip_grad.get("type") == EACH
        return {**clip_grad, "type": "norm"} if self._each else clip_grad

    def _clip_grad(self) -> None:
        if self._each:
            self.clip_func = clip_each
        super()._clip_grad()


@OPTIM_WRAPPERS.register_module()
class OptimWrapper(_ClipsEach, optim.OptimWrapper):
    """mmengine's, which clips each gradient alone where `clip_grad=dict(type='each', ...)`."""

    def __init__(self, *args: Any, clip_grad: dict | None = None, **kwargs: Any):
        super().__init__(*args, clip_grad=self.keep_clipping(clip_grad), **kwargs)


@OPTIM_WRAPPERS.register_module()
class AmpOptimWrapper(_ClipsEach, optim.AmpOptimWrapper):
    """mmengine's, also for a CPU, where it is off: bfloat16 is emulated there on most machines and many times slower.

    Args:
        optimizer: what takes the steps.
        on_cpu: have bfloat16 on a CPU too.
        loss_scale: see mmengine's, as the next two; none of the three concerns a CPU.
        dtype: numbers of mixed precision.
        use_fsdp: for sharded parameters.
        clip_grad: see `OptimWrapper`.
        **kwargs: see mmengine's.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        on_cpu: bool = False,
        loss_scale: Any = "dynamic",
        dtype: Any = None,
        use_fsdp: bool = False,
        clip_grad: dict | None = None,
        **kwargs: Any,
    ):
        self.device_type = optimizer.param_groups[0]["params"][0].device.type
        kwargs = {"optimizer": optimizer, "clip_grad": self.keep_clipping(clip_grad), **kwargs}
        if self.device_type != "cpu":
            super().__init__(loss_scale, dtype, use_fsdp, **kwargs)
            return
        optim.OptimWrapper.__init__(self, **kwargs)
        self.enabled, self._scale_update_param = on_cpu, None
        self.loss_scaler = torch.amp.GradScaler("cpu", enabled=False)
        if not on_cpu:
            say = "mixed precision is off: the model is on a CPU (optim_wrapper.on_cpu=True forces it)"
            print_log(say, "current", WARNING)

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Have a forward pass in mixed precision, where it is on."""
        if self.device_type != "cpu":
            with super().optim_context(model):
                yield
            return
        with optim.OptimWrapper.optim_context(self, model), torch.autocast("cpu", torch.bfloat16, self.enabled):
            yield

    def load_state_dict(self, state_dict: dict) -> None:
        """Go on from a checkpoint; one that a CPU wrote has no loss scale."""
        state = dict(state_dict)
        if not state.get("loss_scaler"):
            state.pop("loss_scaler", None)
        super().load_state_dict(state)


EVERY = ("epoch", "iteration")
POSITION = ("last_step", "_global_step", "_last_value", "base_values")
"""What a checkpoint tells of a schedule; all else is the configuration's."""


class WarmupLR(_ParamScheduler):
    """Each group's rate times `f + (1 - f) t / W` while t < W, then what the kind of schedule says.

    mmengine's own are counted in epochs or in iterations; here warm-up ends at an iteration, and the rest goes by
    epochs from there. A configuration writes `convert_to_iter_based=True`, which has mmengine tell L; E is that of the
    run, or `end`. A warm-up that leaves the schedule nothing is shortened, see `fit_warmup`, and the log says so.

    Args:
        optimizer: what has the rates.
        epoch_length: L.
        end: E.
        warmup_iters: W.
        warmup_epochs: W in epochs, instead.
        warmup_factor: f.
        last_step: the iteration before the first one.
        verbose: print every change.
    """

    settings: tuple[str, ...] = ("epoch_length", "epochs", "warmup", "warmup_factor")
    """What tells a schedule from another of its kind."""

    def __init__(
        self,
        optimizer: Any,
        epoch_length: int = 0,
        end: int = 0,
        warmup_iters: int = 0,
        warmup_epochs: int = 0,
        warmup_factor: float = 0.1,
        last_step: int = -1,
        verbose: bool = False,
    ):
        if epoch_length < 1 or end < 1:
            raise InputError(
                f"{type(self).__name__}: write convert_to_iter_based=True, epochs have no length otherwise"
            )
        if warmup_iters and warmup_epochs:
            raise InputError(f"{type(self).__name__}: give warmup_iters or warmup_epochs, not both")
        self.epoch_length, self.epochs = epoch_length, end
        warmup_iters = require_int("warmup_iters", warmup_iters, least=0)
        warmup_epochs = require_within("warmup_epochs", warmup_epochs, 0, math.inf)
        self.warmup = self._fit(int(warmup_iters or warmup_epochs * epoch_length))
        self.warmup_factor = require_within("warmup_factor", warmup_factor, 0, 1)
        self.prepare()
        super().__init__(optimizer, "lr", 0, end * epoch_length, last_step, by_epoch=False, verbose=verbose)

    @classmethod
    def build_iter_from_epoch(cls, *args: Any, by_epoch: bool = True, **kwargs: Any) -> WarmupLR:  # noqa: ARG003
        """Build it with what mmengine knows of the run."""
        return cls(*args, **kwargs)

    def _fit(self, warmup: int) -> int:
        iterations = self.epochs * self.epoch_length
        fitted = fit_warmup(warmup, iterations, self.left_by_warmup())
        note = describe_shortening(warmup, fitted, iterations)
        if note:
            print_log(f"{type(self).__name__}: {note}", "current")
        return fitted

    def left_by_warmup(self) -> int:
        """Return how many iterations a warm-up has to leave."""
        return 0

    def prepare(self) -> None:
        """Make ready what comes after warm-up, once the lengths are known."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a checkpoint stood, by the schedule of this run: one that is made longer goes by its new length.

        mmengine's own take the old settings from the checkpoint, too, and stand still where the shorter run ended.
        """
        super().load_state_dict({name: state_dict[name] for name in POSITION if name in state_dict})
        told = describe_schedule_change({name: getattr(self, name) for name in self.settings}, state_dict)
        if not told:
            return
        print_log(told, "current", WARNING)
        if self.last_step < self._global_step < self.end:  # that run had come to its end, and took no rate any more
            self.last_step = self._global_step
        for group, value in zip(self.optimizer.param_groups, self._get_value(), strict=True):
            group["lr"] = value

    def _get_value(self) -> list[float]:
        return [self.rate(base, self.last_step) for base in self.base_values]

    def rate(self, base: float, step: int) -> float:
        """Return the rate at iteration t of a group that starts from `base`."""
        if step < self.warmup:
            passed = step / self.warmup
            return base * (self.warmup_factor * (1 - passed) + passed)
        return self.rate_after(base, step)

    def rate_after(self, base: float, step: int) -> float:  # noqa: ARG002 - of an iteration
        """Return the rate of a group at an iteration behind warm-up."""
        return base


@PARAM_SCHEDULERS.register_module()
class WarmupMultiStepLR(WarmupLR):
    """The rate times `gamma` in every epoch of `milestones`, counted from 0 from the start of the run.

    Args:
        *args: see `WarmupLR`.
        milestones: epochs, increasing.
        gamma: the factor.
        **kwargs: see `WarmupLR`.
    """

    settings = (*WarmupLR.settings, "milestones", "gamma")

    def __init__(self, *args: Any, milestones: Sequence[int], gamma: float = 0.1, **kwargs: Any):
        self.milestones, self.gamma = list(milestones), gamma
        if any(first >= second for first, second in pairwise(self.milestones)):
            raise InputError(f"milestones={self.milestones} should increase")
        super().__init__(*args, **kwargs)

    def rate_after(self, base: float, step: int) -> float:
        """Return the rate at a step: gamma to the power of the milestones passed."""
        return base * self.gamma ** bisect_right(self.milestones, step // self.epoch_length)


@PARAM_SCHEDULERS.register_module()
class WarmupCosineLR(WarmupLR):
    """From the rate r to the least m by `m + (r - m) (1 + cos(pi k / K)) / 2`.

    By epochs, k is the epoch less those that are all warm-up, floor(W / L), and K = E - ceil(W / L): the epoch that
    warm-up ends in has the whole rate to its end, as in fast-reid. By iterations k = t - W and K = E L - W.

    Args:
        *args: see `WarmupLR`.
        eta_min: m, the same for every group.
        eta_min_ratio: m as a share of each group's rate, instead.
        every: `epoch` | `iteration`, when the rate changes.
        **kwargs: see `WarmupLR`.
    """

    settings = (*WarmupLR.settings, "eta_min", "eta_min_ratio", "every")

    def __init__(
        self,
        *args: Any,
        eta_min: float | None = None,
        eta_min_ratio: float | None = None,
        every: str = "epoch",
        **kwargs: Any,
    ):
        if every not in EVERY:
            raise unknown("every", every, EVERY)
        if eta_min is not None and eta_min_ratio is not None:
            raise InputError("give eta_min or eta_min_ratio, not both")
        self.eta_min, self.eta_min_ratio, self.every = eta_min or 0.0, eta_min_ratio, every
        super().__init__(*args, **kwargs)

    def left_by_warmup(self) -> int:
        """Return how many iterations a warm-up has to leave: a step of the cosine's own."""
        return self.epoch_length if self.every == "epoch" else 1

    def prepare(self) -> None:
        """Count K, 1 at least: in a run of one epoch the cosine takes no step."""
        self.length = self.left_by_warmup()
        self.whole = max(self.epochs * self.epoch_length // self.length - math.ceil(self.warmup / self.length), 1)

    def rate_after(self, base: float, step: int) -> float:
        """Return the rate at a step, see the class."""
        least = self.eta_min if self.eta_min_ratio is None else self.eta_min_ratio * base
        passed = step // self.length - self.warmup // self.length
        return least + (base - least) * (1 + math.cos(math.pi * min(passed / self.whole, 1))) / 2
