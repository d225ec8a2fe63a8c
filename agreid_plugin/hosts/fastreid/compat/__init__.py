"""What fast-reid 1.4.0 needs to run on today's Python and torch, with or without a GPU.

Each patch names its reason and tests for the fault itself, never for a version: with everything native nothing is
patched, and after a patch its own test finds the fault gone. `fastreid doctor` lists what was applied.
"""

from __future__ import annotations

import warnings

from agreid_plugin.hosts import torchvision_ops
from agreid_plugin.hosts.fastreid.compat import evaluation, files, images, names, training
from agreid_plugin.hosts.host_fixes import Patches

PATCHES = Patches()
for topic in (names, training, images, evaluation, files):  # the order of applying them
    PATCHES.all += topic.PATCHES.all

NOISE = (
    r"Cython (rank|roc) evaluation",
    r"TypedStorage is deprecated",
    r"`torch\.cuda\.amp\.",
    r"`broadcast_buffers` is deprecated",
)
"""Warnings the host causes that no user can act on: it asks for a build we do without, and uses retired names."""


def apply(stage: str) -> None:
    """Apply the patches of a stage whose fault is present."""
    for message in NOISE:
        warnings.filterwarnings("ignore", message)
    PATCHES.apply(stage)


def applied() -> dict[str, str]:
    """Return name -> reason of the patches in force in this process."""
    return {**torchvision_ops.applied(), **PATCHES.applied()}
