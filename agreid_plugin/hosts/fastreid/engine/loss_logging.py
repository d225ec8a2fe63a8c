"""The losses of a step, logged and judged in every process.

Repairs of the host import this module, so it imports nothing that they have still to repair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fastreid.utils import comm
from fastreid.utils.events import get_event_storage
from torch import Tensor

from agreid_plugin.engine.step_watch import FetchedLosses, NonFiniteLossError, accused, all_finite

Terms = Mapping[str, float]


def write_metrics(self, loss_dict: Mapping[str, Tensor], data_time: float) -> None:
    """Log the means of all processes' losses; in the place of `SimpleTrainer._write_metrics`.

    All processes learn all terms, so that they stop together where one is not finite: the host stops the main one and
    leaves the others waiting for it. A trainer's `guard`, which `LearningGuard` makes itself, has fetched the terms
    while gradients were computed, and makes the error.
    """
    guard = getattr(self, "guard", None)
    fetched = guard.step.fetched() if guard else None
    terms, _ = (fetched or FetchedLosses(loss_dict)).read()
    gathered = comm.all_gather((terms, data_time))
    everywhere = [of_process for of_process, _ in gathered]
    if not all(map(all_finite, everywhere)):
        raise (guard.diagnosed if guard else undiagnosed)(self.iter + 1, everywhere)
    if not comm.is_main_process():
        return
    means = {name: math.fsum(each[name] for each in everywhere) / len(everywhere) for name in terms}
    storage = get_event_storage()
    storage.put_scalar("data_time", max(seconds for _, seconds in gathered))
    storage.put_scalar("total_loss", sum(means.values()))
    if len(means) > 1:
        storage.put_scalars(**means)


def undiagnosed(iteration: int, everywhere: Sequence[Terms]) -> NonFiniteLossError:
    """Return the error for losses that are not finite, with what is known without a guard."""
    return NonFiniteLossError(accused(iteration, everywhere)[1])
