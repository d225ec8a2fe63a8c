"""Small hooks of training: running statistics that all processes share, and soft labels that grow."""

from __future__ import annotations

import math
from typing import Any

from mmengine.dist import broadcast, get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner

from agreid_plugin.errors import InputError, require_within
from agreid_plugin.hosts.mmengine.engine.runner import method_of
from agreid_plugin.hosts.mmengine.registry import HOOKS


@HOOKS.register_module()
class SyncBuffers(Hook):
    """Gives every process the main one's running statistics, which checkpoints keep, before it validates or tests.

    mmengine's SyncBuffersHook leaves those of averaged weights (EMA) as they are, and each process tests with its own.
    """

    priority = "BELOW_NORMAL"  # behind EMAHook, which puts averaged weights in for validation

    def after_train_epoch(self, runner: Runner) -> None:
        """Share what the epoch gathered, before a checkpoint is written."""
        self._share(runner)

    def before_val_epoch(self, runner: Runner) -> None:
        """Share what validation will use."""
        self._share(runner)

    def before_test_epoch(self, runner: Runner) -> None:
        """Share what the test will use."""
        self._share(runner)

    @staticmethod
    def _share(runner: Runner) -> None:
        for buffer in runner.model.buffers() if get_world_size() > 1 else ():
            broadcast(buffer)


@HOOKS.register_module()
class SoftLabelRamp(Hook):
    """Has the share of TAG-CLIP's soft labels grow from 0, iteration by iteration; a resumed run goes on there.

    Args:
        epochs: in which it grows.
    """

    def __init__(self, epochs: float = 1.0):
        self.epochs = require_within("SoftLabelRamp: epochs", epochs, 0, math.inf)
        self._share: float | None = None

    def before_train(self, runner: Runner) -> None:
        """Learn what share it grows to, the model's `soft_label`."""
        if self._share is None:
            self._share = getattr(method_of(runner), "soft_label", None)
        if self._share is None:
            raise InputError(f"SoftLabelRamp: {type(method_of(runner)).__name__} has no soft labels; remove the hook")

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:  # noqa: ARG002
        """Set the share of this iteration."""
        iterations = self.epochs * len(runner.train_dataloader)
        passed = min(runner.iter / iterations, 1.0) if iterations else 1.0
        method_of(runner).soft_label = self._share * passed
        runner.message_hub.update_scalar("train/soft_label", self._share * passed)

    def after_train(self, runner: Runner) -> None:
        """Leave the model with the share that it was built with."""
        method_of(runner).soft_label = self._share
