"""Identity sampling that shows each person from both views."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

from agreid_plugin.errors import InputError


class ViewBalancedIdentities:
    """Draws batches of P identities with K images each, half of the K from each view where a person has both.

    A person with fewer images than asked for is drawn with repetition, one with a single view from that view alone,
    so that no identity starves and none is left out: an epoch shows every identity once (the last batch is filled up
    with identities of the epoch's beginning).
    """

    def __init__(self, pids: Sequence, views: Sequence[int], batch_size: int, per_identity: int):
        if per_identity < 1 or batch_size % per_identity:
            raise InputError(f"a batch of {batch_size} does not divide into {per_identity} images an identity")
        self.per_identity = per_identity
        self.identities_per_batch = batch_size // per_identity
        self._images: dict = {}
        for index, (pid, view) in enumerate(zip(pids, views, strict=True)):
            self._images.setdefault(pid, {}).setdefault(int(view), []).append(index)
        self._identities = sorted(self._images)
        if len(self._identities) < self.identities_per_batch:
            raise InputError(
                f"a batch of {batch_size} with {per_identity} images each takes {self.identities_per_batch} "
                f"identities, there are {len(self._identities)}"
            )

    def __len__(self) -> int:
        """Batches in an epoch."""
        return math.ceil(len(self._identities) / self.identities_per_batch)

    def epoch(self, seed: int, number: int) -> Iterator[list[int]]:
        """Yield the batches of epoch `number`, the same for every process that asks with the same seed."""
        rng = np.random.default_rng((seed, number))
        order = rng.permutation(len(self._identities))
        order = np.concatenate([order, order[: len(self) * self.identities_per_batch - len(order)]])
        for identities in order.reshape(len(self), self.identities_per_batch):
            yield [index for identity in identities for index in self._draw(self._identities[identity], rng)]

    def _draw(self, pid, rng: np.random.Generator) -> list[int]:
        views = self._images[pid]
        names = [sorted(views)[i] for i in rng.permutation(len(views))]
        shares = [self.per_identity // len(names)] * len(names)
        for extra in range(self.per_identity - sum(shares)):
            shares[extra] += 1
        return [int(i) for name, share in zip(names, shares, strict=True) for i in _choose(views[name], share, rng)]


def _choose(images: list[int], count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw without repetition as far as it goes: every image once before any comes twice."""
    rounds = [rng.permutation(images) for _ in range(math.ceil(count / len(images)))]
    return np.concatenate(rounds)[:count] if rounds else np.array([], dtype=int)


class _RankShare(Sampler[int]):
    """One process's part of each global batch: whole identities, so that losses find their pairs locally."""

    def __init__(
        self,
        pids: Sequence,
        views: Sequence[int],
        batch_size: int,
        per_identity: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.batches = ViewBalancedIdentities(pids, views, batch_size, per_identity)
        if batch_size % (per_identity * world_size):
            raise InputError(
                f"a batch of {batch_size} does not divide into {world_size} processes with {per_identity} images an "
                "identity"
            )
        self.seed, self.rank, self.share = seed, rank, batch_size // world_size

    def _epoch(self, number: int) -> Iterator[int]:
        for batch in self.batches.epoch(self.seed, number):
            yield from batch[self.rank * self.share : (self.rank + 1) * self.share]


class EndlessViewBalancedSampler(_RankShare):
    """Epoch after epoch without end, as fast-reid's trainer takes its indices."""

    def __iter__(self) -> Iterator[int]:
        number = 0
        while True:
            yield from self._epoch(number)
            number += 1


class EpochViewBalancedSampler(_RankShare):
    """One epoch at a time, chosen by `set_epoch`, as mmengine's loops take their indices."""

    _number = 0

    def set_epoch(self, number: int) -> None:
        """Choose the epoch that the next iteration draws."""
        self._number = number

    def __iter__(self) -> Iterator[int]:
        return self._epoch(self._number)

    def __len__(self) -> int:
        return len(self.batches) * self.share
