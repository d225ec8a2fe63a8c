"""Reading a configuration of mmengine's, and building from it, so that a mistake is one clear line."""

from __future__ import annotations

import inspect
import os
import traceback
from ast import literal_eval
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from mmengine.config import Config
from mmengine.registry import Registry
from mmengine.runner import Runner

from agreid_plugin.data.workers import told_crash
from agreid_plugin.errors import InputError, did_you_mean, first_line, unknown
from agreid_plugin.hosts import INSTALL
from agreid_plugin.hosts.mmengine.arguments import said_of
from agreid_plugin.hosts.mmengine.config_checks import check_values

BEYOND_THE_RUNNERS = (
    *("custom_imports", "runner_type", "model_wrapper_cfg", "sync_bn", "find_unused_parameters", "compile"),
    *("activation_checkpointing", "efficient_conv_bn_eval"),
)
"""Keys at the top of a configuration that mmengine reads besides the arguments of its Runner."""
KEYS = (*(name for name in inspect.signature(Runner).parameters if name != "cfg"), *BEYOND_THE_RUNNERS)
NEAR = 0.85
"""How alike a name at the top of a file and a key must be for a slip of the pen."""


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a configuration file with its bases, then the `KEY VALUE ...` overrides.

    Raises:
        InputError: a file that is missing or does not run, a misspelt key, an override that fits nowhere, or a value
            of the wrong kind.
    """
    path = Path(path)
    if not os.path.isfile(path):
        siblings = [each.name for each in path.parent.glob("*.py")] if os.path.isdir(path.parent) else []
        raise InputError(f"config file {path} does not exist{did_you_mean(path.name, siblings)}")
    try:
        cfg = Config.fromfile(str(path))
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"config file {path} cannot be read: {_reason(error)}") from None
    _check_keys(cfg, path)
    _override(cfg, list(overrides))
    with said_of(str(path)):
        check_values(cfg)
    return cfg


def _reason(error: Exception) -> str:
    if isinstance(error, ImportError) and error.__cause__ is not None:  # mmengine lists its whole search path
        return f"custom_imports: {first_line(error.__cause__)}"
    told = first_line(error)
    return told if isinstance(error, SyntaxError | FileNotFoundError) else f"{type(error).__name__}: {told}"


def _check_keys(cfg: Config, path: Path) -> None:
    """Refuse a name at the top that is a key's but for a letter, as mmengine takes it for a variable of the file.

    Also where the key itself is there: it is the base's, and the recipe has meant to change it.
    """
    for name in cfg:
        near = get_close_matches(name, KEYS, n=1, cutoff=NEAR)
        if name not in KEYS and near:
            raise InputError(f"{path}: key {name} unknown (did you mean {near[0]}?)")


def _override(cfg: Config, overrides: list[str]) -> None:
    if len(overrides) % 2:
        raise InputError(f"command line: keys and values come in pairs, {overrides[-1]!r} has no partner")
    for key, text in zip(overrides[::2], overrides[1::2], strict=True):
        first = key.partition(".")[0]
        if first not in cfg and first not in KEYS:
            raise InputError(f"command line: key {key} unknown{did_you_mean(first, {*cfg, *KEYS})}")
        if first == "custom_imports":
            raise InputError(f"command line: {key} comes too late, the file is read: write custom_imports there")
        try:
            cfg.merge_from_dict({key: literal(text)})
        except Exception as error:
            raise InputError(f"command line: {key} {text} does not fit: {first_line(error)}") from None


def literal(text: str) -> Any:
    """Return a value that is written as in Python, and any other text as it is."""
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def each_dict(value: Any, where: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path and the entries of every dict in a configuration, outermost first."""
    if isinstance(value, Mapping):
        yield where, value
    entries = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    )
    for name, entry in entries:
        yield from each_dict(entry, f"{where}.{name}" if where else str(name))


def type_name(value: Any) -> str:
    """Return the name in a `type`, which may be a class, without its scope."""
    kind = value.get("type", "") if isinstance(value, Mapping) else value
    return kind.rpartition(".")[2] if isinstance(kind, str) else getattr(kind, "__name__", "")


MISFITS = ("got an unexpected keyword argument", "missing 1 required", "required positional arguments")
"""Parts of what Python says of arguments that a function does not take, or lacks."""
OF_VALUES = (TypeError, ValueError, KeyError, AttributeError, AssertionError)
"""What other toolboxes raise of values that they cannot build anything of."""
AT_WORK = ("train", "val", "test", "call_hook", "load_or_resume", "resume", "load_checkpoint", "save_checkpoint")
"""Methods of a Runner that do more than build."""

BUILDERS = ("build_from_cfg", "build_scheduler_from_cfg", "build_runner_from_cfg")
"""mmengine's functions that build a part."""
TYPES = ("obj_type", "scheduler_type")
"""What they call its type."""

# Building ---------------------------------------------------------------------------------------------------------


@contextmanager
def said_plainly() -> Iterator[None]:
    """Turn what is raised about a configuration, or a data worker's death, into one line; other errors stay."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        told = _told(error)
        if told is None:
            raise
        raise told from error


def _told(error: Exception) -> InputError | None:
    crash = told_crash(error)
    if crash is not None:
        return crash
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    innermost = frames[-1]
    if innermost.f_code.co_name in BUILDERS and (told := _of_building(error, innermost)):
        return told
    if isinstance(error, TypeError) and any(part in str(error) for part in MISFITS):
        return InputError(f"a part of the configuration does not fit its class: {first_line(error)}")
    if innermost.f_code.co_name == "__init__" and _runs(innermost) and isinstance(error, ValueError):
        return InputError(f"the configuration does not fit together: {first_line(error)}")
    return _of_values(error, frames)


def _runs(frame: FrameType) -> bool:
    """Tell whether a frame is of a Runner's method."""
    return isinstance(frame.f_locals.get("self"), Runner)


def _of_values(error: Exception, frames: list[FrameType]) -> InputError | None:
    """Say which part could not be built of its values by another toolbox; what our own code raises is a fault of it."""
    building = [each for each in frames if each.f_code.co_name in BUILDERS or (_runs(each) and not _at_work(each))]
    if not building or _is_ours(frames[-1]) or not (isinstance(error, OF_VALUES) or _runs(frames[-1])):
        return None
    kind = building[-1].f_locals.get("obj_cls")
    part = getattr(kind, "__name__", building[-1].f_code.co_name.removeprefix("build_").strip("_"))
    told = first_line(error)
    if told == AssertionError.__name__:
        told = traceback.extract_tb(error.__traceback__)[-1].line
    return InputError(f"a part of the configuration, {part}, cannot be built: {told}")


def _at_work(frame: FrameType) -> bool:
    return frame.f_code.co_name in AT_WORK


def _is_ours(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]


def _of_building(error: Exception, frame: FrameType) -> InputError | None:
    """Say of a registry's part that it is unknown, or that its class takes other arguments."""
    names = frame.f_locals
    kind = next((names[name] for name in TYPES if name in names), None)
    if isinstance(error, KeyError) and kind is not None:
        return _unknown_type(str(kind), names["registry"])
    if isinstance(error, KeyError):
        return InputError(f"a part of the configuration has no type: {dict(names['cfg'])!r}")
    if isinstance(error, TypeError) and "obj_cls" in names:
        return InputError(_arguments(names["obj_cls"], names["args"]) or first_line(error))
    return None


def _unknown_type(name: str, registry: Registry) -> InputError:
    package = name.partition(".")[0]
    if "." in name and package in INSTALL and find_spec(package) is None:
        return InputError(f"type {name!r} unknown: {INSTALL[package]}")
    return unknown(f"type of {registry.name}", name, _names(registry.root))


def _names(registry: Registry) -> list[str]:
    """Return what a registry knows, what its children know with their scopes before it."""
    own = list(registry.module_dict)
    return own + [f"{scope}.{name}" for scope, child in registry.children.items() for name in child.module_dict]


def _arguments(kind: Any, given: Mapping[str, Any]) -> str:
    """Say which argument a class does not take, or lacks; nothing if it is neither."""
    name = getattr(kind, "__name__", str(kind))
    parameters = inspect.signature(kind).parameters
    for each in given:
        if each not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return f"{name} has no argument {each!r}{did_you_mean(each, parameters)}; it takes {', '.join(parameters)}"
    missing = [
        each.name
        for each in parameters.values()
        if each.default is each.empty
        and each.name not in given
        and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    return f"{name} needs {', '.join(missing)}" if missing else ""
