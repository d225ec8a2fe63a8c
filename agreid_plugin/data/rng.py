"""Random generators of a process: saving and restoring their states, and seeding them for a block."""

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
    """Restore the generators to the state that `random_state` returned."""
    name, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())  # a checkpoint is loaded to the model's device
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


@contextmanager
def seeded(*seed: int) -> Iterator[None]:
    """Seed the generators of the CPU for a block, and restore their states afterwards.

    Those of GPUs stay as they are: the process of a data worker must not touch them.
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


class IsolatedNumpyRNG:
    """A separate state of NumPy's global generator, which only blocks under this object see and change.

    For code that draws from the global generator, as fast-reid's samplers do.
    """

    def __init__(self) -> None:
        self._state = np.random.get_state()

    def __enter__(self) -> None:
        self._others = np.random.get_state()
        np.random.set_state(self._state)

    def __exit__(self, *_: object) -> None:
        self._state = np.random.get_state()
        np.random.set_state(self._others)
