"""Parameters, operations and own losses of a model, as the rows that `fastreid explain` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

Row = tuple[str, str]


@contextmanager
def count_operations() -> Iterator[FlopCounterMode]:
    """Count the operations within, two a multiply-add, attention among them.

    Of attention that torch computes in one piece, its products or all of the layer, nothing is counted on a CPU.
    """
    in_one_piece = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            yield counter
    finally:
        torch.backends.mha.set_fastpath_enabled(in_one_piece)


def gigaflops(counter: FlopCounterMode) -> dict[str, float]:
    """Return what was counted by module, named as within the model, and in all."""
    counts = {name.partition(".")[2]: sum(found.values()) / 1e9 for name, found in counter.get_flop_counts().items()}
    return counts | {"total": counter.get_total_flops() / 1e9}


def format_size(pair: Iterable[int]) -> str:
    """Return a size as people write it: 256x128."""
    return "x".join(map(str, pair))


def built_in_loss_rows(model: nn.Module) -> Iterator[Row]:
    """Describe the losses that a method brings along, which its keys weigh."""
    needed = getattr(model, "computed_with", {})
    for name, module in model.named_children():
        weight = getattr(module, "weight", None)
        if name.endswith("_loss") and isinstance(weight, int | float) and _has(model, needed.get(name, name)):
            yield name, f"weight {weight:g}, of {type(model).__name__} itself"


def _has(model: nn.Module, path: str) -> bool:
    try:
        return attrgetter(path)(model) is not None
    except AttributeError:
        return False


def size_rows(model: nn.Module, gflops: dict[str, float], classes: int) -> list[Row]:
    """Describe the parameters of each part, and its operations for one test image."""
    parameters = {name: _count(module.parameters()) for name, module in model.named_children()}
    parameters["total"] = _count(model.parameters())
    learning = _count(parameter for parameter in model.parameters() if parameter.requires_grad)
    rows = [(name, f"{size:>13,}  {gflops.get(name, 0):9.3f} GFLOPs") for name, size in parameters.items() if size]
    note = "" if classes else "; counted with one class"
    return [*rows, ("trainable", f"{learning:>13,}  GFLOPs: 2 operations a multiply-add{note}")]


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)
