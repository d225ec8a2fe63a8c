"""Identity samplers for mmengine's loaders, and random numbers for the loaders' workers."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_rank, get_world_size, sync_random_seed
from torch.utils.data import Dataset

from agreid_plugin.data.samplers import EpochSampler, RandomIdentities, ViewBalancedIdentities
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.config.arguments import check_arguments
from agreid_plugin.hosts.mmengine.registry import DATA_SAMPLERS, FUNCTIONS
from agreid_plugin.types import UNKNOWN

PER_IDENTITY = 4
"""Images of a person in a batch, by default."""


@DATA_SAMPLERS.register_module()
@check_arguments()
class ViewBalancedIdentitySampler(EpochSampler):
    """Batches of P identities with K images each, half of the K from each view where a person has both.

    See `ViewBalancedIdentities`. An epoch has as many batches as the images fill, and goes on where the one before
    ended.

    Args:
        dataset: gives the `gt_label` and the `view` of each image by `get_data_info`.
        batch_size: images in a batch of one process, as the loader has it.
        per_identity: K.
        seed: the same in all processes; by default one is drawn and shared.
    """

    def __init__(self, dataset: Dataset, batch_size: int, per_identity: int = PER_IDENTITY, seed: int | None = None):
        infos, epochs = _read_infos(dataset, type(self).__name__), _epoch_arguments(dataset, batch_size, seed)
        views = [info.get("view", UNKNOWN) for info in infos]
        pids, total = [info["gt_label"] for info in infos], batch_size * epochs["world_size"]
        super().__init__(ViewBalancedIdentities(pids, views, total, per_identity, epochs["world_size"]), **epochs)


@DATA_SAMPLERS.register_module()
@check_arguments()
class IdentitySampler(EpochSampler):
    """Batches of P identities with K images each, as fast-reid's NaiveIdentitySampler draws them.

    See `RandomIdentities`. An epoch has as many batches as the images fill, and goes on where the one before ended.

    Args:
        dataset: gives the `gt_label` of each image by `get_data_info`.
        batch_size: images in a batch of one process, as the loader has it.
        per_identity: K.
        seed: the same in all processes; by default one is drawn and shared.
    """

    def __init__(self, dataset: Dataset, batch_size: int, per_identity: int = PER_IDENTITY, seed: int | None = None):
        infos, epochs = _read_infos(dataset, type(self).__name__), _epoch_arguments(dataset, batch_size, seed)
        pids, total = [info["gt_label"] for info in infos], batch_size * epochs["world_size"]
        super().__init__(RandomIdentities(pids, total, per_identity, epochs["world_size"]), **epochs)


def _read_infos(dataset: Dataset, sampler: str) -> list[dict[str, Any]]:
    infos = [dataset.get_data_info(index) for index in range(len(dataset))]
    if any(info.get("gt_label") is None for info in infos):
        raise InputError(f"{sampler} goes by identities, but images of the dataset have no gt_label: is it a test set?")
    return infos


def _epoch_arguments(dataset: Dataset, batch_size: int, seed: int | None) -> dict[str, Any]:
    """Return the arguments of `EpochSampler` but for the plan."""
    rank, world_size = get_rank(), get_world_size()
    batches = len(dataset) // max(batch_size * world_size, 1)
    if not batches:
        processes = f" in each of {world_size} processes" if world_size > 1 else ""
        raise InputError(
            f"the training set has {len(dataset)} images, less than one batch: batch_size is {batch_size}{processes}"
        )
    seed = sync_random_seed() if seed is None else seed
    return {"batches": batches, "batch_size": batch_size, "seed": seed, "rank": rank, "world_size": world_size}


@FUNCTIONS.register_module()
def seed_worker(worker_id: int) -> None:  # noqa: ARG001 - the loader passes it; torch's seed has it already
    """Seed a data worker from torch's seed of this worker and epoch, each process of a run differently.

    mmengine's own function gives every epoch the same random numbers. Here an epoch's come from the main process's
    generator when the epoch begins, so that a run resumed with its state repeats them; workers that persist are seeded
    once, and their later epochs cannot be repeated.
    """
    rank = get_rank() or int(os.environ.get("RANK", 0))  # a spawned worker is in no group
    seed = int(np.random.SeedSequence([torch.initial_seed(), rank]).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
