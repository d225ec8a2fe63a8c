"""Imports of one's own modules by a configuration: losses, backbones and keys in `CUSTOM_IMPORTS`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agreid_plugin.errors import InputError, first_line

IMPORTS = "CUSTOM_IMPORTS"


def resolve_imports(value: Any, folder: Path, where: str) -> list[str]:
    """Return what is to be imported, files with their whole paths, so that it holds wherever a run writes it down.

    Args:
        value: module names, and files that end with `.py`.
        folder: where relative files lie.
        where: what messages call the place that says it.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) and each for each in value):
        raise InputError(f"{where}: {IMPORTS} takes a list of modules or .py files, as [my_losses.py], got {value!r}")
    return [str((folder / Path(each).expanduser()).resolve()) if each.endswith(".py") else each for each in value]


def import_all(names: Iterable[str]) -> None:
    """Import modules and files, each once in a process.

    Raises:
        InputError: one is not there, does not import, or is a file whose name another module has.
    """
    for name in names:
        if name.endswith(".py"):
            _import_file(Path(name))
        else:
            _import(name, name)


def _import_file(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{IMPORTS}: {path} does not exist")
    folder = str(path.parent)
    if folder not in sys.path:  # data workers find the module there, too; at the end, where it hides no other
        sys.path.append(folder)
        importlib.invalidate_caches()
    found = _import(path.stem, str(path))
    if Path(getattr(found, "__file__", None) or "").resolve() != path:
        raise InputError(f"{IMPORTS}: {path} has the name of another module, {path.stem}: rename the file")


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except InputError as error:
        raise InputError(f"{IMPORTS}: {name}: {error}") from None
    except Exception as error:  # whatever a module raises when it runs
        raise InputError(f"{IMPORTS}: {name} does not import: {type(error).__name__}: {first_line(error)}") from error
