"""Random numbers that follow from a place in a run, and atomic file writes."""

import itertools
import pickle
import random

import numpy as np
import pytest
import torch

from agreid_plugin.data.atomic_write import atomic_write, remove_drafts
from agreid_plugin.data.rng import IsolatedNumpyRNG, random_state, restore_random_state, seeded
from agreid_plugin.data.samplers import SeededBatches, SeededIndex, seeded_getitem


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_draws_follow_from_the_seed_alone_and_leave_no_trace():
    state = random_state()
    untouched = [draw() for _ in range(2)]
    restore_random_state(state)
    first = draw()
    with seeded(1, 2):
        one = draw()
    second = draw()
    with seeded(1, 2):
        again = draw()
    with seeded(2, 1):
        other = draw()
    assert [first, second] == untouched
    assert one == again
    assert not set(one) & set(other)


def test_the_trace_is_gone_after_an_error_too():
    state = random_state()
    expected = draw()
    restore_random_state(state)
    with pytest.raises(LookupError), seeded(5):
        raise LookupError
    assert draw() == expected


def test_a_sampler_that_seeds_the_global_generator_is_alone_with_it():
    np.random.seed(7)
    expected = np.random.rand(2).tolist()
    np.random.seed(7)
    own, found = IsolatedNumpyRNG(), [np.random.rand()]
    with own:
        np.random.seed(1)
        first = np.random.rand()
    found.append(np.random.rand())
    with own:
        second = np.random.rand()
    np.random.seed(1)
    assert found == expected
    assert [first, second] == np.random.rand(2).tolist()


def test_a_numbered_index_is_an_index_and_travels():
    index = pickle.loads(pickle.dumps(SeededIndex(2, (0, 1, 5))))
    assert index == 2
    assert ["a", "b", "c"][index] == "c"
    assert index.seed == (0, 1, 5)


class Noise:
    """A dataset of noise."""

    @seeded_getitem
    def __getitem__(self, index: int) -> tuple[int, list[float]]:
        return index, draw()


def test_batches_go_on_at_any_place():
    whole, late = (SeededBatches(itertools.cycle(range(5)), 3, seed=4, rank=1) for _ in range(2))
    late.sampler, late.start = itertools.cycle(range(5)), 6
    expected, found = (list(itertools.islice(each, *part)) for each, part in ((whole, (6, 8)), (late, (2,))))
    assert found == expected
    noise = Noise()
    read = [[noise[index] for batch in batches for index in batch] for batches in (expected, found)]
    assert read[0] == read[1]
    assert len({str(drawn) for _, drawn in read[0]}) == 6


def test_another_process_draws_other_numbers():
    noise, first = Noise(), [next(iter(SeededBatches([0], 1, rank=rank)))[0] for rank in range(2)]
    assert noise[first[0]] != noise[first[1]]


def test_a_file_is_there_in_full_or_not_at_all(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(TypeError), atomic_write(path) as draft:
        draft.open("w").writelines(["half", None])
    assert path.read_text() == "old"
    with atomic_write(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
    assert [each.read_text() for each in tmp_path.iterdir()] == ["new"]


def test_drafts_of_killed_processes_are_removed_and_nothing_else(tmp_path):
    kept = {".a.pth", "a.pth.12", ".a.txt.12", "a.pth"}
    for name in {*kept, ".a.pth.12", ".b.json.7"}:
        (tmp_path / name).touch()
    remove_drafts(tmp_path, r".*\.(pth|json)")
    assert {path.name for path in tmp_path.iterdir()} == kept
