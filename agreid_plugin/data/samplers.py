"""Identity samplers (P people with K images each), and batches with a seed for each image, so that a run can resume.

A plan draws the batches of all processes together, without end and the same for each seed; a sampler is one process's
share of them. A seeded index has the number of its draw in the run, and the random numbers of an image follow from
that: they depend neither on data workers nor on earlier draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from itertools import count, islice
from typing import Any, Protocol, TypeVar

import numpy as np
from torch.utils.data import Sampler

from agreid_plugin.data.rng import IsolatedNumpyRNG, seeded
from agreid_plugin.errors import InputError

Pid = TypeVar("Pid", int, str)


class Plan(Protocol):
    """Source of the batches of all processes."""

    def stream(self, seed: int, start: int = 0) -> Iterator[list[int]]:
        """Yield batches of all processes, from number `start` on, without end."""


class ViewBalancedIdentities:
    """Draws batches of P identities with K images each, half of the K from each view where a person has both.

    A person with fewer images than asked for is drawn with repetition, one with a single view from that view only,
    so that no identity starves and none is left out: a round shows every identity once (its last batch is filled up
    with identities of the round's beginning).

    Args:
        pids: the identity of each image.
        views: the view of each image.
        batch_size: images in a batch of all processes.
        per_identity: K.
        processes: how many share a batch, each getting whole identities.

    Example:
        >>> pids = ["ann"] * 6 + ["bob"] * 6 + ["eve"] * 6
        >>> views = [0, 0, 0, 0, 1, 1] * 3
        >>> plan = ViewBalancedIdentities(pids, views, batch_size=8, per_identity=4)
        >>> batch = next(plan.stream(seed=0))
        >>> people = {pids[index] for index in batch}
        >>> {who: sorted(views[index] for index in batch if pids[index] == who) for who in sorted(people)}
        {'ann': [0, 0, 1, 1], 'eve': [0, 0, 1, 1]}
    """

    def __init__(
        self, pids: Sequence[Pid], views: Sequence[int], batch_size: int, per_identity: int, processes: int = 1
    ):
        self.per_identity = per_identity
        self.identities_per_batch = _count_identities(batch_size, per_identity, processes)
        images: dict[Pid, dict[int, list[int]]] = {}
        for index, (pid, view) in enumerate(zip(pids, views, strict=True)):
            images.setdefault(pid, {}).setdefault(int(view), []).append(index)
        self._images = [images[pid] for pid in sorted(images)]
        _require_identities(len(images), self.identities_per_batch, batch_size, per_identity)

    def __len__(self) -> int:
        """Batches in a round."""
        return math.ceil(len(self._images) / self.identities_per_batch)

    def stream(self, seed: int, start: int = 0) -> Iterator[list[int]]:
        """Yield the batches from number `start` on, round after round without end."""
        number, passed = divmod(start, len(self))
        yield from islice(self.round(seed, number), passed, None)
        for later in count(number + 1):
            yield from self.round(seed, later)

    def round(self, seed: int, number: int) -> Iterator[list[int]]:
        """Yield the batches of one round, the same for every process that asks with the same seed."""
        rng = np.random.default_rng((seed, number))
        order = rng.permutation(len(self._images))
        order = np.concatenate([order, order[: len(self) * self.identities_per_batch - len(order)]])
        for identities in order.reshape(len(self), self.identities_per_batch):
            yield [index for identity in identities for index in self._draw(self._images[identity], rng)]

    def _draw(self, views: dict[int, list[int]], rng: np.random.Generator) -> list[int]:
        """Draw K images of a person, given those of each view."""
        names = [sorted(views)[i] for i in rng.permutation(len(views))]
        shares = [self.per_identity // len(names)] * len(names)
        for extra in range(self.per_identity - sum(shares)):
            shares[extra] += 1
        parts = [_draw_images(views[name], share, rng) for name, share in zip(names, shares, strict=True)]
        return [int(i) for part in parts for i in part]


class RandomIdentities:
    """Draws batches of P identities with K images each as fast-reid's NaiveIdentitySampler does, number for number.

    A round goes through everybody's images in groups of K, a person with fewer than K giving one group with
    repetition. Each process's P identities are drawn from those that have a group left; when they are too few, what
    was drawn for a batch that is not full is dropped and a new round begins. People with many images come more often.

    Args:
        pids: the identity of each image.
        batch_size: images in a batch of all processes.
        per_identity: K.
        processes: how many share a batch; an identity may be drawn for several of them.
    """

    def __init__(self, pids: Sequence[Pid], batch_size: int, per_identity: int, processes: int = 1):
        self.per_identity, self.processes = per_identity, processes
        self.identities_per_process = _count_identities(batch_size, per_identity, processes) // processes
        images: dict[Pid, list[int]] = {}
        for index, pid in enumerate(pids):
            images.setdefault(pid, []).append(index)
        self._images = [images[pid] for pid in sorted(images)]
        _require_identities(len(images), self.identities_per_process, batch_size // processes, per_identity)
        if self._max_draws() < processes:
            raise InputError(
                f"a batch of {batch_size} with {per_identity} images each is more than {len(images)} identities fill "
                f"for {processes} processes before their images are used up; make it smaller"
            )

    def stream(self, seed: int, start: int = 0) -> Iterator[list[int]]:
        """Yield the batches from number `start` on; those before are drawn and left out, as rounds differ in length."""
        return islice(self._stream(np.random.RandomState(seed)), start, None)

    def _stream(self, rng: np.random.RandomState) -> Iterator[list[int]]:
        while True:
            draws = self._round(rng)
            while len(batch := list(islice(draws, self.processes))) == self.processes:
                yield [index for part in batch for index in part]

    def _round(self, rng: np.random.RandomState) -> Iterator[list[int]]:
        """Yield what one process gets, again and again until too few identities have a group of images left."""
        available, left = list(range(len(self._images))), {}
        while len(available) >= self.identities_per_process:
            drawn: list[int] = []
            for identity in rng.choice(available, self.identities_per_process, replace=False).tolist():
                if identity not in left:
                    left[identity] = self._shuffle_images(identity, rng)
                drawn += left[identity][: self.per_identity]
                left[identity] = left[identity][self.per_identity :]
                if len(left[identity]) < self.per_identity:
                    available.remove(identity)
            yield drawn

    def _shuffle_images(self, identity: int, rng: np.random.RandomState) -> list[int]:
        images = list(self._images[identity])
        if len(images) < self.per_identity:
            images = rng.choice(images, self.per_identity, replace=True).tolist()
        rng.shuffle(images)
        return images

    def _max_draws(self) -> int:
        """Return how many processes' shares the luckiest round has, or `processes` if it is that many or more."""
        groups = [max(len(images) // self.per_identity, 1) for images in self._images]
        for draws in range(1, self.processes + 1):
            if sum(min(group, draws) for group in groups) < draws * self.identities_per_process:
                return draws - 1
        return self.processes


def _draw_images(images: list[int], number: int, rng: np.random.Generator) -> np.ndarray:
    """Draw without repetition as far as it goes: every image once before any comes twice."""
    rounds = [rng.permutation(images) for _ in range(math.ceil(number / len(images)))]
    return np.concatenate(rounds)[:number] if rounds else np.array([], dtype=int)


def _count_identities(batch_size: int, per_identity: int, processes: int) -> int:
    """Return P of a batch, refusing one that does not divide into whole identities of each process."""
    if per_identity < 1 or batch_size < 1 or batch_size % per_identity:
        raise InputError(f"a batch of {batch_size} does not divide into {per_identity} images an identity")
    if batch_size % (per_identity * processes):
        raise InputError(
            f"a batch of {batch_size} does not divide into {processes} processes with {per_identity} images an identity"
        )
    return batch_size // per_identity


def _require_identities(found: int, needed: int, batch_size: int, per_identity: int) -> None:
    if found < needed:
        raise InputError(
            f"a batch of {batch_size} with {per_identity} images each takes {needed} identities, there are {found}"
        )


class EndlessViewBalancedSampler(Sampler[int]):
    """One process's part of view-balanced batches without end, as fast-reid's trainer takes its indices.

    Its part of a batch is whole identities, so that losses find their pairs locally.
    """

    def __init__(
        self,
        pids: Sequence[Pid],
        views: Sequence[int],
        batch_size: int,
        per_identity: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.plan = ViewBalancedIdentities(pids, views, batch_size, per_identity, world_size)
        self.seed, self.rank, self.world_size = seed, rank, world_size

    def __iter__(self) -> Iterator[int]:
        return _iter_share(self.plan.stream(self.seed), self.rank, self.world_size)


class EpochSampler(Sampler[int]):
    """One process's part of a plan's batches in epochs of a fixed number, as mmengine's loops take their indices.

    Epochs are pieces of the plan's one stream: what endless sampling shows after so many batches, epoch n shows too.

    Args:
        plan: draws the batches of all processes.
        batches: in an epoch.
        batch_size: images in a batch of this process.
        seed: of the stream, the same in all processes.
        rank: this process's number.
        world_size: number of processes.
    """

    def __init__(self, plan: Plan, batches: int, batch_size: int, seed: int = 0, rank: int = 0, world_size: int = 1):
        self.plan, self.batches, self.batch_size = plan, batches, batch_size
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self._start = 0
        self._next = -1
        self._stream: Iterator[list[int]] = iter(())

    def set_epoch(self, number: int) -> None:
        """Choose the epoch that the next iteration draws."""
        self._start = number * self.batches

    def __iter__(self) -> Iterator[int]:
        start = self._start
        if self._next != start:  # else the last epoch ended here, and the stream goes on
            self._stream = self.plan.stream(self.seed, start)
        self._next = -1  # until this epoch has ended, the place of the stream is unknown
        yield from _iter_share(islice(self._stream, self.batches), self.rank, self.world_size)
        self._next = start + self.batches

    def __len__(self) -> int:
        return self.batches * self.batch_size


def _iter_share(batches: Iterable[list[int]], rank: int, world_size: int) -> Iterator[int]:
    for batch in batches:
        size = len(batch) // world_size
        yield from batch[rank * size : (rank + 1) * size]


class SeededIndex(int):
    """Index of a dataset, with the `seed` of the random numbers that are drawn for it."""

    seed: tuple[int, ...]

    def __new__(cls, index: int, seed: tuple[int, ...] = ()) -> SeededIndex:
        """Make the index."""
        made = super().__new__(cls, index)
        made.seed = seed
        return made

    def __reduce__(self) -> tuple:
        """Pickle the seed too, for data workers."""
        return type(self), (int(self), self.seed)


def seeded_getitem(read: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """Wrap a dataset's `__getitem__` so that a `SeededIndex` seeds its draws; a plain index changes nothing."""

    @wraps(read)
    def read_seeded(dataset: Any, index: int) -> Any:
        if not isinstance(index, SeededIndex):
            return read(dataset, index)
        with seeded(*index.seed):
            return read(dataset, index)

    return read_seeded


class SeededBatches(Sampler[list[int]]):
    """Batch sampler over an endless sampler that gives seeded indices, from batch `start` on.

    What comes before `start` is drawn and dropped, so that every sampler goes on in its own stream.

    Args:
        sampler: gives indices without end; it may draw from NumPy's global generator, without an effect on others.
        batch_size: indices in a batch.
        seed: of the run.
        rank: rank of this process; each rank draws other numbers.
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, seed: int = 0, rank: int = 0):
        self.sampler, self.batch_size, self.seed, self.rank = sampler, batch_size, seed, rank
        self.start = 0

    def __iter__(self) -> Iterator[list[int]]:
        isolated, indices = IsolatedNumpyRNG(), iter(self.sampler)
        for batch in count():
            with isolated:
                drawn = [int(index) for index in islice(indices, self.batch_size)]
            if batch >= self.start:
                first = batch * self.batch_size
                yield [SeededIndex(i, (self.seed, self.rank, first + place)) for place, i in enumerate(drawn)]
