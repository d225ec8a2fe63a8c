"""What every host fix replaces, and how its signature differs from the host's own: printed as JSON, in a fresh process.

A snapshot of all functions and classes of the hosts before and after each fix shows what it has replaced.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from types import ModuleType
from typing import Any

from agreid_plugin import _imports
from agreid_plugin.hosts import host_fixes

HOSTS = ("fastreid", "mmengine", "mmpretrain", "torchvision")
found: list[dict[str, str]] = []


def snapshot() -> dict[str, Any]:
    """Return name -> whatever is callable in the hosts' modules and in the classes that they define."""
    seen = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in HOSTS or not isinstance(module, ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if callable(value) or isinstance(value, ModuleType):
                seen[f"{name}.{key}"] = value
            if isinstance(value, type) and value.__module__ == name:
                for member, function in list(vars(value).items()):
                    function = function.__func__ if isinstance(function, staticmethod | classmethod) else function
                    if inspect.isfunction(function):
                        seen[f"{name}.{key}.{member}"] = function
    return seen


def parameters(function: Any) -> list[inspect.Parameter]:
    """Return the parameters of a function, or of a class's constructor, as a caller sees them."""
    return list(inspect.signature(function).parameters.values())


def difference(native: Any, ours: Any) -> str:
    """Say what a caller of the native function could not do with ours; nothing if all works."""
    theirs, mine = parameters(native), parameters(ours)
    for place, parameter in enumerate(theirs):
        other = mine[place] if place < len(mine) else None
        if other is None or not is_same(parameter, other):
            return f"{other or 'nothing'} in the place of {parameter}"
    more = [each for each in mine[len(theirs) :] if each.default is each.empty and "VAR" not in each.kind.name]
    return f"needs {more[0]}" if more else ""


def is_same(parameter: inspect.Parameter, other: inspect.Parameter) -> bool:
    """Return whether two parameters are given alike."""
    if "VAR" in parameter.kind.name:
        return other.kind == parameter.kind
    return (other.name, other.kind, other.default) == (parameter.name, parameter.kind, parameter.default)


def watched(apply: Any) -> Any:
    """Return `HostFixes.apply` with a look at what each fix changes."""

    def apply_and_compare(self: Any, module: str, *, before: bool = False) -> None:
        for fix in self.all:
            if (fix.module, fix.before) != (module, before) or not fix.needed():
                continue
            earlier = snapshot()
            fix.apply()
            fix.applied = True
            later = snapshot()
            found.append({"fix": fix.name, "name": "", "problem": ""})
            for name, native in earlier.items():
                if (name in later and later[name] is native) or isinstance(native, ModuleType):
                    continue
                owner, _, member = name.rpartition(".")
                ours = later.get(name) or getattr(later.get(owner), member, None)  # of a class that was replaced
                if ours is not None:
                    found.append({"fix": fix.name, "name": name, "problem": difference(native, ours)})
                elif not member.startswith("_"):
                    found.append({"fix": fix.name, "name": name, "problem": "is gone"})

    return apply_and_compare


if __name__ == "__main__":
    host_fixes.HostFixes.apply = watched(host_fixes.HostFixes.apply)
    _imports.arm()
    for each in ("fastreid.engine", "fastreid.evaluation", *(name for name in _imports.WATCHED)):
        importlib.import_module(each)
    sys.stdout.write(json.dumps(found))
