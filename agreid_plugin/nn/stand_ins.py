"""Checkpoints that hold a host's objects between their tensors, read without making these objects.

mmengine keeps its message hub in every checkpoint: buffers of its own, numpy arrays, and methods by `getattr`. torch's
reader of tensors and plain values refuses them. Here it finds an inert class in the place of each, so that nothing of
the host, and nothing that a file calls so, ever runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals

from agreid_plugin.nn.pickles import names_asked_for

PACKAGES = ("mmengine", "mmpretrain", "mmcv", "numpy", "agreid_plugin")
"""Whose classes and functions are stood in for; those of others are refused."""
NAMES = ("builtins.getattr", "_codecs.encode")
"""What else the objects of these packages are made with: their methods, and the bytes of an array."""


class StandIn:
    """Takes everything it is given and does nothing with it."""

    def __init__(self, *args: Any, **kwargs: Any):
        """Accept what the object would be made of."""

    def __setstate__(self, state: Any) -> None:
        """Accept what the object would hold."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Accept an entry of what would be a dict."""


def load_with_stand_ins(path: str | Path) -> Any:
    """Read a checkpoint as `torch.load(weights_only=True)` does, the objects of `PACKAGES` replaced by stand-ins.

    Raises:
        pickle.UnpicklingError: it holds objects of others.
    """
    names = sorted(name for name in names_asked_for(path) if name.partition(".")[0] in PACKAGES or name in NAMES)
    with _allowed([stand_in(name) for name in names]):
        return torch.load(path, map_location="cpu", weights_only=True)


def stand_in(name: str) -> type[StandIn]:
    """Return a class that goes by a full name, which is how torch finds what is allowed."""
    module, _, own = name.rpartition(".")
    return type(own, (StandIn,), {"__module__": module})


@contextmanager
def _allowed(classes: list[Any]) -> Iterator[None]:
    """Let torch's reader take these classes, and afterwards what it took before."""
    before = get_safe_globals()
    add_safe_globals(classes)
    try:
        yield
    finally:
        clear_safe_globals()
        add_safe_globals(before)
