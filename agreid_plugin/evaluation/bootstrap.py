"""Resampling identities: images of one person stand or fall together, so a draw takes all of them or none.

Shapes: R draws, I identities, N values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from agreid_plugin.errors import InputError

CHUNK = 128  # draws held together
LEVEL = 0.95
DRAWS = 1000


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"[{self.low:.2f}, {self.high:.2f}]"

    @classmethod
    def of(cls, samples: np.ndarray, level: float = LEVEL) -> Interval:
        """Return the interval that holds the share `level` of the samples; samples that are NaN do not count."""
        if not 0 < level < 1:
            raise InputError(f"confidence level {level} is not between 0 and 1")
        low, high = np.nanquantile(samples, [(1 - level) / 2, (1 + level) / 2])
        return cls(float(low), float(high))


def draws_of(identities: int, draws: int = DRAWS, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield how often each identity was drawn, (at most `CHUNK`, I), `draws` rows in all; the seed fixes them."""
    if identities < 2 or draws < 1:
        raise InputError(f"a bootstrap needs two identities and one draw at least, got {identities} and {draws}")
    generator = np.random.default_rng(seed)
    even = np.full(identities, 1 / identities)
    for start in range(0, draws, CHUNK):
        yield generator.multinomial(identities, even, size=min(CHUNK, draws - start)).astype(np.float64)


def resampled_means(values: np.ndarray, pids: np.ndarray, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """Return the mean of each column of values (N, C) in each draw of identities, (R, C)."""
    _, which = np.unique(pids, return_inverse=True)
    counts = np.bincount(which)  # (I,)
    sums = np.stack([np.bincount(which, weights=column) for column in values.T], axis=1)  # (I, C)
    return np.concatenate([(drawn @ sums) / (drawn @ counts)[:, None] for drawn in draws_of(len(counts), draws, seed)])
