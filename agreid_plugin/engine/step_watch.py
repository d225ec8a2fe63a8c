"""Losses of a training step that are not finite: fetched from the device, agreed on, and examined."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from agreid_plugin.errors import InputError

ADVICE = "lower the learning rate, warm up longer, or find the operation with torch.autograd.set_detect_anomaly(True)"


class NonFiniteLossError(FloatingPointError, InputError):
    """A loss that is NaN or infinite: nothing can be learned from it, nor after it."""


class FetchedLosses:
    """Loss terms on their way from the model's device: whoever reads them waits for the forward pass and no more.

    Args:
        terms: name -> a term.
        agree: have all processes learn whether a term of any is not finite. Each has to make one at the same time.
    """

    def __init__(self, terms: Mapping[str, Tensor], agree: bool = False):
        self._names = list(terms)
        self._values = torch.stack([value.detach().float().mean() for value in terms.values()])
        self._wrong = (~self._values.isfinite()).any().float()
        shared = agree and dist.is_initialized() and dist.get_world_size() > 1
        self._work = dist.all_reduce(self._wrong, dist.ReduceOp.MAX, async_op=True) if shared else None
        self._ready = _recorded() if self._values.is_cuda else None

    def read(self) -> tuple[dict[str, float], bool]:
        """Return the terms by name, and whether all are finite, in every process if they agree."""
        if self._ready is None:
            return self._read()
        stream = torch.cuda.Stream(self._values.device)
        stream.wait_event(self._ready)
        with torch.cuda.stream(stream):
            return self._read()

    def _read(self) -> tuple[dict[str, float], bool]:
        if self._work is not None:
            self._work.wait()
        return dict(zip(self._names, self._values.tolist(), strict=True)), not self._wrong.item()


def _recorded() -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record()
    return event


class StepWatch:
    """Keeps the inputs and losses of the last training step of a model, until the step is judged; waits for nothing.

    Args:
        model: the model, taken out of a wrapper for many processes.
        terms_of: the loss terms in what the model returns.
        agree: see `FetchedLosses`.

    Attributes:
        inputs: what the model was called with, positional arguments first.
    """

    def __init__(self, model: nn.Module, terms_of: Callable[[Any], Mapping[str, Tensor]] = dict, agree: bool = False):
        self._model, self._terms_of, self._agree = model, terms_of, agree
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self.inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._fetched: FetchedLosses | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._handles = [
            self._model.register_forward_pre_hook(self._before, with_kwargs=True),
            self._model.register_forward_hook(self._after),
        ]

    def stop(self) -> None:
        """Let go of the model."""
        while self._handles:
            self._handles.pop().remove()
        self.inputs = self._fetched = None

    def fetched(self) -> FetchedLosses | None:
        """Return the losses of the last step; None if there are none, or they were asked for before."""
        fetched, self._fetched = self._fetched, None
        return fetched

    def _before(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if module.training:
            self.inputs, self._fetched = (arguments, named), None

    def _after(self, module: nn.Module, arguments: tuple[Any, ...], outputs: Any) -> None:  # noqa: ARG002
        terms = self._terms_of(outputs) if module.training and isinstance(outputs, Mapping) else {}
        if terms:
            self._fetched = FetchedLosses(terms, self._agree)


def all_finite(terms: Mapping[str, float]) -> bool:
    """Tell whether every term is a number that can be learned from."""
    return all(math.isfinite(value) for value in terms.values())


def accused(iteration: int, everywhere: Sequence[Mapping[str, float]]) -> tuple[int, str]:
    """Return the first process with a term that is not finite, and what to say of it.

    Args:
        iteration: the step's number, from 1.
        everywhere: the terms of every process.
    """
    process = next(number for number, terms in enumerate(everywhere) if not all_finite(terms))
    of = f" in process {process}" if len(everywhere) > 1 else ""
    return process, f"iteration {iteration}: {described(everywhere[process])}{of}"


def described(terms: Mapping[str, float]) -> str:
    """Say which terms are not finite, and what the others are."""
    wrong = [f"{name} is {value}" for name, value in terms.items() if not math.isfinite(value)]
    others = [f"{name} {value:.4g}" for name, value in terms.items() if math.isfinite(value)]
    return ", ".join(wrong) + (f" ({', '.join(others)})" if others else "")


def examined(model: nn.Module, images: Tensor | None, paths: Sequence[str] | None) -> str:
    """Say of a step's images, of the weights and of the gradients whether they are finite."""
    return "; ".join(_examined(model, images, paths))


def _examined(model: nn.Module, images: Tensor | None, paths: Sequence[str] | None) -> Iterator[str]:
    rows = []
    if images is not None:
        rows = (~images.float().flatten(1).isfinite().all(dim=1)).nonzero()[:, 0].tolist()
        named = f", first {paths[rows[0]]}" if rows and paths else ""
        yield f"{len(images)} images, " + (f"{len(rows)} of them not finite{named}" if rows else "all finite")
    weights = {name: value for name, value in model.named_parameters() if value.requires_grad}
    yield _counted("weights", weights)
    gradients = {name: value.grad for name, value in weights.items() if value.grad is not None}
    yield _counted("gradients", gradients) if gradients else "no gradients at hand"
    if not rows:
        yield ADVICE


def _counted(what: str, tensors: Mapping[str, Tensor]) -> str:
    wrong = [name for name, value in tensors.items() if not value.isfinite().all()]
    return f"{len(wrong)} of {len(tensors)} {what} not finite, first {wrong[0]}" if wrong else f"{what} finite"
