"""Independent random streams named by numbers, so that no draw depends on the order of work."""

from __future__ import annotations

import numpy as np

PERSON, FAMILY, PLAN, SHOT, CAPTION, PREVIEW = range(6)
"""What a stream is for."""


def stream(seed: int, *path: int) -> np.random.Generator:
    """Return the generator of one thing, for example `stream(seed, SHOT, pid, index)`."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, *path))))
