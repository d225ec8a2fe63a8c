"""The random generators of a process: their states kept and restored, and numbers that depend on nothing but a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """Return the state of Python's, NumPy's and torch's generators in this process, as tensors and plain values."""
    numpy = np.random.get_state(legacy=False)
    return {
        "python": random.getstate(),
        "numpy": (
            numpy["bit_generator"],
            numpy["state"]["key"].tolist(),
            numpy["state"]["pos"],
            numpy["has_gauss"],
            numpy["gauss"],
        ),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Have this process go on where `random_state` was called."""
    name, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())  # a checkpoint is loaded to the model's device
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


@contextmanager
def drawn_from(*seed: int) -> Iterator[None]:
    """Have the generators of the CPU draw what follows from `seed` alone, and go on afterwards as if nothing had been.

    Those of GPUs are left alone, which the process of a data worker must not touch.
    """
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    words = np.random.SeedSequence(seed).generate_state(4)
    random.seed(int(words[0]))
    np.random.seed(words[1:3])
    torch.default_generator.manual_seed(int(words[3]))
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


class OwnNumpy:
    """A state of NumPy's global generator that only the blocks under this object see and change.

    For code that draws from the global one, as the samplers of fast-reid.
    """

    def __init__(self) -> None:
        self._own = np.random.get_state()

    def __enter__(self) -> None:
        self._others = np.random.get_state()
        np.random.set_state(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = np.random.get_state()
        np.random.set_state(self._others)
