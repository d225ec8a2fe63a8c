"""The guards against training that changes nothing or makes all people alike, whatever the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.validation import describe_collapse

LOOKS = 2
"""Successive looks, an epoch apart, in which features must be found alike before training is stopped."""


class WeightWatch:
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
        self._kept: dict[str, torch.Tensor] = {}

    def keep(self) -> None:
        """Keep the weights as they are."""
        self._kept = {name: value.detach().cpu().clone() for name, value in self._trainable()}

    def changed(self) -> int:
        """Count the weights that differ from those kept."""
        return sum(not torch.equal(value.detach().cpu(), self._kept[name]) for name, value in self._trainable())

    def require_change(self) -> int:
        """Count as `changed` does, and forget what was kept.

        Raises:
            InputError: none has changed.
        """
        changed = self.changed()
        if not changed:
            raise InputError(f"the first optimizer step changed none of {len(self._kept)} weights: {self.why()}")
        self._kept = {}
        return changed

    def rates(self) -> set[float]:
        """Return the optimizer's learning rates."""
        return {group["lr"] for group in self._optimizer.param_groups}

    def why(self) -> str:
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


class CollapseWatch:
    """Stops a run whose features have become alike, whatever the image.

    It looks at the features of a training batch, made as for a test. One look is not enough: running statistics that
    are still far off, in the first epochs, may make features alike for a while.
    """

    def __init__(self) -> None:
        self._looks = 0

    @staticmethod
    def look(features: torch.Tensor) -> str:
        """Say that features of different images are alike; nothing if they are not: (N, D)."""
        return describe_collapse(features.float().flatten(1))

    def judge(self, told: Sequence[str]) -> None:
        """Take what `look` told in each process after an epoch.

        Raises:
            InputError: in every one features are alike, and were after the epoch before.
        """
        self._looks = self._looks + 1 if all(told) else 0
        if self._looks >= LOOKS:
            raise InputError(
                f"{told[0]}, as they were after the epoch before: the model has collapsed and learns nothing more; "
                "lower the learning rate, warm up longer, or look at the losses' weights"
            )


def _note(text: str) -> str:
    return f" ({text})" if text else ""
