"""Import torchvision where its compiled operators cannot load: the PyPI wheel is a CUDA build, torch may not be."""

from __future__ import annotations

import sys
from collections.abc import Callable

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""The two operators torchvision mentions at import without asking whether its extension is there."""

_library = None  # torch drops the schemas when the last reference goes


def declared() -> bool:
    """Tell whether the schemas had to be declared in this process."""
    return _library is not None


def applied() -> dict[str, str]:
    """Return this repair, name -> reason, if it is in force in this process."""
    reason = "torchvision's compiled operators do not load with this torch"
    return {"torchvision_schemas": reason} if declared() else {}


def import_with_schemas(execute: Callable[[], None]) -> None:
    """Run torchvision's import; declare the schemas only after it has failed for want of them.

    Declaring them first would abort the process wherever the extension does load and registers its own.
    """
    try:
        execute()
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.startswith("torchvision.")]:
            del sys.modules[name]
        _declare()
        execute()


def _declare() -> None:
    global _library
    import torch

    _library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        _library.define(schema)
