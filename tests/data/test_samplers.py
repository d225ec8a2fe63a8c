import math
from collections import Counter
from itertools import islice

import pytest

from agreid_plugin.data.samplers import EndlessViewBalancedSampler, EpochViewBalancedSampler, ViewBalancedIdentities
from agreid_plugin.errors import InputError
from agreid_plugin.types import UNKNOWN, View

A, G = View.AERIAL, View.GROUND


def people(*counts: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Identities 0, 1, ... with so many aerial and ground images each."""
    pids, views = [], []
    for pid, (aerial, ground) in enumerate(counts):
        pids += [pid] * (aerial + ground)
        views += [A] * aerial + [G] * ground
    return pids, views


def test_a_batch_holds_p_identities_with_half_of_k_from_each_view():
    pids, views = people(*[(5, 5)] * 8)
    for batch in ViewBalancedIdentities(pids, views, batch_size=16, per_identity=4).epoch(0, 0):
        assert len(batch) == 16
        assert Counter(pids[i] for i in batch).most_common()[-1][1] == 4
        for pid in {pids[i] for i in batch}:
            assert Counter(views[i] for i in batch if pids[i] == pid) == {A: 2, G: 2}


def test_an_epoch_shows_every_identity():
    pids, views = people(*[(2, 3)] * 7)
    sampler = ViewBalancedIdentities(pids, views, batch_size=8, per_identity=4)
    assert len(sampler) == 4  # 7 identities, 2 a batch: the last batch is filled up with one of the first
    seen = Counter(pids[i] for batch in sampler.epoch(0, 0) for i in batch)
    assert set(seen) == set(range(7))
    assert sorted(seen.values()) == [4] * 6 + [8]


@pytest.mark.parametrize("counts", [(1, 0), (0, 1), (3, 0), (1, 9), (1, 1)])
def test_one_view_or_few_images_never_starve(counts):
    pids, views = people((4, 4), counts)
    for batch in ViewBalancedIdentities(pids, views, batch_size=8, per_identity=4).epoch(3, 1):
        mine = [i for i in batch if pids[i] == 1]
        assert len(mine) == 4
        if min(counts):
            assert Counter(views[i] for i in mine) == {A: 2, G: 2}
        # every image once before any comes twice: the rarest image of the smallest view sets the repetition
        drawn, available = (2, min(counts)) if min(counts) else (4, max(counts))
        assert max(Counter(mine).values()) == math.ceil(drawn / available)


def test_an_odd_k_gives_the_spare_image_to_either_view():
    pids, views = people((9, 9), (9, 9))
    shares = Counter()
    sampler = ViewBalancedIdentities(pids, views, batch_size=6, per_identity=3)
    for number in range(40):
        for batch in sampler.epoch(0, number):
            shares[sum(views[i] == A for i in batch if pids[i] == 0)] += 1
    assert set(shares) == {1, 2}


def test_unknown_view_is_one_more_group():
    pids, views = [0] * 4 + [1] * 4, [UNKNOWN] * 4 + [A, A, G, G]
    (batch,) = ViewBalancedIdentities(pids, views, batch_size=8, per_identity=4).epoch(0, 0)
    assert sorted(batch) == list(range(8))


def test_same_seed_same_batches_other_seed_others():
    pids, views = people(*[(5, 5)] * 8)

    def stream(seed: int) -> list[int]:
        return list(islice(EndlessViewBalancedSampler(pids, views, 16, 4, seed=seed), 64))

    assert stream(1) == stream(1) != stream(2)
    assert stream(1)[:32] != stream(1)[32:]  # the second epoch is another


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_out_whole_identities_of_the_same_batches(world_size):
    pids, views = people(*[(5, 5)] * 8)
    (one,) = [list(EpochViewBalancedSampler(pids, views, 16, 4, seed=5))]
    parts = [
        EpochViewBalancedSampler(pids, views, 16, 4, seed=5, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    share = 16 // world_size
    joined = []
    streams = [list(part) for part in parts]
    for start in range(0, len(streams[0]), share):
        for stream in streams:
            joined += stream[start : start + share]
            assert set(Counter(pids[i] for i in stream[start : start + share]).values()) == {4}
    assert joined == one
    assert all(len(part) == len(stream) for part, stream in zip(parts, streams, strict=True))


def test_set_epoch_chooses_the_draw():
    pids, views = people(*[(5, 5)] * 8)
    sampler = EpochViewBalancedSampler(pids, views, 16, 4, seed=5)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


@pytest.mark.parametrize(
    ("batch", "per_identity", "world_size", "words"),
    [
        (10, 4, 1, "does not divide"),
        (12, 4, 2, "does not divide into 2 processes"),
        (64, 4, 1, "takes 16 identities, there are 8"),
        (8, 0, 1, "does not divide"),
    ],
)
def test_batches_that_cannot_be_filled(batch, per_identity, world_size, words):
    pids, views = people(*[(2, 2)] * 8)
    with pytest.raises(InputError, match=words):
        EndlessViewBalancedSampler(pids, views, batch, per_identity, world_size=world_size)
