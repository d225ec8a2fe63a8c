"""Checks of a configuration before anything is built: types, arguments, kinds of values, keys that mmengine ignores."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from logging import WARNING
from pathlib import Path
from typing import Any, Literal

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import Registry
from mmengine.runner import Runner
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader

import agreid_plugin
from agreid_plugin.data.workers import describe_crash
from agreid_plugin.errors import InputError, did_you_mean, error_context, first_line, unknown
from agreid_plugin.host import INSTALL
from agreid_plugin.hosts.mmengine import registry
from agreid_plugin.hosts.mmengine.config.arguments import find_mismatch, require_kinds, require_names
from agreid_plugin.hosts.mmengine.engine.optimizers import WarmupLR

Names = list[str] | str | None
EXTRA_RUNNER_KEYS = {
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
ENVIRONMENT_KEYS = {"mp_cfg": dict, "dist_cfg": dict, "resource_limit": int, "cudnn_benchmark": bool}
"""Entries of `env_cfg`."""
MULTIPLIERS = ("lr_mult", "decay_mult")
"""What mmengine reads of an entry of `custom_keys`; all of it goes into the optimizer's group, too."""
DIST_KEYS = ("backend", "timeout", "init_backend", "port")
"""What mmengine's launchers and ours read of `env_cfg.dist_cfg`."""
SCALING_KEYS = ("enable", "base_batch_size")
"""Entries of `auto_scale_lr`."""
DEFAULT_HOOKS = ("runtime_info", "timer", "sampler_seed", "logger", "param_scheduler", "checkpoint")
"""Hooks that mmengine adds by itself, and leaves out where `default_hooks` has None for them."""
CLIPPERS = {"norm": nn.utils.clip_grad_norm_, "value": nn.utils.clip_grad_value_}
MODULE_KEYS = ("activation_checkpointing", "efficient_conv_bn_eval")
"""Keys that name parts of the model."""
LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader")
LOADER_PARTS = ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn")
"""Parts of a loader that mmengine builds from a dictionary."""
ENDLESS = 10**9
LOOKUP_ERRORS = (RuntimeError, ImportError, ValueError, TypeError)
"""Errors of mmengine and of imports for a dotted name that leads nowhere."""
BUILD_ERRORS = (TypeError, ValueError, KeyError, AttributeError, AssertionError)
"""What the hosts raise for values that they cannot build from."""
HINTED = ("agreid_plugin", "mmengine", "torch")
"""Packages whose type hints hold; mmpretrain and mmcv write others than they take."""
WIDER_THAN_HINTED = ("loss_scale",)
"""Arguments that take more than their hints in mmengine."""
PACKAGE = Path(agreid_plugin.__file__).parent
DEFAULT_CONSTRUCTOR = "DefaultOptimWrapperConstructor"
PARAMWISE_KEYS = (
    *("custom_keys", "bias_lr_mult", "bias_decay_mult", "norm_decay_mult", "flat_decay_mult", "dwconv_decay_mult"),
    *("dcn_offset_lr_mult", "bypass_duplicate"),
)
"""What mmengine's constructor of optimizers reads of `paramwise_cfg`; it passes over all else."""


@dataclass(frozen=True)
class Slot:
    """A key whose value mmengine builds by its `type`.

    Attributes:
        registry: our registry of such parts, a child of the one that mmengine has.
        given: arguments that the builder adds; None if that depends on what the part stands in.
        removed: entries that are read before the part is built.
        default: the type of a dictionary without one.
        is_group: whether a dictionary without a type holds several such parts by name.
    """

    registry: Registry
    given: Collection[str] | None = ()
    removed: Collection[str] = ()
    default: str | None = None
    is_group: bool = False


HOOK = Slot(registry.HOOKS, removed=("priority",), is_group=True)
LOOP = ("runner", "dataloader", "evaluator")
METRIC = Slot(registry.METRICS)
MODEL_PART = Slot(registry.MODELS, given=None)
FUNCTION = Slot(registry.FUNCTIONS, given=None)
TRANSFORM = Slot(registry.TRANSFORMS)
DATASET = Slot(registry.DATASETS)
SLOTS = {
    "model": Slot(registry.MODELS),
    **dict.fromkeys(("backbone", "neck", "head", "data_preprocessor"), MODEL_PART),
    **dict.fromkeys(("dataset", "datasets"), DATASET),
    **dict.fromkeys(("pipeline", "transforms"), TRANSFORM),
    "sampler": Slot(registry.DATA_SAMPLERS, ("dataset", "seed")),
    "batch_sampler": Slot(registry.DATA_SAMPLERS, ("sampler", "batch_size")),
    **dict.fromkeys(("collate_fn", "worker_init_fn"), FUNCTION),
    **dict.fromkeys(("default_hooks", "custom_hooks"), HOOK),
    **dict.fromkeys(("val_evaluator", "test_evaluator", "metrics"), METRIC),
    "optim_wrapper": Slot(registry.OPTIM_WRAPPERS, ("optimizer",), ("constructor", "paramwise_cfg")),
    "optimizer": Slot(registry.OPTIMIZERS, ("params",)),
    "param_scheduler": Slot(
        registry.PARAM_SCHEDULERS,
        ("optimizer", "param_name", "end", "epoch_length"),
        ("convert_to_iter_based", "by_epoch"),
        is_group=True,
    ),
    "train_cfg": Slot(registry.LOOPS, LOOP, ("by_epoch",)),
    "val_cfg": Slot(registry.LOOPS, LOOP, default="ValLoop"),
    "test_cfg": Slot(registry.LOOPS, LOOP, default="TestLoop"),
    "visualizer": Slot(registry.VISUALIZERS, ("name",), default="Visualizer"),
    "vis_backends": Slot(registry.VISBACKENDS, ("save_dir",)),
    "log_processor": Slot(registry.LOG_PROCESSORS, default="LogProcessor"),
}
"""Key -> what is built there, wherever it stands in a configuration."""


@dataclass(frozen=True)
class Part:
    """A dictionary that mmengine builds something from.

    Attributes:
        where: its place in the configuration.
        kind: its type, a name or the class itself.
        config: the dictionary.
        slot: what the place takes.
        scopes: toolboxes that are searched for a name without one, in this order.
    """

    where: str
    kind: Any
    config: Mapping[str, Any]
    slot: Slot
    scopes: tuple[str, ...]

    @property
    def arguments(self) -> dict[str, Any]:
        """What is passed to the type."""
        removed = ("type", "_scope_", *self.slot.removed)
        return {name: value for name, value in self.config.items() if name not in removed}


def check_config(cfg: Config, keys: Collection[str]) -> None:
    """Refuse what cannot be built: unknown types and arguments, missing arguments, values of a wrong kind.

    Args:
        cfg: the configuration.
        keys: keys at its top that count.

    Raises:
        InputError: one line with the place, the value and what is possible there.
    """
    chosen = {name: value for name, value in cfg.items() if name in keys}
    if isinstance(hooks := chosen.get("default_hooks"), Mapping):
        _check_names("default_hooks without a hook,", [name for name in hooks if hooks[name] is None], DEFAULT_HOOKS)
        chosen["default_hooks"] = {name: hook for name, hook in hooks.items() if hook is not None}
    require_kinds("", Runner, {name: value for name, value in chosen.items() if value is not None})
    _check_kinds("", chosen, EXTRA_RUNNER_KEYS)
    environment = chosen.get("env_cfg") or {}
    _check_kinds("env_cfg.", environment, ENVIRONMENT_KEYS)
    _check_names("env_cfg", environment, ENVIRONMENT_KEYS)
    _check_names("env_cfg.dist_cfg", environment.get("dist_cfg") or {}, DIST_KEYS)
    _check_names("auto_scale_lr", chosen.get("auto_scale_lr") or {}, SCALING_KEYS)
    for name in LOADERS:
        _check_loader(name, chosen.get(name) or {})
    _check_optimizer(chosen.get("optim_wrapper") or {})
    scopes = default_scopes(cfg)
    for name in inspect.signature(Runner).parameters:
        for part in find_parts(chosen.get(name), name, SLOTS.get(name), scopes):
            _check_part(part)


def check_modules(cfg: Config, model: nn.Module) -> None:
    """Refuse names of parts that the model does not have, and warn of settings for parameters that it does not have.

    Raises:
        InputError: a key names such a part.
    """
    known = {name for name, _ in model.named_modules() if name}
    for key in MODULE_KEYS:
        names = cfg.get(key) or ()
        for name in [names] if isinstance(names, str) else names:
            if name not in known:
                raise InputError(f"{key}: the model has no {name!r}{did_you_mean(name, known)}")
    parameters = [name for name, _ in model.named_parameters()]
    for name in ((cfg.get("optim_wrapper") or {}).get("paramwise_cfg") or {}).get("custom_keys") or ():
        if not any(name in parameter for parameter in parameters):  # a list for many networks may have such ones
            print_log(f"paramwise_cfg.custom_keys: no parameter's name has {name!r}", "current", WARNING)


def find_parts(value: Any, where: str, slot: Slot | None, scopes: tuple[str, ...]) -> Iterator[Part]:
    """Yield the dictionaries that mmengine builds something from, outermost first.

    Args:
        value: a value of a configuration.
        where: its place.
        slot: what its key takes; None where nothing is known of it.
        scopes: see `Part`.
    """
    if isinstance(value, list | tuple):
        for place, entry in enumerate(value):
            yield from find_parts(entry, f"{where}.{place}", slot, scopes)
    if not isinstance(value, Mapping):
        return
    kind = value.get("type", slot.default if slot else None)
    if where == "train_cfg" and "type" not in value:
        kind = "EpochBasedTrainLoop" if value.get("by_epoch") else "IterBasedTrainLoop"
    if isinstance(kind, str) and "." in kind and slot is not None and slot.registry is registry.MODELS:
        scopes = (kind.partition(".")[0], *scopes)  # our models build those of other toolboxes in their scope
    if value.get("_scope_"):
        scopes = (value["_scope_"], *scopes)
    if slot and (kind is not None or "type" in value):
        yield Part(where, kind, value, slot, scopes)
    for name, entry in value.items():
        inner = slot if slot and slot.is_group and kind is None else SLOTS.get(name)
        yield from find_parts(entry, f"{where}.{name}", inner, scopes)


def find_type(known: Registry, name: Any, scopes: Collection[str]) -> Any:
    """Return what a type stands for, None if no registry has it.

    Args:
        known: our registry of such parts.
        name: the type, a name or the class itself.
        scopes: toolboxes that are searched first for a name without one.
    """
    if not isinstance(name, str):
        return name if callable(name) else None
    known.import_from_location()  # outside the block: a part of ours that does not import is no unknown name
    for each in (*(f"{scope}.{name}" for scope in scopes), name):
        try:
            kind = known.parent.get(each)
        except LOOKUP_ERRORS:
            continue
        if kind is not None:
            return kind
    return None


def default_scopes(cfg: Config) -> tuple[str, ...]:
    """Return where a name without a scope is searched first."""
    return tuple(filter(None, [cfg.get("default_scope")]))


class BuildErrors(Hook):
    """One line for what is raised while a run is set up; later errors keep their traceback.

    As a context it holds the run, and as a hook of it learns when the first epoch begins. Faults of this package keep
    their traceback, as bad input is an InputError there; the death of a data worker is always one line.
    """

    priority = "LOWEST"

    def __init__(self) -> None:
        self.is_over = False

    def before_train_epoch(self, runner: Runner) -> None:  # noqa: ARG002
        """Note that all is built."""
        self.is_over = True

    def __enter__(self) -> BuildErrors:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception) or isinstance(error, InputError):
            return
        crash = describe_crash(error)
        if crash is not None:
            raise crash from error
        if isinstance(error, TypeError) and isinstance(error.__context__, TypeError):
            error = error.__context__  # which the Runner has raised again with the hook's address in it
        source = traceback.extract_tb(error.__traceback__)[-1]
        if self.is_over or not isinstance(error, BUILD_ERRORS) or Path(source.filename).is_relative_to(PACKAGE):
            return
        reason = (str(error) and first_line(error)) or source.line
        raise InputError(
            f"the configuration cannot be built: {type(error).__name__} in {Path(source.filename).name}: {reason}"
        ) from error


def _check_kinds(prefix: str, values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    for name, hint in hints.items():
        wrong = find_mismatch(prefix + name, values[name], hint) if name in values else None
        if wrong is not None:
            raise InputError(str(wrong))


def _check_names(where: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown(where, name, known)


def _check_loader(name: str, loader: Any) -> None:
    if not isinstance(loader, Mapping):  # one that was made already
        return
    _check_names(name, loader, {*inspect.signature(DataLoader).parameters, "num_batch_per_epoch"})
    for key, least in (("batch_size", 1), ("num_workers", 0)):
        value = loader.get(key, least)
        if not isinstance(value, int) or value < least:
            raise InputError(f"{name}.{key}={value!r} should be a whole number, {least} or more")
    for key in LOADER_PARTS:
        if isinstance(loader.get(key), bool | int | float | str | list):
            raise InputError(f"{name}.{key}={loader[key]!r} should be a dictionary with a type")


def _check_optimizer(wrapper: Any) -> None:
    if not isinstance(wrapper, Mapping):
        return
    optimizer = wrapper.get("optimizer")
    if optimizer is not None and not (isinstance(optimizer, Mapping) and "type" in optimizer):
        raise InputError(f"optim_wrapper.optimizer={optimizer!r} should be a dictionary with a type")
    settings = wrapper.get("paramwise_cfg") or {}
    if not isinstance(settings, Mapping):
        raise InputError(f"optim_wrapper.paramwise_cfg={settings!r} should be a dictionary")
    if wrapper.get("constructor", DEFAULT_CONSTRUCTOR) == DEFAULT_CONSTRUCTOR:
        _check_names("optim_wrapper.paramwise_cfg", settings, PARAMWISE_KEYS)
        for module, options in (settings.get("custom_keys") or {}).items():
            if not isinstance(options, Mapping):
                raise InputError(f"optim_wrapper.paramwise_cfg.custom_keys.{module}={options!r} should be a dictionary")
            for name in options:
                if name not in MULTIPLIERS and did_you_mean(name, MULTIPLIERS):  # others are the optimizer's own
                    raise unknown(f"optim_wrapper.paramwise_cfg.custom_keys.{module}", name, MULTIPLIERS)
    _check_clipping(wrapper.get("clip_grad") or {})


def _check_clipping(options: Any) -> None:
    kind = options.get("type", "norm") if isinstance(options, Mapping) else None
    if kind in CLIPPERS:
        known = [*list(inspect.signature(CLIPPERS[kind]).parameters)[1:], "type"]
        _check_names("optim_wrapper.clip_grad", options, known)


def _check_part(part: Part) -> None:
    if not callable(part.kind) and not (isinstance(part.kind, str) and all(part.kind.split("."))):
        raise InputError(f"{part.where}.type={part.kind!r} should be a name, as agreid_plugin.ViSA")
    kind = find_type(part.slot.registry, part.kind, part.scopes)
    if kind is None:
        raise _unknown_type(part)
    constructors = _constructors(kind)
    if not constructors:
        return
    *outer, function = constructors
    names = {name for each in outer for name in inspect.signature(each).parameters}
    given = inspect.signature(function).parameters if part.slot.given is None else part.slot.given
    with error_context(part.where):
        _require_names(kind, function, part.arguments, names, given)
        for each in constructors:
            if each.__module__.partition(".")[0] in HINTED:
                require_kinds("", each, _plain_arguments(part))
        if isinstance(kind, type) and issubclass(kind, WarmupLR):
            _check_schedule(kind, part)


def _unknown_type(part: Part) -> InputError:
    package = part.kind.partition(".")[0]
    if "." in part.kind and package in INSTALL and find_spec(package) is None:
        return InputError(f"{part.where}.type {part.kind!r} unknown: {INSTALL[package]}")
    root = part.slot.registry.parent
    names = [f"{scope}.{name}" for scope, child in root.children.items() for name in child.module_dict]
    return unknown(f"{part.where}.type", part.kind, [*root.module_dict, *names])


def _constructors(kind: Any) -> list[Callable[..., Any]]:
    """Return what takes the arguments of a type: a class, and its bases as far as each passes all on with `*args`."""
    found = []
    classes = [each for each in kind.__mro__ if "__init__" in vars(each)] if isinstance(kind, type) else [kind]
    for each in classes:
        try:
            parameters = inspect.signature(each).parameters.values()
        except (TypeError, ValueError):  # written in C
            return []
        found.append(each)
        if not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
            return found
    return []


def _require_names(
    kind: Any, function: Callable[..., Any], arguments: Mapping[str, Any], passed: set[str], given: Collection[str]
) -> None:
    if any(each.kind is each.VAR_KEYWORD for each in inspect.signature(function).parameters.values()):
        passed = passed | arguments.keys()  # where these go, the signature does not say
    require_names(getattr(kind, "__name__", str(kind)), function, arguments, passed, given=given)


def _plain_arguments(part: Part) -> dict[str, Any]:
    """Return the arguments that are passed on as they are written."""
    return {
        name: value for name, value in part.arguments.items() if name not in WIDER_THAN_HINTED and not _is_part(value)
    }


def _is_part(value: Any) -> bool:
    """Return whether a value is built before it is passed on, or a list of such."""
    first = value[0] if isinstance(value, list | tuple) and value else value
    return isinstance(first, Mapping) and "type" in first


def _check_schedule(kind: type[WarmupLR], part: Part) -> None:
    """Build a schedule of ours for a run that no warm-up is too long for: the length of this one is not known yet."""
    length = {"epoch_length": 1, "end": ENDLESS} if part.config.get("convert_to_iter_based") else {}
    kind(SGD([torch.zeros(1, requires_grad=True)], lr=1.0), **{**part.arguments, **length})
