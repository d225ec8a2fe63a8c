"""Host fixes of fast-reid 1.4.0 for today's Python and torch, with or without a GPU; see `hosts.host_fixes`."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable

from agreid_plugin import _imports
from agreid_plugin.hosts import torchvision_fixes
from agreid_plugin.hosts.fastreid.compat import evaluation, files, images, names, tools, training
from agreid_plugin.hosts.host_fixes import HostFixes

TOPICS = (torchvision_fixes, names, training, images, evaluation, files, tools)
HOST_FIXES = HostFixes(*(topic.HOST_FIXES for topic in TOPICS))

NOISE = (
    r"Cython (rank|roc) evaluation",
    r"TypedStorage is deprecated",
    r"`torch\.cuda\.amp\.",
    r"`broadcast_buffers` is deprecated",
)
"""Warnings the host causes that no user can act on: it asks for a build we do without, and uses retired names."""


def install() -> None:
    """Arm the import hook and load fast-reid: fixed, and with our components in its registries."""
    _imports.arm()
    importlib.import_module("fastreid")


def run_import(module: str, execute: Callable[[], None]) -> None:
    """Run the host's first import between its fixes, then register our components; called by the import hook."""
    for message in NOISE:
        warnings.filterwarnings("ignore", message)
    HOST_FIXES.run_import(module, execute)
    importlib.import_module("agreid_plugin.hosts.fastreid.components")
