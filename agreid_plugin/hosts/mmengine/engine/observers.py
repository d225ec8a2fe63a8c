"""The guard against training that learns nothing, as a hook of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.dist import all_gather_object, get_rank
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch import Tensor
from torch.optim import Optimizer

from agreid_plugin.engine.guard import CollapseWatch, WeightWatch
from agreid_plugin.engine.step_watch import NonFiniteLossError, StepWatch, accused, examined
from agreid_plugin.hosts.mmengine.data.batches import to_batch
from agreid_plugin.hosts.mmengine.engine.runner_utils import plain_model
from agreid_plugin.hosts.mmengine.models.base import ReIDModel
from agreid_plugin.hosts.mmengine.registry import HOOKS
from agreid_plugin.types import Batch


@HOOKS.register_module()
class LearningGuard(Hook):
    """Stops a run that learns nothing, with the reason in one line.

    It stops after the first optimizer step if that changed no weight: a learning rate of zero and a frozen model train
    for days that way without an error. Accumulated gradients, and steps that a loss scaler leaves out, are waited for;
    a step whose rate the schedule has set to zero, as a warm-up may, is not judged. It stops at a loss that is NaN or
    infinite in any process, before the optimizer steps. It stops when the features of a training batch, made
    as for a test at the end of an epoch, are alike twice in a row; see `CollapseWatch`.
    """

    priority = "LOWEST"  # behind whatever draws random numbers before a step

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._changed: int | None = None
        self._batch: Any = None

    def before_train(self, runner: Runner) -> None:
        """Begin to watch."""
        self._collapse, self._step = CollapseWatch(), StepWatch(plain_model(runner), terms_of, agree=True)
        self._step.start()
        if not isinstance(runner.optim_wrapper, OptimWrapper):
            runner.logger.info("LearningGuard watches one optimizer; this run has several, whose steps go unwatched")
            return
        optimizer = runner.optim_wrapper.optimizer
        weights = WeightWatch(runner.model, optimizer, rate_key="optim_wrapper.optimizer.lr")
        self._handles = [
            optimizer.register_step_pre_hook(lambda *_: self._before_step(runner, weights)),
            optimizer.register_step_post_hook(lambda *_: self._after_step(weights, optimizer)),
        ]

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:  # noqa: ARG002
        """Keep the batch."""
        self._batch = data_batch

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,  # noqa: ARG002
        data_batch: Any = None,  # noqa: ARG002
        outputs: Any = None,  # noqa: ARG002
    ) -> None:
        """Judge losses that led to no step, and tell of the first one that did."""
        self._judge(runner)
        if self._changed is not None and "train/changed_weights" not in runner.message_hub.log_scalars:
            runner.message_hub.update_scalar("train/changed_weights", self._changed)

    def after_train_epoch(self, runner: Runner) -> None:
        """Look at the features of the last batch, while there is something left to stop."""
        model, last = plain_model(runner), runner.epoch + 1 == runner.max_epochs
        if self._batch is not None and isinstance(model, ReIDModel) and not last:
            self._collapse.judge(all_gather_object(self._collapse.look(_features(model, self._batch))))

    def after_train(self, runner: Runner) -> None:  # noqa: ARG002
        """Let go of the model and the optimizer."""
        self._step.stop()
        self._batch = None
        while self._handles:
            self._handles.pop().remove()

    def _before_step(self, runner: Runner, weights: WeightWatch) -> None:
        self._judge(runner)
        if self._changed is None:
            weights.keep()

    def _after_step(self, weights: WeightWatch, optimizer: Optimizer) -> None:
        scheduled = any(group.get("initial_lr") for group in optimizer.param_groups)
        if self._changed is None and not (weights.rates() == {0.0} and scheduled):
            self._changed = weights.require_change()

    def _judge(self, runner: Runner) -> None:
        """Stop if a loss of the last forward pass is not finite in any process; all of them come here together."""
        fetched = self._step.fetched()
        if fetched is None:
            return
        terms, finite = fetched.read()
        if finite:
            return
        process, told = accused(runner.iter + 1, all_gather_object(terms))
        found = self._examined(runner) if get_rank() == process else ""
        raise NonFiniteLossError(f"{told}; {all_gather_object(found)[process]}")

    def _examined(self, runner: Runner) -> str:
        batch = _batch_of(self._batch)
        return examined(plain_model(runner), batch.images, batch.paths)


def terms_of(losses: Mapping[str, Tensor | Sequence[Tensor]]) -> dict[str, Tensor]:
    """Return what mmengine sums of what a model returns: entries with `loss` in their name, of lists the sum."""
    named = {name: value for name, value in losses.items() if "loss" in name}
    return {
        name: value.mean() if isinstance(value, Tensor) else sum(each.mean() for each in value)
        for name, value in named.items()
    }


def _batch_of(data: Mapping[str, Any]) -> Batch:
    """Return what a loader gave as a batch, pixels from 0 to 255."""
    images = data["inputs"]
    images = images if isinstance(images, Tensor) else torch.stack(list(images))
    samples = data["data_samples"]
    return to_batch(images, samples).with_(paths=tuple(str(sample.get("img_path")) for sample in samples))


def _features(model: ReIDModel, data: Any) -> Tensor:
    """Return what a model compares a batch's images by."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            return model(**model.data_preprocessor(data, False), mode="tensor")
    finally:
        for module, training in modes:
            module.training = training
