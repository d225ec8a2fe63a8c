"""Names that Python, torch and numpy no longer have."""

from __future__ import annotations

import collections
import collections.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType

import numpy as np
import torch

from agreid_plugin.hosts.host_fixes import Patches

PATCHES = Patches()
patch = PATCHES.add


@patch("before", "collections.Mapping moved to collections.abc", lambda: not hasattr(collections, "Mapping"))
def collections_names() -> None:
    """Restore `collections.Mapping`."""
    collections.Mapping = collections.abc.Mapping


@patch("before", "torch._six was removed in torch 2.0", lambda: importlib.util.find_spec("torch._six") is None)
def torch_six() -> None:
    """Provide `torch._six.string_classes`."""
    module = ModuleType("torch._six")
    module.__spec__ = importlib.machinery.ModuleSpec("torch._six", None)
    module.string_classes = (str, bytes)
    sys.modules["torch._six"] = torch._six = module


@patch("before", "np.bool is missing in numpy 1.24 to 1.26", lambda: not hasattr(np, "bool"))
def numpy_names() -> None:
    """Restore `np.bool`."""
    np.bool = bool
