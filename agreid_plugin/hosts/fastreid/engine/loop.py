"""The host's trainer with a loop that can be left after any step and entered there again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from fastreid.engine import DefaultTrainer
from fastreid.utils import comm
from fastreid.utils.events import EventStorage

from agreid_plugin.data.rng import restore_random_state
from agreid_plugin.engine.checkpoints import keep_last, remove_leavings
from agreid_plugin.engine.signals import Interruption, agreed
from agreid_plugin.errors import InputError, Stopped
from agreid_plugin.hosts.fastreid.engine import checkpoints

_logger = logging.getLogger("fastreid.train")


class ResumableTrainer(DefaultTrainer):
    """`DefaultTrainer` that goes on exactly where a checkpoint was written, and saves one when it is asked to stop.

    Attributes:
        epochs_done: epochs that have ended, evaluation apart.
        metric: the last number that selects the best model.
        best_metric: the highest of them.
        interruption: tells of signals.
    """

    def __init__(self, cfg):
        self.metric = self.best_metric = -1.0
        self.start_iter = self.epochs_done = 0
        self.random_states: list[dict[str, Any]] = []
        self.interruption = Interruption()
        self._saved_at = (-1, -1)
        self._finished = False
        super().__init__(cfg)
        if self.grad_scaler is not None:
            self.checkpointer.checkpointables["grad_scaler"] = self.grad_scaler

    def resume(self) -> bool:
        """Take over the run in `OUTPUT_DIR`, if there is one that has written a checkpoint."""
        folder = Path(self.cfg.OUTPUT_DIR)
        if comm.is_main_process():
            remove_leavings(folder)
        found = checkpoints.read_last(folder)
        checkpoints.require_same(found)
        if found is None:
            return False
        _logger.info("resumed from %s", found[0])
        checkpoints.restore(self, found[1])
        loader = self._trainer.data_loader
        loader.batch_sampler.start = self.start_iter
        self._trainer._data_loader_iter = iter(loader)
        return True

    def save(self, *names: str) -> None:
        """Write checkpoints of this moment, with all that the run needs.

        Every process has to ask; the names are the main one's.
        """
        state = checkpoints.run_state(self)
        self._saved_at = (self.epochs_done, self.iter)  # in all processes, which have to agree on what is left to do
        if not comm.is_main_process():
            return
        for name in names:
            written = self.checkpointer.save(name, **state, metric=self.metric, best_metric=self.best_metric)
            self._finished |= written and name == checkpoints.FINAL
        keep_last(checkpoints.numbered(Path(self.cfg.OUTPUT_DIR)), self.cfg.SOLVER.KEEP_CHECKPOINTS)

    def run(self) -> None:
        """Train from where the run stands to its end.

        Raises:
            Stopped: a signal asked for it; a checkpoint is written.
            InputError: the final checkpoint could not be written.
        """
        self.iter, self.epochs_done = self.start_iter, self.start_epoch
        within = self.start_iter - self.start_epoch * self.iters_per_epoch
        _logger.info("Starting training from epoch %d%s", self.start_epoch, f", iteration {within}" if within else "")
        with EventStorage(self.start_iter) as self.storage, self.interruption.deferred():
            try:
                self.before_train()
                if len(self.random_states) == comm.get_world_size():
                    restore_random_state(self.random_states[comm.get_rank()])
                for epoch in range(self.start_epoch, self.max_epoch):
                    self.epoch = epoch
                    self._run_epoch()
            except Exception:
                _logger.exception("Exception during training:")
                raise
            finally:
                self.after_train()
        if comm.is_main_process() and not self._finished:
            raise InputError(
                f"{self.cfg.OUTPUT_DIR}: the final checkpoint was not written; make room and continue with --resume"
            )

    def after_train(self) -> None:
        """End the hooks, with the last step that was made as the last one told of."""
        self.storage.iter = self.iter - 1
        for hook in self._hooks:
            hook.after_train()

    def _run_epoch(self) -> None:
        self.before_epoch()
        end, every = (self.epoch + 1) * self.iters_per_epoch, self.cfg.SOLVER.CHECKPOINT_ITERS
        while self.iter < end:
            self._stop_if_asked()
            self.before_step()
            self.run_step()
            self.after_step()
            self.iter += 1
            if every and self.iter % every == 0 and self.iter < end:
                self.save(self._name())
        self._stop_if_asked()
        self.epochs_done = self.epoch + 1
        self.after_epoch()

    def _stop_if_asked(self) -> None:
        number = agreed(self.interruption.asked)
        if number is None:
            return
        if self._saved_at != (self.epochs_done, self.iter):
            self.save(self._name())
        comm.synchronize()  # a process that has gone would have its launcher end the one that writes
        raise Stopped(number)

    def _name(self) -> str:
        return checkpoints.name_of(self.epochs_done, self.iter - self.epochs_done * self.iters_per_epoch)
