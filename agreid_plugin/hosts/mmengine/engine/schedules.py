"""Schedules of the learning rate as fast-reid has them, which mmengine's own cannot say.

Shapes of a run: L iterations an epoch, E epochs, W iterations of warm-up; t counts iterations from 0.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from logging import WARNING
from typing import Any

from mmengine.logging import print_log
from mmengine.optim import _ParamScheduler

from agreid_plugin.engine.checkpoints import another_schedule
from agreid_plugin.engine.warmup import fit_warmup, shortening
from agreid_plugin.errors import InputError, require_int, require_within, unknown
from agreid_plugin.hosts.mmengine.registry import PARAM_SCHEDULERS

EVERY = ("epoch", "iteration")
POSITION = ("last_step", "_global_step", "_last_value", "base_values")
"""What a checkpoint tells of a schedule; all else is the configuration's."""


class WarmupLR(_ParamScheduler):
    """Each group's rate times `f + (1 - f) t / W` while t < W, then what the kind of schedule says.

    mmengine's own are counted in epochs or in iterations; here warm-up ends at an iteration, and the rest goes by
    epochs from there. A configuration writes `convert_to_iter_based=True`, which has mmengine tell L; E is that of the
    run, or `end`. A warm-up that leaves the schedule nothing is shortened, see `fit_warmup`, and the log says so.

    Args:
        optimizer: what has the rates.
        epoch_length: L.
        end: E.
        warmup_iters: W.
        warmup_epochs: W in epochs, instead.
        warmup_factor: f.
        last_step: the iteration before the first one.
        verbose: print every change.
    """

    settings: tuple[str, ...] = ("epoch_length", "epochs", "warmup", "warmup_factor")
    """What tells a schedule from another of its kind."""

    def __init__(
        self,
        optimizer: Any,
        epoch_length: int = 0,
        end: int = 0,
        warmup_iters: int = 0,
        warmup_epochs: int = 0,
        warmup_factor: float = 0.1,
        last_step: int = -1,
        verbose: bool = False,
    ):
        if epoch_length < 1 or end < 1:
            raise InputError(
                f"{type(self).__name__}: write convert_to_iter_based=True, epochs have no length otherwise"
            )
        if warmup_iters and warmup_epochs:
            raise InputError(f"{type(self).__name__}: give warmup_iters or warmup_epochs, not both")
        self.epoch_length, self.epochs = epoch_length, end
        warmup_iters = require_int("warmup_iters", warmup_iters, least=0)
        warmup_epochs = require_within("warmup_epochs", warmup_epochs, 0, math.inf)
        self.warmup = self._fit(int(warmup_iters or warmup_epochs * epoch_length))
        self.warmup_factor = require_within("warmup_factor", warmup_factor, 0, 1)
        self.prepare()
        super().__init__(optimizer, "lr", 0, end * epoch_length, last_step, by_epoch=False, verbose=verbose)

    @classmethod
    def build_iter_from_epoch(cls, *args: Any, by_epoch: bool = True, **kwargs: Any) -> WarmupLR:  # noqa: ARG003
        """Build it with what mmengine knows of the run."""
        return cls(*args, **kwargs)

    def _fit(self, warmup: int) -> int:
        iterations = self.epochs * self.epoch_length
        fitted = fit_warmup(warmup, iterations, self.left_by_warmup())
        note = shortening(warmup, fitted, iterations)
        if note:
            print_log(f"{type(self).__name__}: {note}", "current")
        return fitted

    def left_by_warmup(self) -> int:
        """Return how many iterations a warm-up has to leave."""
        return 0

    def prepare(self) -> None:
        """Make ready what comes after warm-up, once the lengths are known."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a checkpoint stood, by the schedule of this run: one that is made longer goes by its new length.

        mmengine's own take the old settings from the checkpoint, too, and stand still where the shorter run ended.
        """
        super().load_state_dict({name: state_dict[name] for name in POSITION if name in state_dict})
        told = another_schedule({name: getattr(self, name) for name in self.settings}, state_dict)
        if not told:
            return
        print_log(told, "current", WARNING)
        if self.last_step < self._global_step < self.end:  # that run had come to its end, and took no rate any more
            self.last_step = self._global_step
        for group, value in zip(self.optimizer.param_groups, self._get_value(), strict=True):
            group["lr"] = value

    def _get_value(self) -> list[float]:
        return [self.rate(base, self.last_step) for base in self.base_values]

    def rate(self, base: float, step: int) -> float:
        """Return the rate at iteration t of a group that starts from `base`."""
        if step < self.warmup:
            passed = step / self.warmup
            return base * (self.warmup_factor * (1 - passed) + passed)
        return self.rate_after(base, step)

    def rate_after(self, base: float, step: int) -> float:  # noqa: ARG002 - of an iteration
        """Return the rate of a group at an iteration behind warm-up."""
        return base


@PARAM_SCHEDULERS.register_module()
class WarmupMultiStepLR(WarmupLR):
    """The rate times `gamma` in every epoch of `milestones`, counted from 0 from the start of the run.

    Args:
        *args: see `WarmupLR`.
        milestones: epochs, increasing.
        gamma: the factor.
        **kwargs: see `WarmupLR`.
    """

    settings = (*WarmupLR.settings, "milestones", "gamma")

    def __init__(self, *args: Any, milestones: Sequence[int], gamma: float = 0.1, **kwargs: Any):
        self.milestones, self.gamma = list(milestones), gamma
        if any(first >= second for first, second in pairwise(self.milestones)):
            raise InputError(f"milestones={self.milestones} should increase")
        super().__init__(*args, **kwargs)

    def rate_after(self, base: float, step: int) -> float:
        """Return the rate at a step: gamma to the power of the milestones passed."""
        return base * self.gamma ** bisect_right(self.milestones, step // self.epoch_length)


@PARAM_SCHEDULERS.register_module()
class WarmupCosineLR(WarmupLR):
    """From the rate r to the least m by `m + (r - m) (1 + cos(pi k / K)) / 2`.

    By epochs, k is the epoch less those that are all warm-up, floor(W / L), and K = E - ceil(W / L): the epoch that
    warm-up ends in has the whole rate to its end, as in fast-reid. By iterations k = t - W and K = E L - W.

    Args:
        *args: see `WarmupLR`.
        eta_min: m, the same for every group.
        eta_min_ratio: m as a share of each group's rate, instead.
        every: `epoch` | `iteration`, when the rate changes.
        **kwargs: see `WarmupLR`.
    """

    settings = (*WarmupLR.settings, "eta_min", "eta_min_ratio", "every")

    def __init__(
        self,
        *args: Any,
        eta_min: float | None = None,
        eta_min_ratio: float | None = None,
        every: str = "epoch",
        **kwargs: Any,
    ):
        if every not in EVERY:
            raise unknown("every", every, EVERY)
        if eta_min is not None and eta_min_ratio is not None:
            raise InputError("give eta_min or eta_min_ratio, not both")
        self.eta_min, self.eta_min_ratio, self.every = eta_min or 0.0, eta_min_ratio, every
        super().__init__(*args, **kwargs)

    def left_by_warmup(self) -> int:
        """Return how many iterations a warm-up has to leave: a step of the cosine's own."""
        return self.epoch_length if self.every == "epoch" else 1

    def prepare(self) -> None:
        """Count K, 1 at least: in a run of one epoch the cosine takes no step."""
        self.length = self.left_by_warmup()
        self.whole = max(self.epochs * self.epoch_length // self.length - math.ceil(self.warmup / self.length), 1)

    def rate_after(self, base: float, step: int) -> float:
        """Return the rate at a step, see the class."""
        least = self.eta_min if self.eta_min_ratio is None else self.eta_min_ratio * base
        passed = step // self.length - self.warmup // self.length
        return least + (base - least) * (1 + math.cos(math.pi * min(passed / self.whole, 1))) / 2
