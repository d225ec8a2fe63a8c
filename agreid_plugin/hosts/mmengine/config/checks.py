"""A configuration looked over before anything is built of it: wrong kinds of values, keys that mmengine ignores.

What is found here would else be told by a traceback, after an epoch that nobody keeps, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from mmengine.config import Config
from mmengine.registry import Registry
from mmengine.runner import Runner
from torch import nn
from torch.optim import SGD

from agreid_plugin.errors import InputError, did_you_mean, first_line, said_of, unknown
from agreid_plugin.hosts.mmengine import registry
from agreid_plugin.hosts.mmengine.config.type_checks import misfit, require_kinds
from agreid_plugin.hosts.mmengine.engine.schedules import WarmupLR

Names = list[str] | str | None
BEYOND_THE_RUNNERS = {
    "custom_imports": dict | None,
    "runner_type": str,
    "model_wrapper_cfg": dict | None,
    "sync_bn": Literal["torch", "mmcv"] | None,
    "find_unused_parameters": bool,
    "compile": bool | dict | None,
    "activation_checkpointing": Names,
    "efficient_conv_bn_eval": Names,
}
"""Keys at the top of a configuration that mmengine reads besides the arguments of its Runner, and what they take."""
OF_MODULES = ("activation_checkpointing", "efficient_conv_bn_eval")
"""Those that name parts of the model."""
LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader")
OF_LOADERS = {"dataset": dict, "sampler": dict, "batch_sampler": dict, "collate_fn": dict, "worker_init_fn": dict}
"""Parts of a loader that mmengine builds of a dictionary."""
OF_BUILDING = ("type", "_scope_", "convert_to_iter_based", "by_epoch")
"""What mmengine takes out of a schedule's dictionary when it builds it."""
ENDLESS = 10**9
NOWHERE = (RuntimeError, ImportError, ValueError, TypeError)
"""How mmengine, and Python's imports, say that a dotted name leads nowhere."""
DEFAULT_CONSTRUCTOR = "DefaultOptimWrapperConstructor"
OF_PARAMETERS = (
    *("custom_keys", "bias_lr_mult", "bias_decay_mult", "norm_decay_mult", "flat_decay_mult", "dwconv_decay_mult"),
    *("dcn_offset_lr_mult", "bypass_duplicate"),
)
"""What mmengine's constructor of optimizers reads of `paramwise_cfg`; it passes over all else."""


def check_values(cfg: Config) -> None:
    """Refuse values that do not fit the Runner, its loaders or its parts.

    Raises:
        InputError: a value is of a wrong kind, or a key is one that nothing reads.
    """
    require_kinds("", Runner, {name: value for name, value in cfg.items() if value is not None})
    for name, hint in BEYOND_THE_RUNNERS.items():
        wrong = misfit(name, cfg[name], hint) if name in cfg else None
        if wrong is not None:
            raise InputError(str(wrong))
    for name in LOADERS:
        _check_loader(name, cfg.get(name) or {})
    for where, part, known in _parts(cfg):
        _check_name(f"{where}.type", part["type"])
        kind = found(known, part["type"], cfg)
        if kind is not None:
            require_kinds(where, kind, part)
        if isinstance(kind, type) and issubclass(kind, WarmupLR):
            _check_schedule(where, kind, part)
    _check_optimizer(cfg)


def check_modules(cfg: Config, model: nn.Module) -> None:
    """Refuse names of parts that the model does not have.

    Raises:
        InputError: a key names such a part.
    """
    known = {name for name, _ in model.named_modules() if name}
    for key in OF_MODULES:
        names = cfg.get(key) or ()
        for name in [names] if isinstance(names, str) else names:
            if name not in known:
                raise InputError(f"{key}: the model has no {name!r}{did_you_mean(name, known)}")


def found(known: Registry, kind: Any, cfg: Config) -> Any:
    """Return what a type of a configuration stands for; None of what our registries and mmengine's do not know.

    Args:
        known: our registry of such parts.
        kind: the type, a name or the class itself.
        cfg: the configuration, whose default scope goes before mmengine's.
    """
    if not isinstance(kind, str):
        return kind if callable(kind) else None
    known.import_from_location()  # outside the block: a part of ours that does not import is no unknown name
    try:
        return (known if cfg.get("default_scope") == registry.SCOPE else known.parent).get(kind)
    except NOWHERE:
        return None


def _check_name(where: str, kind: Any) -> None:
    """Refuse a name with nothing before or behind a point, over which mmengine's search falls."""
    if isinstance(kind, str) and not all(kind.split(".")):
        raise InputError(f"{where}={kind!r} should be a name, as agreid_plugin.ViSA")


def _check_loader(name: str, loader: Any) -> None:
    if not isinstance(loader, Mapping):  # one that was made already
        return
    for key, least in (("batch_size", 1), ("num_workers", 0)):
        value = loader.get(key, least)
        if not isinstance(value, int) or value < least:
            raise InputError(f"{name}.{key}={value!r} should be a whole number, {least} or more")
    for key, kind in OF_LOADERS.items():
        value = loader.get(key)
        if isinstance(value, bool | int | float | str | list) and not isinstance(value, kind):
            raise InputError(f"{name}.{key}={value!r} should be a dictionary with a type")


def _parts(cfg: Config) -> Iterator[tuple[str, Mapping[str, Any], Registry]]:
    """Yield the place, the entries and the registry of parts that mmengine builds long after it reads them."""
    hooks = cfg.get("default_hooks") or {}
    placed = [(f"default_hooks.{name}", hook, registry.HOOKS) for name, hook in hooks.items()]
    listed = {"custom_hooks": registry.HOOKS, "param_scheduler": registry.PARAM_SCHEDULERS}
    listed |= {"val_evaluator": registry.METRICS, "test_evaluator": registry.METRICS}
    for name, known in listed.items():
        given = cfg.get(name) or []
        several = given if isinstance(given, list | tuple) else [given]
        placed += [(f"{name}.{place}" if several is given else name, part, known) for place, part in enumerate(several)]
    yield from (entry for entry in placed if isinstance(entry[1], Mapping) and "type" in entry[1])


def _check_schedule(where: str, kind: type[WarmupLR], part: Mapping[str, Any]) -> None:
    """Build a schedule of ours for a run that no warm-up is too long for: its length nobody knows yet."""
    given = {name: value for name, value in part.items() if name not in OF_BUILDING}
    length = {"epoch_length": 1, "end": ENDLESS} if part.get("convert_to_iter_based") else {}
    with said_of(where):
        try:
            kind(SGD([torch.zeros(1, requires_grad=True)], lr=1.0), **{**given, **length})
        except TypeError as error:  # an argument that it does not take, or lacks
            raise InputError(first_line(error)) from None


def _check_optimizer(cfg: Config) -> None:
    wrapper = cfg.get("optim_wrapper") or {}
    optimizer = wrapper.get("optimizer") if isinstance(wrapper, Mapping) else None
    if optimizer is None:
        return
    if not isinstance(optimizer, Mapping):
        raise InputError(f"optim_wrapper.optimizer={optimizer!r} should be a dictionary with a type")
    _check_name("optim_wrapper.optimizer.type", optimizer.get("type"))
    kind = found(registry.OPTIMIZERS, optimizer.get("type"), cfg)
    if kind is None and isinstance(optimizer.get("type"), str):
        raise unknown("optim_wrapper.optimizer: type", optimizer["type"], registry.OPTIMIZERS.parent.module_dict)
    if kind is not None:
        require_kinds("optim_wrapper.optimizer", kind, optimizer)
    _check_paramwise(wrapper)


def _check_paramwise(wrapper: Mapping[str, Any]) -> None:
    settings = wrapper.get("paramwise_cfg") or {}
    if not isinstance(settings, Mapping):
        raise InputError(f"optim_wrapper.paramwise_cfg={settings!r} should be a dictionary")
    if wrapper.get("constructor", DEFAULT_CONSTRUCTOR) != DEFAULT_CONSTRUCTOR:
        return
    for name in settings:
        if name not in OF_PARAMETERS:
            raise unknown("optim_wrapper.paramwise_cfg", name, OF_PARAMETERS)
