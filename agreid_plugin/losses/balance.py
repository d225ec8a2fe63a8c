"""Load balance of routers over their experts (ViSA, CVPR 2026, Eqs. 18-19; Switch Transformers, JMLR 2022, Eq. 4).

Shapes: B images, E experts of one router.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_within
from agreid_plugin.losses.gathering import gather_features, gather_labels
from agreid_plugin.losses.validation import require_labels, to_full_precision


class RouterUse(NamedTuple):
    """Arguments of `load_balance` for one router."""

    probabilities: Tensor
    members: Tensor | None = None
    choices: Tensor | None = None


def load_balance(probabilities: Tensor, members: Tensor | None = None, choices: Tensor | None = None) -> Tensor:
    """Return how unevenly one router uses its experts: E times the sum of squared mean probabilities (Eqs. 18-19).

    It is 1 when the experts are used evenly and E when one takes all. Computed in float32 inside autocast too.
    Without members it is a zero that keeps the graph.

    It sees probabilities, not who is chosen: where k experts of equal probability take all images, its gradient is 0.
    With `choices` it is E times the sum of mean probability times share of the choices, as in Switch Transformers: it
    takes from every expert that is chosen too often.

    Args:
        probabilities: what the router gives each expert, softmax over all of them: (B, E).
        members: which images this router serves, all if None: (B,) of bool. The others may hold any numbers.
        choices: share of each expert in an image's choices, adding up to 1, without a gradient: (B, E).

    Example:
        >>> load_balance(torch.tensor([[1.0, 0.0], [0.0, 1.0]])), load_balance(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        (tensor(1.), tensor(2.))
    """
    _require_router(probabilities, members)
    with torch.autocast(probabilities.device.type, enabled=False):
        mean = _mean(to_full_precision(probabilities), members)
        load = mean if choices is None else _mean(to_full_precision(choices), members)
        return probabilities.shape[1] * (mean * load).sum()


def _mean(values: Tensor, members: Tensor | None) -> Tensor:
    """Return the mean over images: (B, E), (B,) -> (E,)."""
    if members is None:
        return values.sum(dim=0) / max(len(values), 1)
    return values.where(members[:, None], 0).sum(dim=0) / members.sum().clamp(min=1)


class LoadBalanceLoss(nn.Module):
    """Keeps every router from sending all images to a few experts (ViSA, Eqs. 18-19, summed over the routers).

    Each router's `load_balance` counts by the share of the batch it serves, as in the released code, whose total is
    LB_share + LB_sky n_sky / B + LB_ground n_ground / B. That code also divides the mean probabilities by their sum
    plus 1e-6; here they sum to 1 as they are.

    Args:
        weight: lambda of Eq. 20. The paper's best is 0.001, the released code has 0.0001.
        gather: balance the images of all processes together rather than each process's own; see `VIAL`. A process
            that happens to have one view only would otherwise ask its router to be even over nothing else.
    """

    def __init__(self, weight: float = 0.001, gather: bool = True):
        super().__init__()
        self.weight = require_within("weight", weight, 0, math.inf)
        self.gather = gather

    def forward(self, routers: Iterable[RouterUse]) -> Tensor:
        """Return the loss of a batch, given each router's use."""
        uses = [RouterUse(*router) for router in routers]
        joined = [gather_router(use) for use in uses] if self.gather else uses
        terms = [_share(use) * load_balance(*use) for use in joined]
        if not terms:
            raise InputError("routers=[] should have one entry or more")
        return self.weight * reduce(torch.add, terms)

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return f"weight={self.weight}, gather={self.gather}"


def gather_router(use: RouterUse) -> RouterUse:
    """Join what a router gave the images of all processes: (B, E), (B,), (B, E) -> (N B, E), (N B,), (N B, E)."""
    _require_router(use.probabilities, use.members)
    return RouterUse(
        gather_features(use.probabilities),
        None if use.members is None else gather_labels(use.members)[0],
        None if use.choices is None else gather_features(use.choices),
    )


def _share(use: RouterUse) -> Tensor | float:
    """Return which part of the batch a router serves."""
    return 1.0 if use.members is None else use.members.sum() / max(len(use.probabilities), 1)


def _require_router(probabilities: Tensor, members: Tensor | None) -> None:
    if probabilities.dim() != 2:
        raise InputError(f"probabilities={tuple(probabilities.shape)} should have two dimensions, images and experts")
    require_labels(probabilities, members=members)
    if members is not None and members.dtype != torch.bool:
        raise InputError(f"members={members.dtype} should be torch.bool")
