"""What is raised while a run is built of its configuration, said in one clear line."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import Registry
from mmengine.runner import Runner

from agreid_plugin.data.workers import told_crash
from agreid_plugin.errors import InputError, did_you_mean, first_line, unknown
from agreid_plugin.host import INSTALL
from agreid_plugin.hosts.mmengine.config.type_checks import require_kinds

MISFITS = ("got an unexpected keyword argument", "missing 1 required", "required positional arguments")
"""Parts of what Python says of arguments that a function does not take, or lacks."""
OF_VALUES = (TypeError, ValueError, KeyError, AttributeError, AssertionError)
"""What other toolboxes raise of values that they cannot build anything of."""
AT_WORK = ("train", "val", "test", "call_hook", "load_or_resume", "resume", "load_checkpoint", "save_checkpoint")
"""Methods of a Runner that do more than build."""

BEGINNINGS = ("before_run", "before_train")
"""Methods of a hook in which it looks at the run that it is to serve."""
BUILDERS = ("build_from_cfg", "build_scheduler_from_cfg", "build_runner_from_cfg")
"""mmengine's functions that build a part."""
TYPES = ("obj_type", "scheduler_type")
"""What they call its type."""


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
    frames = _frames(error)
    while frames[-1].f_code.co_name == "call_hook" and isinstance(error.__context__, TypeError):
        error = error.__context__  # of which the Runner has made another, with the hook's address in it
        frames = _frames(error)
    innermost = frames[-1]
    if innermost.f_code.co_name in BUILDERS and (told := _of_building(error, innermost)):
        return told
    if isinstance(error, TypeError) and any(part in str(error) for part in MISFITS):
        return InputError(f"a part of the configuration does not fit its class: {first_line(error)}")
    if innermost.f_code.co_name == "__init__" and _runs(innermost) and isinstance(error, ValueError):
        return InputError(f"the configuration does not fit together: {first_line(error)}")
    return _of_hook(error, innermost) or _of_values(error, frames)


def _frames(error: BaseException) -> list[FrameType]:
    """Return where an error came from, the innermost last."""
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _of_hook(error: Exception, frame: FrameType) -> InputError | None:
    """Say which of mmengine's own hooks cannot work in this run, which it finds out when that begins."""
    hook = frame.f_locals.get("self")
    is_theirs = isinstance(hook, Hook) and type(hook).__module__.partition(".")[0] == "mmengine"
    if not is_theirs or frame.f_code.co_name not in BEGINNINGS or not isinstance(error, AssertionError | ValueError):
        return None
    return InputError(f"the hook {type(hook).__name__} does not fit this run: {first_line(error)}")


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
    told = _misfit(kind, building[-1].f_locals.get("args")) or first_line(error)
    if told == AssertionError.__name__:
        told = traceback.extract_tb(error.__traceback__)[-1].line
    return InputError(f"a part of the configuration, {part}, cannot be built: {told}")


def _misfit(kind: Any, arguments: Any) -> str:
    """Say which argument of a class is of another kind than its hint; nothing if none is, or nobody knows."""
    if kind is None or not isinstance(arguments, Mapping):
        return ""
    try:
        require_kinds("", kind, arguments)
    except InputError as error:
        return str(error)
    return ""


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
