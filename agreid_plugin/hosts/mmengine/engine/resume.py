"""Training that is resumed as if it had never stopped: the state of every random generator is in the checkpoint."""

from __future__ import annotations

from typing import Any

from mmengine.dist import all_gather_object, get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner

from agreid_plugin.data.rng import random_state, restore_random_state
from agreid_plugin.hosts.mmengine.registry import HOOKS

KEY = "random_states"
"""Where a checkpoint has them."""


@HOOKS.register_module()
class ExactResume(Hook):
    """Keeps the random states of all processes at the end of every epoch, and starts the next epoch from them.

    So a resumed run draws what an uninterrupted one would have, and validation, which draws numbers too and comes
    between two epochs of one but not of the other, has no influence on training. On the CPU the weights are equal bit
    by bit. Within an epoch that takes `ResumableEpochLoop`, too; mmengine's own loop begins the epoch anew. Gradients
    that are accumulated across the end of an epoch are in no checkpoint.
    """

    priority = "LOW"  # behind whatever draws numbers at the end of an epoch, before the checkpoint is written

    def __init__(self) -> None:
        self._kept: dict[str, Any] | None = None
        self._resumed = False
        self._seeds: tuple[int | None, int | None] = (None, None)

    def keep(self, epoch: int, states: list[dict[str, Any]]) -> None:
        """Keep the states of all processes for the next checkpoint, from which `epoch` is begun or gone on with."""
        self._kept = {"epoch": epoch, "states": states}

    def after_train_epoch(self, runner: Runner) -> None:
        """Keep the states."""
        self.keep(runner.epoch + 1, all_gather_object(random_state()))

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Put them into the checkpoint; within an epoch `save_within_epoch` alone has any kept."""
        if self._kept is not None:
            checkpoint[KEY] = self._kept

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Take them from the checkpoint, of whatever is not resumed, too."""
        self._kept = checkpoint.get(KEY)
        self._seeds = checkpoint.get("meta", {}).get("seed"), runner.seed

    def before_train(self, runner: Runner) -> None:
        """Say what the resumed run does not have from the one before."""
        self._resumed = runner.iter > 0
        if not self._resumed:
            self._kept = None  # weights were loaded, and a new run starts
            return
        before, now = self._seeds
        if before is not None and before != now:
            runner.logger.warning(
                "resumed with seed %s in place of %s: images come in another order than in an uninterrupted run; set "
                "randomness = dict(seed=%s)",
                now,
                before,
                before,
            )
        if _workers_live_on(runner):
            runner.logger.warning(
                "train_dataloader.persistent_workers: workers keep random numbers that no checkpoint has; set it False "
                "for a resumed run that equals an uninterrupted one"
            )

    def before_train_epoch(self, runner: Runner) -> None:
        """Go on from the states that the last epoch ended with."""
        kept, self._kept = self._kept, None
        usable = kept is not None and kept["epoch"] == runner.epoch and len(kept["states"]) == get_world_size()
        if usable:
            restore_random_state(kept["states"][get_rank()])
        elif self._resumed:
            runner.logger.warning("resumed with other random numbers than an uninterrupted run: %s", _why(kept, runner))
        self._resumed = False


def _workers_live_on(runner: Runner) -> bool:
    loader, by_number = runner.train_dataloader, getattr(runner.train_loop, "draws_by_number", False)
    return bool(loader.num_workers and loader.persistent_workers and not by_number)


def _why(kept: dict[str, Any] | None, runner: Runner) -> str:
    if kept is None:
        return "the checkpoint has none, it was saved within an epoch or without the hook ExactResume"
    if kept["epoch"] != runner.epoch:
        return f"the checkpoint's are of epoch {kept['epoch']}, the run goes on at {runner.epoch}"
    return f"the checkpoint's are of {len(kept['states'])} processes, this run has {get_world_size()}"
