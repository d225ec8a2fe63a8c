"""Host fix of torchvision: its wheel on PyPI is a CUDA build, whose operators do not load where torch is none."""

from __future__ import annotations

import sys
from collections.abc import Callable

from agreid_plugin.hosts.host_fixes import HostFixes

HOST_FIXES = HostFixes()
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""The two operators that torchvision uses at import without asking whether its extension is there."""

_import_failed = False
_library = None  # torch drops the schemas with the last reference


@HOST_FIXES.add(
    "torchvision",
    "torchvision's compiled operators do not load with this torch",
    lambda: _import_failed and _library is None,
    before=True,
)
def torchvision_schemas() -> None:
    """Declare the operators' schemas."""
    global _library
    import torch

    _library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        _library.define(schema)


def run_import(module: str, execute: Callable[[], None]) -> None:
    """Run torchvision's import, and again with declared schemas if it failed for want of them.

    Declaring them first would abort the process where the extension does load and registers its own.
    """
    global _import_failed
    try:
        execute()
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.startswith("torchvision.")]:
            del sys.modules[name]
        _import_failed = True
        HOST_FIXES.apply(module, before=True)
        execute()
