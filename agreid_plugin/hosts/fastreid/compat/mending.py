"""What the repairs have in common: modules of the host by name, and names in them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


def host(name: str) -> ModuleType:
    """Import a module of the host."""
    # importlib, because `fastreid.engine.launch` as an attribute is the function of that name.
    return importlib.import_module(f"fastreid.{name}")


def replace(attribute: str, value: Any, *modules: str) -> None:
    """Set a name in the module that defines it and in those that have imported it."""
    for module in modules:
        setattr(host(module), attribute, value)
