"""Operations of a model, counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


@contextmanager
def counting() -> Iterator[FlopCounterMode]:
    """Count the operations within, two a multiply-add, attention among them."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # the others are not counted on CPU
        yield counter
