"""Observers of training: learning guard, use of experts and unreadable images, from all processes of a run.

The learning guard stops at losses that are not finite, weights that stand still and features that collapse.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from agreid_plugin.data.bad_images import BadImages, log_bad_images
from agreid_plugin.engine.signals import is_main_process
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.validation import describe_collapse
from agreid_plugin.nn.expert_usage import UsageCounter, find_faults, flatten_shares, merge_usage, summarize_shares
from agreid_plugin.nn.experts import Router

Value = TypeVar("Value")

PATIENCE = 2
"""Epochs in a row after which features must be alike before training is stopped.

One is not enough: running statistics that are still far off, in the first epochs, may make features alike for a while.
"""
ADVICE = "lower the learning rate, warm up longer, or find the operation with torch.autograd.set_detect_anomaly(True)"

Losses = Mapping[str, float]


class NonFiniteLossError(FloatingPointError, InputError):
    """A loss that is NaN or infinite: nothing can be learned from it, nor after it."""


class FetchedLosses:
    """Loss terms on their way from the model's device: whoever reads them waits for the forward pass and no more.

    Processes learn together whether a term of any of them is not finite, so each has to make one at the same time.

    Args:
        terms: name -> a term.
    """

    def __init__(self, terms: Mapping[str, Tensor]):
        self._names = list(terms)
        self._values = torch.stack([value.detach().float().mean() for value in terms.values()])
        self._wrong = (~self._values.isfinite()).any().float()
        shared = dist.is_initialized() and dist.get_world_size() > 1
        self._work = dist.all_reduce(self._wrong, dist.ReduceOp.MAX, async_op=True) if shared else None
        self._ready = _record_event() if self._values.is_cuda else None

    def require_finite(self, iteration: int, examine: Callable[[], str] | None = None) -> Losses:
        """Return the terms by name.

        Args:
            iteration: the step's number, from 1.
            examine: describes the step in the process where a term is not finite.

        Raises:
            NonFiniteLossError: a term is not finite in some process; the same words in all of them.
        """
        terms, finite = self._read()
        if finite:
            return terms
        everywhere = gather_objects(terms)
        culprit = next(rank for rank, each in enumerate(everywhere) if not all(map(math.isfinite, each.values())))
        where = f" in process {culprit}" if len(everywhere) > 1 else ""
        message = f"iteration {iteration}: {describe_losses(everywhere[culprit])}{where}"
        mine = not dist.is_initialized() or dist.get_rank() == culprit
        details = gather_objects(examine() if examine and mine else "")[culprit]
        raise NonFiniteLossError(f"{message}; {details}" if details else message)

    def _read(self) -> tuple[Losses, bool]:
        """Return the terms, and whether those of all processes are finite."""
        if self._ready is None:
            return self._wait()
        stream = torch.cuda.Stream(self._values.device)
        stream.wait_event(self._ready)
        with torch.cuda.stream(stream):
            return self._wait()

    def _wait(self) -> tuple[Losses, bool]:
        if self._work is not None:
            self._work.wait()
        return dict(zip(self._names, self._values.tolist(), strict=True)), not self._wrong.item()


class WeightChangeCheck:
    """Compares a model's weights with those it kept, and finds why none has changed.

    Args:
        model: the model, wrapped or not.
        optimizer: what should change it.
        rate_key: what the user calls the learning rate, for complaints.
        other_tensors: what the host is known to do if the optimizer holds other tensors than the model's.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, rate_key: str = "", other_tensors: str = ""):
        self._model, self._optimizer = model, optimizer
        self._rate_key, self._other_tensors = rate_key, other_tensors
        self._kept: dict[str, Tensor] = {}

    def keep(self) -> None:
        """Keep the weights as they are."""
        self._kept = {name: value.detach().cpu().clone() for name, value in self._trainable()}

    def count_changed(self) -> int:
        """Count the weights that differ from those kept."""
        return sum(not torch.equal(value.detach().cpu(), self._kept[name]) for name, value in self._trainable())

    def require_change(self) -> int:
        """Count as `count_changed` does, and forget what was kept.

        Raises:
            InputError: none has changed.
        """
        changed = self.count_changed()
        if not changed:
            raise InputError(
                f"the first optimizer step changed none of {len(self._kept)} weights: {self.find_reason()}"
            )
        self._kept = {}
        return changed

    def rates(self) -> set[float]:
        """Return the optimizer's learning rates."""
        return {group["lr"] for group in self._optimizer.param_groups}

    def is_idle(self) -> bool:
        """Return whether a schedule has set the learning rate to zero, as a warm-up may."""
        scheduled = any(group.get("initial_lr") for group in self._optimizer.param_groups)
        return scheduled and self.rates() == {0.0}

    def find_reason(self) -> str:
        """Return the likely reason why no weight has changed."""
        trainable = self._trainable()
        if not trainable:
            return "all of them are frozen"
        if self.rates() == {0.0}:
            return f"the learning rate is 0{_note(self._rate_key)}"
        held = {id(value) for group in self._optimizer.param_groups for value in group["params"]}
        if not any(id(value) in held for _, value in trainable):
            return f"the optimizer holds other tensors than the model's{_note(self._other_tensors)}"
        gradients = [value.grad for _, value in trainable if value.grad is not None]
        if not gradients:
            return "no weight got a gradient"
        if not any(gradient.any() for gradient in gradients):
            return "every gradient is 0"
        return "the gradients are there; look at the optimizer"

    def _trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, value) for name, value in self._model.named_parameters() if value.requires_grad]


class LearningGuard:
    """Stops a run that learns nothing, in all its processes, with the reason in one line.

    It stops after the first optimizer step if that changed no weight: a learning rate of zero and a frozen model train
    for days that way without an error. Accumulated gradients, and steps that a loss scaler leaves out, are waited for;
    a step whose rate a schedule has set to zero is not judged. It stops at a loss that is NaN or infinite in any
    process. It stops when the features of a training batch, made as for a test at the end of an epoch, are alike
    twice in a row.

    Args:
        model: the model, taken out of a wrapper for many processes.
        optimizer: what changes it; without one losses and features are judged.
        loss_terms: the loss terms in what the model returns.
        images_and_paths: the images, and their files, in what the model was called with.
        names: see `WeightChangeCheck`.

    Attributes:
        inputs: the positional and named arguments that the model was called with last.
        changed: how many weights the first step changed; None before one was judged.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        *,
        loss_terms: Callable[[Any], Mapping[str, Tensor]] = dict,
        images_and_paths: Callable[..., tuple[Tensor | None, Sequence[str] | None]],
        **names: str,
    ):
        self.inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.changed: int | None = None
        self._model, self._loss_terms, self._images_and_paths = model, loss_terms, images_and_paths
        self._losses: FetchedLosses | None = None
        self._collapsed = 0
        self._iteration = 0
        self._handles: list[RemovableHandle] = [
            model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            model.register_forward_hook(self._after_forward),
        ]
        if optimizer is not None:
            weights = WeightChangeCheck(model, optimizer, **names)
            self._handles += [
                optimizer.register_step_pre_hook(lambda *_: self._before_optimizer(weights)),
                optimizer.register_step_post_hook(lambda *_: self._after_optimizer(weights)),
            ]

    def stop(self) -> None:
        """Let go of the model and the optimizer."""
        while self._handles:
            self._handles.pop().remove()
        self.inputs = self._losses = None

    def before_step(self, iteration: int) -> None:
        """Know the number, from 0, of the step that comes."""
        self._iteration = iteration

    def judge_losses(self) -> Losses | None:
        """Return the losses of the last forward pass; None if there are none, or they were judged before.

        All processes have to ask together.

        Raises:
            NonFiniteLossError: one of them is not finite in some process.
        """
        losses, self._losses = self._losses, None
        return None if losses is None else losses.require_finite(self._iteration + 1, self._examine)

    def judge_features(self, features: Tensor) -> None:
        """Judge the features of a training batch after an epoch, (N, D), in all processes.

        Raises:
            InputError: they are alike in every process, and were after the epoch before.
        """
        alike = gather_objects(describe_collapse(features.float().flatten(1)))
        self._collapsed = self._collapsed + 1 if all(alike) else 0
        if self._collapsed >= PATIENCE:
            raise InputError(
                f"{alike[0]}, as they were after the epoch before: the model has collapsed and learns nothing more; "
                "lower the learning rate, warm up longer, or look at the losses' weights"
            )

    def _before_forward(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if module.training:
            self.inputs, self._losses = (arguments, named), None

    def _after_forward(self, module: nn.Module, arguments: tuple[Any, ...], outputs: Any) -> None:  # noqa: ARG002
        terms = self._loss_terms(outputs) if module.training and isinstance(outputs, Mapping) else {}
        if terms:
            self._losses = FetchedLosses(terms)

    def _before_optimizer(self, weights: WeightChangeCheck) -> None:
        self.judge_losses()
        if self.changed is None:
            weights.keep()

    def _after_optimizer(self, weights: WeightChangeCheck) -> None:
        if self.changed is None and not weights.is_idle():
            self.changed = weights.require_change()

    def _examine(self) -> str:
        arguments, named = self.inputs
        return examine_step(self._model, *self._images_and_paths(*arguments, **named))


def describe_losses(terms: Losses) -> str:
    """Return which terms are not finite, and what the others are."""
    wrong = [f"{name} is {value}" for name, value in terms.items() if not math.isfinite(value)]
    others = [f"{name} {value:.4g}" for name, value in terms.items() if math.isfinite(value)]
    return ", ".join(wrong) + (f" ({', '.join(others)})" if others else "")


def examine_step(model: nn.Module, images: Tensor | None, paths: Sequence[str] | None) -> str:
    """Return whether a step's images, the weights and the gradients are finite, and what to do if the images are."""
    return "; ".join(_examine_step(model, images, paths))


def _examine_step(model: nn.Module, images: Tensor | None, paths: Sequence[str] | None) -> Iterator[str]:
    bad: list[int] = []
    if images is not None:
        bad = (~images.float().flatten(1).isfinite().all(dim=1)).nonzero()[:, 0].tolist()
        first = f", first {paths[bad[0]]}" if bad and paths else ""
        yield f"{len(images)} images, " + (f"{len(bad)} of them not finite{first}" if bad else "all finite")
    weights = {name: value for name, value in model.named_parameters() if value.requires_grad}
    yield _count_finite("weights", weights)
    gradients = {name: value.grad for name, value in weights.items() if value.grad is not None}
    yield _count_finite("gradients", gradients) if gradients else "no gradients at hand"
    if not bad:
        yield ADVICE


def _count_finite(what: str, tensors: Mapping[str, Tensor]) -> str:
    wrong = [name for name, value in tensors.items() if not value.isfinite().all()]
    return f"{len(wrong)} of {len(tensors)} {what} not finite, first {wrong[0]}" if wrong else f"{what} finite"


def _record_event() -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record()
    return event


def _note(text: str) -> str:
    return f" ({text})" if text else ""


def gather_objects(value: Value) -> list[Value]:
    """Return every process's value in all of them, by rank; all have to ask."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    values = [value] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


CENTERED = "; centered routing uses all experts (fast-reid: MODEL.VISA.ROUTING centered, mmengine: routing='centered')"


class ExpertUsageLog:
    """Logs after each epoch what share of the training images, or tokens, every expert was given, in all processes.

    Experts that nothing was sent to, and a router that sends all images alike, are warned of once. See `Usage` for what
    a share is.

    Args:
        model: the model, taken out of a wrapper for many processes.
        logger: the host's.

    Attributes:
        experts: how many modules of the model have experts.
    """

    def __init__(self, model: nn.Module, logger: logging.Logger):
        self._counter, self._logger = UsageCounter(model), logger
        self.experts = self._counter.start()
        routers = [module for module in model.modules() if isinstance(module, Router)]
        self._remedy = CENTERED if any(router.norm is None for router in routers) else ""
        self._warned = False

    def end_epoch(self, epoch: int) -> dict[str, float]:
        """Log what was counted since the last epoch; return it as `experts/<module>/<view>/<expert>` -> share.

        Args:
            epoch: its number, from 1.
        """
        usage = merge_usage(gather_objects(self._counter.take()))
        self._logger.info("experts of epoch %d, least and most used in percent: %s", epoch, summarize_shares(usage))
        faults = find_faults(usage)
        if faults and not self._warned:
            more = f"; likewise in {len(faults) - 1} more of the groups" if len(faults) > 1 else ""
            self._logger.warning(f"epoch {epoch}: {faults[0]}{more}{self._remedy}")
            self._warned = True
        return {f"experts/{name}": share for name, share in flatten_shares(usage).items()}

    def stop(self) -> None:
        """Let go of the model."""
        self._counter.stop()


def list_unreadable(bad_images: BadImages | None, folder: str | Path, logger: logging.Logger) -> None:
    """Log the training images that all processes passed over, and list them in the run's folder.

    Args:
        bad_images: those of this process; None if its dataset keeps none.
        folder: the run's.
        logger: the host's.
    """
    parts: Iterable[list[str]] = gather_objects(bad_images.paths() if bad_images is not None else [])
    if is_main_process():
        log_bad_images(folder, {path for part in parts for path in part}, "training", logger)
