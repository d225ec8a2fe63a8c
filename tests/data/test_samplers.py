import math
from collections import Counter
from itertools import islice

import pytest

from agreid_plugin.data.samplers import (
    EndlessViewBalancedSampler,
    EpochSampler,
    RandomIdentities,
    ViewBalancedIdentities,
)
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
    for batch in ViewBalancedIdentities(pids, views, batch_size=16, per_identity=4).round(0, 0):
        assert len(batch) == 16
        assert Counter(pids[i] for i in batch).most_common()[-1][1] == 4
        for pid in {pids[i] for i in batch}:
            assert Counter(views[i] for i in batch if pids[i] == pid) == {A: 2, G: 2}


def test_a_round_shows_every_identity():
    pids, views = people(*[(2, 3)] * 7)
    sampler = ViewBalancedIdentities(pids, views, batch_size=8, per_identity=4)
    assert len(sampler) == 4  # 7 identities, 2 a batch: the last batch is filled up with one of the first
    seen = Counter(pids[i] for batch in sampler.round(0, 0) for i in batch)
    assert set(seen) == set(range(7))
    assert sorted(seen.values()) == [4] * 6 + [8]


@pytest.mark.parametrize("counts", [(1, 0), (0, 1), (3, 0), (1, 9), (1, 1)])
def test_one_view_or_few_images_never_starve(counts):
    pids, views = people((4, 4), counts)
    for batch in ViewBalancedIdentities(pids, views, batch_size=8, per_identity=4).round(3, 1):
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
        for batch in sampler.round(0, number):
            shares[sum(views[i] == A for i in batch if pids[i] == 0)] += 1
    assert set(shares) == {1, 2}


def test_unknown_view_is_one_more_group():
    pids, views = [0] * 4 + [1] * 4, [UNKNOWN] * 4 + [A, A, G, G]
    (batch,) = ViewBalancedIdentities(pids, views, batch_size=8, per_identity=4).round(0, 0)
    assert sorted(batch) == list(range(8))


def test_same_seed_same_batches_other_seed_others():
    pids, views = people(*[(5, 5)] * 8)

    def stream(seed: int) -> list[int]:
        return list(islice(EndlessViewBalancedSampler(pids, views, 16, 4, seed=seed), 64))

    assert stream(1) == stream(1) != stream(2)
    assert stream(1)[:32] != stream(1)[32:]  # the second round is another


PIDS, VIEWS = people(*[(5, 5)] * 6, (1, 0), (1, 2))  # eight people, some with few images


def plans(processes: int = 1) -> dict:
    """Both ways to draw batches of 16 of the same people."""
    return {
        "random": RandomIdentities(PIDS, 16, 4, processes),
        "balanced": ViewBalancedIdentities(PIDS, VIEWS, 16, 4, processes),
    }


both_plans = pytest.mark.parametrize("kind", ["random", "balanced"])


@both_plans
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_processes_share_out_whole_identities_of_the_same_batches(kind, world_size):
    plan, share = plans(world_size)[kind], 16 // world_size
    whole = list(islice(plan.stream(5), 6))
    samplers = [EpochSampler(plan, 6, share, seed=5, rank=rank, world_size=world_size) for rank in range(world_size)]
    parts = [list(sampler) for sampler in samplers]
    for number, batch in enumerate(whole):
        mine = [part[number * share : (number + 1) * share] for part in parts]
        assert [index for part in mine for index in part] == batch
        assert all(set(Counter(PIDS[i] for i in part).values()) == {4} for part in mine)
    assert all(len(sampler) == len(part) == 6 * share for sampler, part in zip(samplers, parts, strict=True))


@both_plans
def test_epochs_are_pieces_of_one_stream_in_any_order(kind):
    plan = plans()[kind]
    pieces = [list(islice(plan.stream(3), 5 * n, 5 * n + 5)) for n in range(4)]
    sampler = EpochSampler(plan, 5, 16, seed=3)
    for number in (0, 1, 2, 0, 3, 3):  # going on, back, ahead, and again
        sampler.set_epoch(number)
        assert list(sampler) == [index for batch in pieces[number] for index in batch]


@both_plans
def test_an_epoch_that_was_broken_off_starts_again_at_its_beginning(kind):
    sampler = EpochSampler(plans()[kind], 5, 16, seed=3)
    whole = list(sampler)
    sampler.set_epoch(0)
    list(islice(sampler, 20))
    assert list(sampler) == whole
    sampler.set_epoch(1)
    later = list(sampler)
    fresh = EpochSampler(plans()[kind], 5, 16, seed=3)
    fresh.set_epoch(1)
    assert list(fresh) == later != whole


def test_epochs_are_what_the_endless_sampler_goes_through():
    pids, views = people(*[(5, 5)] * 8)
    endless = list(islice(EndlessViewBalancedSampler(pids, views, 16, 4, seed=5, rank=1, world_size=2), 3 * 7 * 8))
    plan = ViewBalancedIdentities(pids, views, 16, 4, 2)
    sampler, found = EpochSampler(plan, 7, 8, seed=5, rank=1, world_size=2), []
    for number in range(3):
        sampler.set_epoch(number)
        found += sampler
    assert found == endless


def test_random_identities_go_through_everybodys_images_in_groups():
    pids = [0] * 9 + [1] * 8 + [2] * 4 + [3] * 2
    plan = RandomIdentities(pids, 8, 4)  # 2 + 2 + 1 + 1 groups, two a batch
    for seed in range(20):
        first = next(plan.stream(seed))
        assert len({pids[i] for i in first}) == 2
        seen = Counter()
        for batch in islice(plan.stream(seed), 2):  # a round has two batches at least, whatever is drawn
            assert set(Counter(pids[i] for i in batch).values()) == {4}
            seen.update(batch)
        assert all(seen[i] <= 1 for i in range(21))  # only the last person's two images have to come again


def test_random_identities_show_those_with_many_images_more_often():
    pids = [0] * 40 + [1] * 40 + [2] * 40 + [3] * 4 + [4] * 4
    seen = Counter(pids[i] for batch in islice(RandomIdentities(pids, 8, 4).stream(0), 300) for i in batch)
    assert min(seen[0], seen[1], seen[2]) > 3 * max(seen[3], seen[4]) > 0


def test_random_identities_that_never_fill_a_batch_of_all_processes():
    pids = [pid for pid in range(4) for _ in range(4)]  # four groups: one batch of a process of 16
    RandomIdentities(pids, 32, 8, processes=2)  # each draws two of four
    with pytest.raises(InputError, match="a batch of 32 with 4 images each is more than 4 identities fill"):
        RandomIdentities(pids, 32, 4, processes=2)
    RandomIdentities([*pids, *pids], 32, 4, processes=2)  # twice as many images


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
    with pytest.raises(InputError, match=words):
        RandomIdentities(pids, batch, per_identity, world_size)
