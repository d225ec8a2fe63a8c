"""The host's hooks with their faults mended, and one that reports the step of a process."""

from __future__ import annotations

from collections.abc import Callable

from fastreid.engine import hooks
from fastreid.utils.events import EventWriter, get_event_storage

from agreid_plugin.engine.distributed.process_group import report_step
from agreid_plugin.hosts.fastreid.engine.loop import BEST, FINAL, name_of


class StepReporter(hooks.HookBase):
    """Reports the step of this process to the others."""

    def before_step(self) -> None:
        """Report the step."""
        report_step(self.trainer.iter)


class EvalHook(hooks.EvalHook):
    """Evaluates every `eval_period` epochs and after the last one; with 0 after the last one only.

    The host divides by 0, and evaluates at the end of training, when the last checkpoint is written without its metric.
    """

    def after_epoch(self) -> None:
        """Evaluate if it is time."""
        epoch = self.trainer.epoch + 1
        if epoch == self.trainer.max_epoch or (self._period and epoch % self._period == 0):
            self._do_eval()

    def after_train(self) -> None:
        """Let go of the trainer."""
        del self._func


class PeriodicCheckpointer(hooks.HookBase):
    """Saves every `period` epochs (0: at the end only) in all processes; the best model stays the best after a resume.

    The host's hook runs in the main process only, which does not know the random numbers of the others.
    """

    def __init__(self, period: int):
        self._period = period

    def after_epoch(self) -> None:
        """Save what is due."""
        trainer = self.trainer
        last = trainer.epochs_done == trainer.max_epoch
        if not last and (not self._period or trainer.epochs_done % self._period):
            return
        latest = get_event_storage().latest()  # our evaluation gives one number, however many test sets there are
        trainer.metric = latest["metric"][0] if "metric" in latest else trainer.metric
        names = [FINAL if last else name_of(trainer.epochs_done, 0)]
        if trainer.metric > trainer.best_metric:
            trainer.best_metric = trainer.metric
            names.insert(0, BEST)  # the other one has to be the last for a run that is killed in between
        trainer.save(*names)


class PeriodicWriter(hooks.PeriodicWriter):
    """Opens its writers when training starts, and writes once more before it closes them."""

    def __init__(self, open_writers: Callable[[], list[EventWriter]], period: int):
        super().__init__([], period)
        self._open_writers = open_writers

    def before_train(self) -> None:
        """Open the writers."""
        self._writers = self._open_writers()

    def after_train(self) -> None:
        """Write what is new and close."""
        for writer in self._writers:
            writer.write()
        super().after_train()
