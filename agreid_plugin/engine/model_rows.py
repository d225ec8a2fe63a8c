"""Operations of a model, counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


@contextmanager
def counting() -> Iterator[FlopCounterMode]:
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
