"""Whether the training set fills the batches of every process."""

from __future__ import annotations

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.data import loaders
from agreid_plugin.hosts.fastreid.data.text import learned_items


def check_processes(cfg, world_size: int) -> None:
    """Check that all processes can fill their batches, before any is started and anything is written."""
    _check_divisible(cfg, world_size)
    items = learned_items(cfg, loaders.training_items(cfg)[0])
    check_batches(cfg, len(items), len({item[1] for item in items}), world_size)


def check_batches(cfg, images: int, identities: int, world_size: int) -> None:
    """Check that every process can fill its batches from the training set."""
    batch, per_identity = cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_INSTANCE
    _check_divisible(cfg, world_size)
    if images < batch:
        raise InputError(
            f"the training set has {images} images, less than one batch: SOLVER.IMS_PER_BATCH is {batch}; lower it"
        )
    if identities < 2:
        raise InputError(f"the training set has {identities} identity; training needs two or more; see DATASETS.NAMES")
    if "Identity" in cfg.DATALOADER.SAMPLER_TRAIN:
        _check_identities(cfg.DATALOADER.SAMPLER_TRAIN, identities, batch, world_size, per_identity)


def _check_divisible(cfg, world_size: int) -> None:
    if cfg.SOLVER.IMS_PER_BATCH % world_size:
        raise InputError(
            f"SOLVER.IMS_PER_BATCH {cfg.SOLVER.IMS_PER_BATCH} does not divide by the {world_size} processes; make it a "
            f"multiple of {world_size}"
        )


def _check_identities(sampler: str, identities: int, batch: int, world_size: int, per_identity: int) -> None:
    per_process = batch // world_size
    if per_process % per_identity:
        raise InputError(
            f"{sampler}: a process's batch of {per_process} (SOLVER.IMS_PER_BATCH {batch} over {world_size}) does not "
            f"divide by DATALOADER.NUM_INSTANCE {per_identity}; make the batch a multiple of "
            f"{world_size * per_identity}"
        )
    needed = batch // per_identity
    if identities < needed:
        raise InputError(
            f"{sampler}: a batch of {batch} with {per_identity} images each takes {needed} identities, the training "
            f"set has {identities}; lower SOLVER.IMS_PER_BATCH or raise DATALOADER.NUM_INSTANCE"
        )
