"""Settings of parameters and steps of the optimizer as fast-reid has them, which mmengine's own cannot say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from logging import WARNING
from typing import Any

import torch
from mmengine import optim
from mmengine.logging import print_log
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils import clip_grad_norm_

from agreid_plugin.engine.parameter_names import is_below
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.hosts.mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS, OPTIM_WRAPPERS

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
