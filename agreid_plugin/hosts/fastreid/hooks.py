"""The host's hooks with their faults mended, and the guard against training that changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fastreid.engine import hooks
from fastreid.utils.events import EventWriter, get_event_storage

from agreid_plugin.errors import InputError


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


class PeriodicCheckpointer(hooks.PeriodicCheckpointer):
    """Saves every `period` epochs (0: at the end only); the best model stays the best after a resume."""

    def before_train(self) -> None:
        """Take over the best metric of the run that is resumed."""
        super().before_train()
        self.metric_name = "metric"  # our evaluation gives it under this name, however many test sets there are
        self.period = self.period or self.max_epoch
        self.best_metric = self.trainer.best_metric

    def step(self, epoch: int, **kwargs: float) -> None:
        """Save what is due after `epoch`, with the best metric so far for a later resume."""
        best = max(self.best_metric, kwargs["metric"])
        super().step(epoch, **kwargs, best_metric=best)


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


class LearningGuard(hooks.HookBase):
    """Stops a run whose first optimizer step changed no weight.

    fast-reid on torch >= 2 trains for days that way without an error; so do a learning rate of zero and a frozen model.
    """

    def __init__(self) -> None:
        self._before: dict[str, torch.Tensor] | None = None
        self._done = False

    def before_step(self) -> None:
        """Keep the weights, until a step has been judged."""
        if not self._done:
            self._before = {name: value.detach().cpu().clone() for name, value in self._trainable()}
            self._scale = self._loss_scale()

    def after_step(self) -> None:
        """Compare."""
        if self._done or self._step_was_idle():
            return
        changed = sum(not torch.equal(value.detach().cpu(), self._before[name]) for name, value in self._trainable())
        if not changed:
            raise InputError(f"the first optimizer step changed none of {len(self._before)} weights: {self._why()}")
        get_event_storage().put_scalar("changed_weights", changed, smoothing_hint=False)
        self._before, self._done = None, True

    def _trainable(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, value) for name, value in self.trainer.model.named_parameters() if value.requires_grad]

    def _loss_scale(self) -> float:
        scaler = self.trainer.grad_scaler
        return scaler.get_scale() if scaler is not None else 1.0

    def _step_was_idle(self) -> bool:
        """Tell whether the step was meant to change nothing: the scaler skipped it, or warm-up starts at zero."""
        skipped = self._loss_scale() < self._scale
        warming_up = self.trainer.iter < self.trainer.warmup_iters
        return skipped or (warming_up and self._rates() == {0.0})

    def _rates(self) -> set[float]:
        return {group["lr"] for group in self.trainer.optimizer.param_groups}

    def _why(self) -> str:
        trainable = self._trainable()
        if not trainable:
            return "all of them are frozen"
        if self._rates() == {0.0}:
            return "the learning rate is 0 (SOLVER.BASE_LR)"
        held = {id(value) for group in self.trainer.optimizer.param_groups for value in group["params"]}
        if not any(id(value) in held for _, value in trainable):
            return "the optimizer holds other tensors than the model's (fast-reid's flat buffer on torch >= 2)"
        if all(value.grad is None for _, value in trainable):
            return "no weight got a gradient"
        if all(not value.grad.any() for _, value in trainable if value.grad is not None):
            return "every gradient is 0"
        return "the gradients are there; look at the optimizer"
