"""The host's own tools: `tools/train_net.py` and scripts like it train and evaluate configurations of this package."""

from __future__ import annotations

import importlib
import logging
import math
import sys
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from agreid_plugin.engine.report import forward_logs
from agreid_plugin.errors import InputError
from agreid_plugin.host import input_error_in
from agreid_plugin.hosts.fastreid.compat.names import host, replace
from agreid_plugin.hosts.host_fixes import HostFixes

HOST_FIXES = HostFixes()
fix = partial(HOST_FIXES.add, "fastreid")
BUILDERS = (
    *("build_model", "build_optimizer", "build_lr_scheduler"),
    *("build_train_loader", "build_test_loader", "build_evaluator", "test"),
)
"""Class methods of `DefaultTrainer` that scripts call on the class."""

_logger = logging.getLogger("fastreid.train")


def _ours() -> ModuleType:
    """Import what serves a script, not before it is asked for."""
    return importlib.import_module("agreid_plugin.hosts.fastreid.engine.default_trainer")


@fix(
    "the host's trainer and loaders pass over what a configuration asks of this package, or fail at it",
    lambda: "__new__" not in vars(host("engine.defaults").DefaultTrainer),
)
def default_trainer_serves_our_keys() -> None:
    """Make a `DefaultTrainer` of ours where a configuration asks for what only ours does; others stay the host's."""
    trainer = host("engine.defaults").DefaultTrainer
    build = trainer.__init__

    def __new__(cls, *args: Any, **kwargs: Any):
        return object.__new__(_serving(cls, *args, **kwargs) or cls)

    @wraps(build)
    def __init__(self, cfg: Any) -> None:
        if _serving(type(self), cfg):  # the script's class was made without it
            raise InputError(
                f"{type(self).__name__}: its constructor has to take the configuration, as {_ours().find_reason(cfg)} "
                "decides about its class"
            )
        build(self, cfg)

    trainer.__new__, trainer.__init__ = __new__, __init__
    for name in BUILDERS:
        setattr(trainer, name, classmethod(_served(name, vars(trainer)[name].__func__)))
    for name in ("build_reid_train_loader", "build_reid_test_loader"):
        replace(name, _built(name, getattr(host("data.build"), name)), "data.build", "data", "engine.defaults")


def _serving(cls: type, *args: Any, **kwargs: Any) -> type | None:
    """Return the class of ours that takes the place of a trainer's, None where it stays."""
    ours = _ours()
    cfg = next((each for each in (*args, *kwargs.values()) if ours.find_reason(each)), None)
    return None if cfg is None or issubclass(cls, ours.Trainer) else ours.find_trainer(cls)


def _served(name: str, native: Any) -> Any:
    @wraps(native)
    def method(cls, cfg: Any, *args: Any, **kwargs: Any) -> Any:
        kind = _serving(cls, cfg)
        if kind is None:
            return native(cls, cfg, *args, **kwargs)
        return getattr(_ours().ScriptTrainer, name).__func__(kind, cfg, *args, **kwargs)

    return method


def _built(name: str, native: Any) -> Any:
    @wraps(native)
    def build(*args: Any, **kwargs: Any) -> Any:
        asked = args[:1] or (kwargs.get("cfg"),)
        if not _ours().find_reason(asked[0]):
            return native(*args, **kwargs)
        return getattr(_ours(), name.replace("reid_", ""))(*args, **kwargs)

    return build


@fix(
    "the host's set-up writes down configurations as they are, with attributes, datasets and imports missing",
    lambda: not hasattr(host("engine.defaults").default_setup, "completes"),
)
def set_up_completes_configurations() -> None:
    """Complete a configuration that asks for ours, and have any without a GPU on the CPU, before it is written down."""
    native = host("engine.defaults").default_setup

    @wraps(native)
    def default_setup(cfg: Any, args: Any) -> None:
        ours = _ours()
        if isinstance(args, ours.Request):  # the command has completed it
            native(cfg, args)
            return
        ours.replace_values(cfg, _on_present_device(cfg))
        if ours.find_reason(cfg):
            ours.set_up(cfg, args)
        native(cfg, args)
        forward_logs(logging.getLogger("fastreid"))

    default_setup.completes = True
    replace("default_setup", default_setup, "engine.defaults", "engine")


@fix(
    "the host ends with an error of CUDA where MODEL.DEVICE is a GPU and there is none",
    lambda: not hasattr(host("modeling.meta_arch.build").build_model, "__wrapped__"),
)
def cpu_without_gpu() -> None:
    """Build models on the CPU where there is no GPU, and say so."""
    native = host("modeling.meta_arch.build").build_model

    @wraps(native)
    def build_model(cfg: Any) -> torch.nn.Module:
        return native(_on_present_device(cfg))

    places = ("modeling.meta_arch.build", "modeling.meta_arch", "modeling", "modeling.meta_arch.distiller")
    replace("build_model", build_model, *places, "engine.defaults")


def _on_present_device(cfg: Any) -> Any:
    """Return a configuration on the CPU if it asks for a GPU and there is none."""
    if not cfg.MODEL.DEVICE.startswith("cuda") or torch.cuda.is_available():
        return cfg
    _logger.warning("MODEL.DEVICE is %s, but there is no GPU: the CPU is used", cfg.MODEL.DEVICE)
    return importlib.import_module("agreid_plugin.hosts.fastreid.config.loading").with_value(cfg, "MODEL.DEVICE", "cpu")


@fix(
    "EVAL_PERIOD 0 and CHECKPOINT_PERIOD 0 divide by zero, the former at the end of a training",
    lambda: not host("engine.hooks").EvalHook(0, None)._period,
)
def periods_of_zero() -> None:
    """Take 0 for never: the last evaluation and the final weights come as ever."""
    for kind, period in (
        (host("engine.hooks").EvalHook, "_period"),
        (host("utils.checkpoint").PeriodicCheckpointer, "period"),
    ):
        kind.__init__ = _without_end(kind.__init__, period)


def _without_end(build: Any, period: str) -> Any:
    @wraps(build)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        setattr(self, period, getattr(self, period) or math.inf)  # of which no epoch is a multiple

    return __init__


@fix(
    "the host reads a configuration without the modules that CUSTOM_IMPORTS names",
    lambda: not hasattr(host("config").CfgNode.merge_from_file, "__wrapped__"),
)
def imports_of_configurations() -> None:
    """Import them first, as they may declare keys, and keep files with their full paths."""
    node = host("config").CfgNode
    native = node.merge_from_file

    @wraps(native)
    def merge_from_file(self, cfg_filename: str, allow_unsafe: bool = False) -> None:
        loading = importlib.import_module("agreid_plugin.hosts.fastreid.config.loading")
        imports = loading.import_first(Path(cfg_filename)) if loading.IMPORTS in self else []
        if imports:
            _add_keys(self, host("config").get_cfg())
        native(self, cfg_filename, allow_unsafe)
        if imports:
            self[loading.IMPORTS] = imports

    node.merge_from_file = merge_from_file


def _add_keys(cfg: Any, defaults: Any) -> None:
    """Give a configuration the keys that have been declared since it was made."""
    for name, value in defaults.items():
        if isinstance(value, type(defaults)) and name in cfg:
            _add_keys(cfg[name], value)
        else:
            dict.setdefault(cfg, name, value)


@fix(
    "a script ends with a traceback where a configuration or its data is refused in one line",
    lambda: not hasattr(host("engine.launch").launch, "__wrapped__"),
)
def refusals_in_one_line() -> None:
    """Print an error of this package that a launched script does not catch as one line, and exit with 2."""
    native = host("engine.launch").launch

    @wraps(native)
    def launch(*args: Any, **kwargs: Any) -> Any:
        show = sys.excepthook

        def show_line(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            message = input_error_in(error)
            if message is None:
                show(kind, error, trace)
                return
            sys.stderr.write(f"error: {message}\n")
            sys.exit(2)

        sys.excepthook = show_line
        return native(*args, **kwargs)

    replace("launch", launch, "engine.launch", "engine")
