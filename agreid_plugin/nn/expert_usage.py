"""Expert usage: how often each expert of a mixture is chosen, counted by forward hooks.

The model is not changed: a hook reads what a module was called with and what it returned.

Shapes: N routed items, images or tokens; E experts, G groups of them, k chosen experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from agreid_plugin.types import View

UsageByModule = dict[str, "Usage"]
LEAST_INFORMATION = 0.05
"""Nats below which a routing says nothing of what is routed; two experts used evenly, one an item, come to 0.69."""
MAX_GROUPS = 4
"""Groups of experts that a line has room for."""
ForwardHook = Callable[[Any, tuple[Any, ...], Any], None]


@dataclass(frozen=True)
class RoutingRecord:
    """Routing of one call of a module: which experts each item went to."""

    weights: Tensor  # (N, E) of the experts, 0 for those not chosen
    top_k: int  # experts chosen for each
    groups: tuple[range, ...]  # experts that a group may choose among
    group_of: Tensor | None = None  # (N,); None for one group


@runtime_checkable
class Mixture(Protocol):
    """A module that routes items to experts, or is given their routing."""

    training: bool

    def register_forward_hook(self, hook: ForwardHook) -> RemovableHandle:
        """Register a function that is called after each call of the module; every `nn.Module` has this."""

    def record_routing(self, arguments: tuple[Any, ...], outputs: Any) -> RoutingRecord:
        """Return the routing of a call with these arguments and outputs."""


@dataclass(frozen=True)
class Usage:
    """Counts of what the experts of a module were given so far."""

    top_k: int
    groups: tuple[range, ...]
    routed: Tensor  # (G,) items
    chosen: Tensor  # (G, E) how many of them went to the expert
    weights: Tensor  # (G, E) the sum of their weights for it
    entropy: Tensor  # (G,) the sum of the entropies of their weights

    @classmethod
    def count(cls, call: RoutingRecord) -> Usage:
        """Count one call."""
        weights = call.weights.detach().double()
        group_of = call.group_of if call.group_of is not None else weights.new_zeros(len(weights), dtype=torch.long)
        member = torch.stack([group_of == group for group in range(len(call.groups))]).double()  # (G, N)
        chosen, entropy = (weights > 0).double(), torch.special.entr(weights).sum(1)
        return cls(call.top_k, call.groups, member.sum(1), member @ chosen, member @ weights, member @ entropy)

    def __add__(self, other: Usage) -> Usage:
        sums = (getattr(self, name) + getattr(other, name) for name in ("routed", "chosen", "weights", "entropy"))
        return Usage(self.top_k, self.groups, *sums)

    def cpu(self) -> Usage:
        """Return the same on the CPU."""
        counts = (each.cpu() for each in (self.routed, self.chosen, self.weights, self.entropy))
        return Usage(self.top_k, self.groups, *counts)

    def information(self, number: int) -> float:
        """Return the mutual information of items and experts in a group, in nats; 0 where all are sent alike.

        It is the entropy of the mean weights less the mean entropy of an item's weights.
        """
        routed = self.routed[number].clamp(min=1)
        return float(torch.special.entr(self.weights[number] / routed).sum() - self.entropy[number] / routed)

    def by_group(self) -> Iterator[tuple[str, int, dict[int, float]]]:
        """Yield each group's name, its number of routed items, and every expert's share of them.

        A share counts the items that went to the expert, so that shares add up to k. Where every item goes to every
        expert of the group, it is the expert's share of the weights instead.
        """
        for number, experts in enumerate(self.groups):
            routed = int(self.routed[number])
            counted = self.weights if self.top_k == len(experts) else self.chosen
            shares = (counted[number] / max(routed, 1)).tolist()
            yield group_name(number, len(self.groups)), routed, {expert: shares[expert] for expert in experts}


class UsageCounter:
    """Counts the usage of all mixtures of a model, in training or in evaluation.

    Sums stay on the model's device until `take`, so that no step waits for them.

    Args:
        model: the model. A copy made while counting would count as well.
        training: count in training only; False: in evaluation only.
    """

    def __init__(self, model: nn.Module, training: bool = True):
        self._model, self._training = model, training
        self._handles: list[RemovableHandle] = []
        self._counted: UsageByModule = {}

    def start(self) -> int:
        """Register the hooks and return the number of mixtures."""
        for name, module in self._model.named_modules():
            if isinstance(module, Mixture):
                self._handles.append(module.register_forward_hook(self._make_hook(name)))
        return len(self._handles)

    def stop(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def take(self) -> UsageByModule:
        """Return the counts by module name, and start again from zero."""
        counted, self._counted = self._counted, {}
        return {name: usage.cpu() for name, usage in counted.items()}

    def _make_hook(self, name: str) -> ForwardHook:
        def count(module: Mixture, arguments: tuple[Any, ...], outputs: Any) -> None:
            if module.training == self._training:
                usage = Usage.count(module.record_routing(arguments, outputs))
                self._counted[name] = self._counted[name] + usage if name in self._counted else usage

        return count


def merge_usage(parts: Iterable[UsageByModule]) -> UsageByModule:
    """Add up the counts of several processes."""
    total: UsageByModule = {}
    for part in parts:
        for name, usage in part.items():
            total[name] = total[name] + usage if name in total else usage
    return total


def flatten_shares(usage: UsageByModule) -> dict[str, float]:
    """Return each expert's share as `module/group/expert` -> number; a group without items has none."""
    return {
        f"{_join_path(name, group)}/{expert}": share
        for name, counted in usage.items()
        for group, routed, shares in counted.by_group()
        if routed
        for expert, share in shares.items()
    }


def find_faults(usage: UsageByModule) -> list[str]:
    """Return a line for each group without items, with experts never chosen, or that sends all items alike.

    The last is not asked where every item goes to every expert of the group.
    """
    lines = []
    for name, counted in usage.items():
        for number, (group, routed, shares) in enumerate(counted.by_group()):
            idle = [str(expert) for expert in shares if not counted.chosen[number, expert]]
            found = []
            if not routed:
                found.append("the group was never chosen, its experts learn nothing")
            elif idle:
                found.append(f"of {len(shares)} experts, {', '.join(idle)} were never chosen in {routed} choices")
            if routed > 1 and counted.top_k < len(shares) and counted.information(number) < LEAST_INFORMATION:
                found.append(f"all images are sent alike ({counted.information(number):.3f} nats of information)")
            if found:
                lines.append(f"{_join_path(name, group)}: {', '.join(found)}")
    return lines


def summarize_shares(usage: Mapping[str, Usage]) -> str:
    """Return the share of the least and the most used expert of each group in percent, in one line."""
    found = [
        (_join_path(name, group), 100 * min(shares.values()), 100 * max(shares.values()))
        for name, counted in usage.items()
        for group, _, shares in counted.by_group()
    ]
    if len(found) <= MAX_GROUPS:
        return ", ".join(f"{name} {least:.0f} - {most:.0f}" for name, least, most in found)
    (where, least, _), (there, _, most) = min(found, key=itemgetter(1)), max(found, key=itemgetter(2))
    return f"{len(found)} groups, least {least:.0f} ({where}), most {most:.0f} ({there})"


def group_name(number: int, groups: int) -> str:
    """Return a group's name: empty for a single group, its view where there are as many groups as views."""
    if groups == 1:
        return ""
    return View(number).word if groups == len(View) else str(number)


def _join_path(name: str, group: str) -> str:
    return f"{name}/{group}" if group else name
