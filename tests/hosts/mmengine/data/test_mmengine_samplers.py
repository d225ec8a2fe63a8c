"""Identity samplers and workers' random numbers in mmengine's loaders."""

import random
from collections import Counter

import numpy as np
import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.registry import DATA_SAMPLERS, FUNCTIONS
from mmengine.runner import Runner
from torch.utils.data import DataLoader, Dataset

from agreid_plugin.data.rng import random_state, restore_random_state
from agreid_plugin.data.samplers import EndlessViewBalancedSampler
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.data import samplers

KINDS = ("agreid_plugin.ViewBalancedIdentitySampler", "agreid_plugin.IdentitySampler")
both_kinds = pytest.mark.parametrize("kind", KINDS)


class People(BaseDataset):
    """Six people with five images from each view."""

    def load_data_list(self):
        return [{"gt_label": pid, "view": image % 2} for pid in range(6) for image in range(10)]


class Draws(Dataset):
    """What each of the three generators draws for an image."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return random.random(), float(np.random.rand()), float(torch.rand(()))


def build(kind, dataset=None, **options):
    of_runner = {"dataset": dataset or People(serialize_data=False), "seed": 3}
    return DATA_SAMPLERS.build({"type": kind, "batch_size": 8, "per_identity": 4, **of_runner, **options})


def as_process(monkeypatch, rank, world_size):
    monkeypatch.setattr(samplers, "get_rank", lambda: rank)
    monkeypatch.setattr(samplers, "get_world_size", lambda: world_size)


@both_kinds
def test_a_loader_of_the_runner_gets_whole_batches(kind):
    options = {"batch_size": 8, "sampler": {"type": kind, "batch_size": 8, "per_identity": 4}}
    loader = Runner.build_dataloader({**options, "num_workers": 0, "dataset": People(lazy_init=True)}, seed=3)
    assert len(loader) == 60 // 8
    for number in range(3):
        loader.sampler.set_epoch(number)
        batches = list(loader)
        assert len(batches) == len(loader)
        for batch in batches:
            assert list(Counter(batch["gt_label"]).values()) == [4, 4]
            if "View" in kind:
                assert sum(batch["view"]) == 4


@both_kinds
@pytest.mark.parametrize("serialize", [True, False])
def test_processes_take_parts_of_the_same_batches(kind, serialize, monkeypatch):
    dataset, parts = People(serialize_data=serialize), []
    for rank in range(2):
        as_process(monkeypatch, rank, 2)
        sampler = build(kind, dataset)
        assert len(sampler) == 60 // 16 * 8
        sampler.set_epoch(4)
        parts.append(list(sampler))
    as_process(monkeypatch, 0, 1)
    if "View" in kind:
        whole = build(kind, dataset, batch_size=16)
        whole.set_epoch(4)
        joined = [index for start in range(0, 24, 8) for part in parts for index in part[start : start + 8]]
        assert joined == list(whole)
    assert parts[0] != parts[1]


def test_epochs_go_on_as_fast_reids_do():
    dataset = People(serialize_data=False)
    infos = [dataset.get_data_info(index) for index in range(60)]
    pids, views = [info["gt_label"] for info in infos], [info["view"] for info in infos]
    endless = iter(EndlessViewBalancedSampler(pids, views, 8, 4, seed=3))
    sampler = build(KINDS[0], dataset)
    for number in range(3):
        sampler.set_epoch(number)
        assert list(sampler) == [next(endless) for _ in range(7 * 8)]


@both_kinds
def test_without_a_seed_one_is_drawn(kind):
    np.random.seed(0)
    drawn = [list(build(kind, seed=None)) for _ in range(2)]
    assert drawn[0] != drawn[1]
    np.random.seed(0)
    assert list(build(kind, seed=None)) == drawn[0]


@both_kinds
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 64}, "the training set has 60 images, less than one batch: batch_size is 64"),
        ({"batch_size": 10}, "a batch of 10 does not divide into 4 images an identity"),
        ({"batch_size": 32}, "a batch of 32 with 4 images each takes 8 identities, there are 6"),
        ({"batch_size": 0}, "a batch of 0 does not divide"),
        ({"per_identiti": 4}, "'per_identiti' unknown .did you mean per_identity"),
    ],
)
def test_batches_that_cannot_be_filled(kind, options, words):
    with pytest.raises(InputError, match=words):
        build(kind, **options)


@both_kinds
def test_images_without_an_identity(kind):
    dataset = People(serialize_data=False)
    dataset.data_list[5].pop("gt_label")
    with pytest.raises(InputError, match="goes by identities, but images of the dataset have no gt_label"):
        build(kind, dataset)


def loader_of_runner() -> DataLoader:
    return Runner.build_dataloader(
        {
            "dataset": Draws(),
            "sampler": {"type": "DefaultSampler", "shuffle": False},
            "batch_size": 2,
            "num_workers": 2,
            "worker_init_fn": {"type": "agreid_plugin.seed_worker"},
        },
        seed=0,
    )


def drawn(seed: int, epochs: int) -> list[list]:
    """What two workers draw in each epoch of a run that starts with a seed."""
    torch.manual_seed(seed)
    loader = loader_of_runner()
    return [list(loader) for _ in range(epochs)]


def test_epochs_and_workers_draw_different_numbers_and_a_seed_repeats_them():
    first = drawn(0, 2)
    numbers = [number for epoch in first for batch in epoch for draws in batch for number in draws]
    assert len(set(numbers)) == len(numbers) == 2 * 4 * 3
    assert drawn(0, 2) == first
    assert drawn(1, 1) != first[:1]


def test_a_resumed_run_repeats_the_epochs_that_it_lacks():
    whole = drawn(0, 2)
    torch.manual_seed(0)
    loader = loader_of_runner()
    list(loader)
    state = torch.get_rng_state()
    torch.manual_seed(7)
    torch.set_rng_state(state)
    assert list(loader) == whole[1]


def test_every_process_of_a_run_draws_its_own(monkeypatch):
    state, found = random_state(), []
    for rank in ("0", "1"):
        torch.manual_seed(5)
        monkeypatch.setenv("RANK", rank)
        FUNCTIONS.get("agreid_plugin.seed_worker")(0)
        found += Draws()[0]
    restore_random_state(state)
    assert len(set(found)) == 6
