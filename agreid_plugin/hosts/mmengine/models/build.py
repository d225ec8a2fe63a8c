"""Parts of models from plain values and nested `type` dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from mmengine.registry import DefaultScope, Registry
from torch import nn

from agreid_plugin.errors import InputError, error_context, unknown
from agreid_plugin.host import INSTALL, installed
from agreid_plugin.hosts.mmengine.config.arguments import require_arguments
from agreid_plugin.hosts.mmengine.models.losses import FEATURES, INPUTS, LOGITS, PART_LOSSES
from agreid_plugin.hosts.mmengine.registry import MODELS, SCOPE
from agreid_plugin.losses import FeatureLoss, LogitLoss
from agreid_plugin.nn.bnneck import BNNeck

Config = Mapping[str, Any]
MakeHead = Callable[[int, int], nn.Module]
"""Makes a head for features of a width and a number of classes."""
ON = {LOGITS: LogitLoss, FEATURES: FeatureLoss}


def build(where: str, config: Config | nn.Module, **given: Any) -> nn.Module:
    """Build the module of a `type` dictionary; one of another toolbox is built in that toolbox's scope.

    Args:
        where: what messages call its place in the configuration.
        config: the dictionary, or a module that is there already.
        given: further arguments.
    """
    if isinstance(config, nn.Module):
        return config
    if not isinstance(config, Mapping) or "type" not in config:
        raise InputError(f"{where}={config!r} should be a dictionary with a type, as dict(type='{SCOPE}.BNNeck')")
    arguments = {name: value for name, value in config.items() if name not in ("type", "_scope_")} | given
    with error_context(where):
        kind, scope = find(config["type"], config.get("_scope_"))
        require_arguments(str(config["type"]), kind, arguments)
        with DefaultScope.overwrite_default_scope(scope) if scope else nullcontext():
            return kind(**arguments)


def find(name: str | Callable[..., nn.Module], scope: str | None = None) -> tuple[Callable[..., nn.Module], str | None]:
    """Return what a type stands for, and the scope of another toolbox if it is from one.

    A lazy configuration has the class itself in the place of its name.
    """
    if not isinstance(name, str):
        return name, scope
    own, _ = Registry.split_scope_key(name)
    try:
        kind = MODELS.get(name if own or not scope else f"{scope}.{name}")
    except RuntimeError:  # mmengine's way of saying that a dotted name leads nowhere
        kind = None
    if kind is None and own in INSTALL and not installed(own):
        raise InputError(f"type {name!r} unknown: {INSTALL[own]}")
    if kind is None and own not in (None, SCOPE):
        raise InputError(f"type {name!r} unknown: is {own} installed, and has it a model of this name?")
    if kind is None:
        raise unknown("type", name, [f"{SCOPE}.{each}" for each in MODELS.module_dict])
    return kind, scope or (own if own != SCOPE else None)


def get_head_maker(config: Config | None) -> MakeHead:
    """Return what makes heads as a configuration says, `BNNeck`s without one."""
    if config is None:
        return BNNeck
    return lambda width, classes: build("head", config, width=width, classes=classes)


def build_objectives(config: Mapping[str, Config] | None) -> nn.ModuleDict | None:
    """Build losses of identities by the name that logs give them; None for those that a method has by itself.

    A loss of another toolbox has to say `on='logits'` or `on='features'`.
    """
    if config is None:
        return None
    return nn.ModuleDict({name: _objective(f"objectives.{name}", each) for name, each in config.items()})


def _objective(where: str, config: Config) -> nn.Module:
    loss = build(where, {name: value for name, value in config.items() if name != "on"})
    if isinstance(loss, PART_LOSSES):
        raise InputError(
            f"{where}: {type(loss).__name__} is no loss of identities; methods that make what it needs have it built in"
        )
    on = config.get("on", INPUTS.get(type(loss)))
    if on not in ON:
        raise InputError(f"{where}: on={on!r} should say what {config['type']} is computed on: {' or '.join(ON)}")
    return ON[on](loss)
