"""Several processes in mmengine: the step that each is at, and batches that can be filled."""

from __future__ import annotations

from typing import Any

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from agreid_plugin.engine.distributed.process_group import at_step
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.config.loading import type_name
from agreid_plugin.hosts.mmengine.data.samplers import PER_IDENTITY, IdentitySampler, ViewBalancedIdentitySampler

OURS = (IdentitySampler.__name__, ViewBalancedIdentitySampler.__name__)


class StepTold(Hook):
    """Says which step this process is at, for others that wait for it."""

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:  # noqa: ARG002
        """Say it."""
        at_step(runner.iter)


def check_batches(cfg: Config, world_size: int) -> None:
    """Check that several processes can fill their batches of identities, as many as the model is said to learn.

    That the training set has so many, `IdentityCheck` finds out. A model that does not say is left to the sampler.
    """
    sampler, found = cfg.train_dataloader.get("sampler"), (cfg.get("model") or {}).get("num_ids")
    if world_size == 1 or found is None or type_name(sampler) not in OURS:
        return
    batch, per_identity = sampler.get("batch_size", 0), sampler.get("per_identity", PER_IDENTITY)
    needed = batch * world_size // max(per_identity, 1)
    if found < needed:
        raise InputError(
            f"{type_name(sampler)}: {world_size} processes with a batch of {batch} and {per_identity} images each take "
            f"{needed} identities, the training set has {found}; lower batch_size or raise per_identity"
        )
