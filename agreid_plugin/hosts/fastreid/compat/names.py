"""Names that Python, torch and numpy have dropped; access to the host's modules for all fixes."""

from __future__ import annotations

import collections
import collections.abc
import importlib
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any

import numpy as np
import torch

from agreid_plugin.hosts.host_fixes import HostFixes

HOST_FIXES = HostFixes()


def host(name: str) -> ModuleType:
    """Import a module of the host."""
    # importlib, because `fastreid.engine.launch` as an attribute is the function of that name.
    return importlib.import_module(f"fastreid.{name}")


def replace(attribute: str, value: Any, *modules: str) -> None:
    """Set a name in the module that defines it and in those that have imported it."""
    for module in modules:
        setattr(host(module), attribute, value)


@HOST_FIXES.add(
    "fastreid", "collections.Mapping moved to collections.abc", lambda: not hasattr(collections, "Mapping"), before=True
)
def collections_names() -> None:
    """Restore `collections.Mapping`."""
    collections.Mapping = collections.abc.Mapping


@HOST_FIXES.add(
    "fastreid",
    "torch._six was removed in torch 2.0",
    lambda: importlib.util.find_spec("torch._six") is None,
    before=True,
)
def torch_six() -> None:
    """Provide `torch._six.string_classes`."""
    module = ModuleType("torch._six")
    module.__spec__ = importlib.machinery.ModuleSpec("torch._six", None)
    module.string_classes = (str, bytes)
    sys.modules["torch._six"] = torch._six = module


@HOST_FIXES.add("fastreid", "np.bool is missing in numpy 1.24 to 1.26", lambda: not hasattr(np, "bool"), before=True)
def numpy_names() -> None:
    """Restore `np.bool`."""
    np.bool = bool
