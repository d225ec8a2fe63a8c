"""mmengine's loop of epochs with exact resume: it can be left after any iteration and entered there again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import all_gather_object, barrier, get_rank, get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import nn
from torch.utils.data import DataLoader, Dataset

from agreid_plugin.data.rng import random_state, restore_random_state, seeded
from agreid_plugin.data.samplers import SeededIndex, seeded_getitem
from agreid_plugin.engine.checkpoints import keep_last
from agreid_plugin.engine.signals import Interruption, agree_on_signal, ignore_signals_in_worker
from agreid_plugin.errors import Stopped, require_int
from agreid_plugin.hosts.mmengine.engine.checkpoints import mark
from agreid_plugin.hosts.mmengine.registry import HOOKS, LOOPS

KEPT_WITHIN = 3
"""Checkpoints within epochs that are kept; an uninterrupted run writes none."""
VALIDATED = "epoch_validated"  # a name that began with `val` would be among the numbers of every validation
"""Where the message hub has the last epoch that was validated, or that validation had begun of."""


class _DrawnByNumber(Dataset):
    """A dataset that draws what follows from numbered indices."""

    def __init__(self, dataset: Dataset):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    @seeded_getitem
    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(index)]


class _NumberedEpoch:
    """The batches of an epoch with numbered indices, from batch `start` on.

    They are drawn in one go and from the seed and the epoch alone, whatever generator the sampler takes.
    """

    def __init__(self, batches: Iterable[list[int]], seed: int):
        self.batches, self.seed, self.epoch, self.start = batches, seed, 0, 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        with seeded(self.seed, self.epoch):
            drawn = [list(batch) for batch in self.batches]
        for number, batch in enumerate(drawn[self.start :], self.start):
            place = (self.seed, get_rank(), self.epoch, number)
            yield [SeededIndex(index, (*place, within)) for within, index in enumerate(batch)]


@LOOPS.register_module()
class ResumableEpochLoop(EpochBasedTrainLoop):
    """`EpochBasedTrainLoop` that goes on at the iteration of a checkpoint, and saves one when a signal ends it.

    What an image's augmentation draws follows from its place in the run, so that it needs no state of data workers. A
    validation that was due at the checkpoint of an epoch, and had not been finished, is made up for.
    """

    draws_by_number = True

    def __init__(self, runner: Any, dataloader: DataLoader | dict, *args: Any, **options: Any):
        super().__init__(runner, dataloader, *args, **options)
        require_int("train_cfg.max_epochs", self._max_epochs)
        require_int("train_cfg.val_interval", self.val_interval)
        self._numbered = _NumberedEpoch(self.dataloader.batch_sampler, runner.seed)
        self._batches = _like(self.dataloader, self._numbered)
        self._interruption = getattr(runner, "interruption", None) or Interruption()

    def run(self) -> nn.Module:
        """Train from where the run stands to its end.

        Raises:
            Stopped: a signal asked for it; a checkpoint is written.
        """
        with self._interruption.deferred():
            self.runner.call_hook("before_train")
            if self._epoch and self._iter == self._epoch * len(self.dataloader):
                self._validate()
            while self._epoch < self._max_epochs and not self.stop_training:
                self.run_epoch()
                self._validate()
            self.runner.call_hook("after_train")
        return self.runner.model

    def _validate(self) -> None:
        self._decide_current_val_interval()
        due = self._epoch % self.val_interval == 0 or self._epoch == self._max_epochs
        known = self.runner.message_hub.runtime_info.get(VALIDATED) == self._epoch
        if self.runner.val_loop is not None and self._epoch >= self.val_begin and due and not known:
            self.runner.message_hub.update_info(VALIDATED, self._epoch)  # a checkpoint of the best model tells it
            self.runner.val_loop.run()

    def run_epoch(self) -> None:
        """Iterate over what is left of an epoch."""
        self.runner.call_hook("before_train_epoch")
        self.runner.model.train()
        self._numbered.epoch = self._epoch
        self._numbered.start = self._iter - self._epoch * len(self.dataloader)
        if self._numbered.start < len(self.dataloader):
            self._run_batches()
        self._stop_if_asked()
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1

    def _run_batches(self) -> None:
        self._stop_if_asked()
        for number, batch in enumerate(self._batches, self._numbered.start):
            self.run_iter(number, batch)
            if number + 1 < len(self.dataloader):
                self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        number = agree_on_signal(self._interruption.asked)
        accumulated = getattr(self.runner.optim_wrapper, "_accumulative_counts", 1)
        if number is None or self._iter % accumulated:  # gradients that are being gathered are in no checkpoint
            return
        save_within_epoch(self.runner)
        barrier()  # a process that has gone would have its launcher end the one that writes
        raise Stopped(number)


def _begin(also: Callable[[int], None] | None, worker: int) -> None:
    ignore_signals_in_worker(worker)
    if also is not None:
        also(worker)


def _like(loader: DataLoader, batches: _NumberedEpoch) -> DataLoader:
    """Return a loader with other batches, whose workers leave signals to this process."""
    return DataLoader(
        _DrawnByNumber(loader.dataset),
        batch_sampler=batches,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=partial(_begin, loader.worker_init_fn),
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator(),  # the run's own is left alone
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


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


def save_within_epoch(runner: Runner) -> None:
    """Write a checkpoint of this moment between two iterations; all processes have to ask."""
    states = all_gather_object(random_state())
    for hook in runner.hooks:
        if isinstance(hook, ExactResume):
            hook.keep(runner.epoch, states)
    folder = Path(runner.work_dir)
    path = folder / f"iter_{runner.iter}.pth"
    runner.save_checkpoint(str(folder), path.name, meta={"epoch": runner.epoch, "iter": runner.iter})
    if is_main_process() and path.exists():
        mark(folder, path)
        within = sorted(folder.glob("iter_*.pth"), key=lambda each: int(re.sub(r"\D", "", each.stem) or 0))
        keep_last(within, KEPT_WITHIN)
