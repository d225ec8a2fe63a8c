"""Weights of fast-reid's models in ours.

A model of ours holds the method under `method`, and the tensors there have the names of fast-reid's model. So a file
goes from host to host by adding or removing that prefix; `agreid_plugin.inference.weights` removes it.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from torch import Tensor

METHOD = "method."
PARALLEL = "module."  # what data-parallel training puts before names
FASTREID = "model"  # where a checkpoint of fast-reid has its tensors


def to_own_names(state: MutableMapping[str, Any], prefix: str = "") -> None:
    """Give the tensors of fast-reid's checkpoint the names of ours, in place; ours stay as they are.

    Args:
        state: tensors by name, or a whole checkpoint of fast-reid.
        prefix: what stands before the model's names, with a point at its end.
    """
    if not prefix and isinstance(state.get(FASTREID), Mapping):
        tensors = dict(state[FASTREID])
        state.clear()
        state.update(tensors)
    names = [name for name, value in state.items() if name.startswith(prefix) and isinstance(value, Tensor)]
    own = [name.removeprefix(prefix) for name in names]
    if any(name.startswith(METHOD) for name in own):
        return
    for name, short in zip(names, own, strict=True):
        state[f"{prefix}{METHOD}{short.removeprefix(PARALLEL)}"] = state.pop(name)
