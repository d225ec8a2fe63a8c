"""The guard against training that learns nothing, in the host's hooks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from fastreid.engine import hooks
from fastreid.evaluation import inference_context
from fastreid.utils import comm
from fastreid.utils.events import get_event_storage
from torch import Tensor

from agreid_plugin.engine.guard import CollapseWatch, WeightWatch
from agreid_plugin.engine.step_watch import NonFiniteLossError, StepWatch, accused, examined
from agreid_plugin.hosts.fastreid.data.batches import from_host
from agreid_plugin.hosts.fastreid.engine.distributed import plain
from agreid_plugin.hosts.fastreid.engine.loss_logging import Terms


class LearningGuard(hooks.HookBase):
    """Stops a run that learns nothing, with the reason in one line.

    It stops after the first optimizer step if that changed no weight: fast-reid on torch >= 2 trains for days that way
    without an error; so do a learning rate of zero and a frozen model. It stops at a loss that is NaN or infinite; a
    step that a loss scaler skips is not one. It stops when the features of a training batch, made as for a test at the
    end of an epoch, are alike twice in a row; see `CollapseWatch`.
    """

    def __init__(self) -> None:
        self.step: StepWatch | None = None

    def before_train(self) -> None:
        """Look at the model and the optimizer."""
        self._weights = WeightWatch(
            self.trainer.model,
            self.trainer.optimizer,
            rate_key="SOLVER.BASE_LR",
            other_tensors="fast-reid's flat buffer on torch >= 2",
        )
        self._done = False
        self._collapse = CollapseWatch()
        self.step = StepWatch(plain(self.trainer.model))
        self.step.start()
        self.trainer._trainer.guard = self

    def before_step(self) -> None:
        """Keep the weights, until a step has been judged."""
        if not self._done:
            self._weights.keep()
            self._scale = self._loss_scale()

    def after_step(self) -> None:
        """Compare."""
        if self._done or self._step_was_idle():
            return
        get_event_storage().put_scalar("changed_weights", self._weights.require_change(), smoothing_hint=False)
        self._done = True

    def after_epoch(self) -> None:
        """Look at the features of the last batch, once warm-up is over and while there is something left to stop."""
        warm, last = self.trainer.iter >= self.trainer.warmup_iters, self.trainer.epoch + 1 == self.trainer.max_epoch
        if self.step.inputs is not None and warm and not last:
            self._collapse.judge(comm.all_gather(self._collapse.look(self._features())))

    def after_train(self) -> None:
        """Let go of the model; also after an error before training."""
        if self.step is not None:
            self.step.stop()
        self.trainer._trainer.guard = None

    def _features(self) -> Tensor:
        ((inputs, *_), _), model = self.step.inputs, plain(self.trainer.model)
        images = {name: value for name, value in inputs.items() if name != "tokens"}  # sentences would be read in vain
        with inference_context(model), torch.no_grad():
            return model(images)

    def diagnosed(self, iteration: int, everywhere: Sequence[Terms]) -> NonFiniteLossError:
        """Return the error for losses that are not finite, the same in all processes."""
        process, told = accused(iteration, everywhere)
        found = self._examined() if comm.get_rank() == process else ""
        return NonFiniteLossError(f"{told}; {comm.all_gather(found)[process]}")

    def _examined(self) -> str:
        ((inputs, *_), _) = self.step.inputs
        batch = from_host(inputs)
        return examined(plain(self.trainer.model), batch.images, batch.paths)

    def _loss_scale(self) -> float:
        scaler = self.trainer.grad_scaler
        return scaler.get_scale() if scaler is not None else 1.0

    def _step_was_idle(self) -> bool:
        """Tell whether the step was meant to change nothing: the scaler skipped it, or warm-up starts at zero."""
        skipped = self._loss_scale() < self._scale
        warming_up = self.trainer.iter < self.trainer.warmup_iters
        return skipped or (warming_up and self._weights.rates() == {0.0})
