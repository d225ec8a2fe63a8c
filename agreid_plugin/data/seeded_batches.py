"""Batches that know their place in a run, so that it can go on at any of them.

An index tells the dataset which draw of the run it is, and the random numbers of an image follow from that: neither
data workers nor what was drawn before have a part in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import count, islice
from typing import Any

from torch.utils.data import Sampler

from agreid_plugin.data.rng import OwnNumpy, drawn_from


class NumberedIndex(int):
    """An index of a dataset, with the `seed` of what is drawn for it."""

    seed: tuple[int, ...]

    def __new__(cls, index: int, seed: tuple[int, ...] = ()) -> NumberedIndex:
        """Make the index."""
        made = super().__new__(cls, index)
        made.seed = seed
        return made

    def __reduce__(self) -> tuple:
        """Travel to a data worker whole."""
        return type(self), (int(self), self.seed)


def drawn_by_number(read: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """Have a dataset's `__getitem__` draw what follows from a numbered index, and as ever for a plain one."""

    @wraps(read)
    def read_drawn(dataset: Any, index: int) -> Any:
        if not isinstance(index, NumberedIndex):
            return read(dataset, index)
        with drawn_from(*index.seed):
            return read(dataset, index)

    return read_drawn


class NumberedBatches(Sampler[list[int]]):
    """Batches of an endless sampler with numbered indices, from batch `start` on.

    What comes before `start` is drawn and dropped, so that every sampler goes on in its own stream.

    Args:
        sampler: gives indices without end; NumPy's global generator may be its own, others do not see it.
        batch_size: indices in a batch.
        seed: of the run.
        rank: number of this process, for which others draw other numbers.
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, seed: int = 0, rank: int = 0):
        self.sampler, self.batch_size, self.seed, self.rank = sampler, batch_size, seed, rank
        self.start = 0

    def __iter__(self) -> Iterator[list[int]]:
        own, indices = OwnNumpy(), iter(self.sampler)
        for batch in count():
            with own:
                drawn = [int(index) for index in islice(indices, self.batch_size)]
            if batch >= self.start:
                first = batch * self.batch_size
                yield [NumberedIndex(i, (self.seed, self.rank, first + place)) for place, i in enumerate(drawn)]
