"""Loss registry: what `MODEL.LOSSES.NAME` may list, ours and the host's side by side.

Every architecture gives its losses features and logits of identities. Some losses need more, and some architectures
have losses of their own: both are declared, so that a name that would come to nothing is refused before training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.nn.functional as F
from fastreid.modeling.losses import cross_entropy_loss, focal_loss, pairwise_circleloss, pairwise_cosface
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from torch import Tensor, nn

from agreid_plugin.errors import InputError, unknown
from agreid_plugin.hosts.fastreid.config.loading import Key, declare, declare_group, key_error_context
from agreid_plugin.hosts.fastreid.config.signatures import keys_from, options_from
from agreid_plugin.losses import (
    NITC,
    RITC,
    VIAL,
    AttributeLoss,
    FeatureLoss,
    IdentityLoss,
    LoadBalanceLoss,
    LogitLoss,
    OrthogonalLoss,
    OutputLoss,
    SDMLoss,
    SupConLoss,
    TripletLoss,
    ViewLoss,
)
from agreid_plugin.losses.gathering import gather_features, gather_labels

HOST_LOSSES = ("CrossEntropyLoss", "TripletLoss", "CircleLoss", "Cosface")
"""Those that the host's own architectures have written into them."""
COMMON_PARTS = ("features", "logits")
"""Outputs that every architecture gives its losses."""


@dataclass(frozen=True)
class LossEntry:
    """A loss that a configuration may name.

    Attributes:
        log_name: what logs call it.
        node: its group of keys.
        build: builds its objective from them.
        needs: the part beside features and logits that it works on, as `view_features`; empty if it needs none.
        kind: what computes it, of which lists have the sentence; `build` without one.
    """

    log_name: str
    node: str
    build: Callable[..., nn.Module]
    needs: str = ""
    kind: Any = None


@dataclass(frozen=True)
class Architecture:
    """The losses that a meta-architecture has built in, and the outputs it gives to others.

    Attributes:
        own: losses that it has built in, each with the key of its weight, or an empty string if there is none.
        parts: what it gives the losses of `MODEL.LOSSES.NAME` beside features and logits; see `OutputLoss`.
    """

    own: Mapping[str, str] = field(default_factory=dict)
    parts: frozenset[str] = frozenset()


LOSSES: dict[str, LossEntry] = {}
ARCHITECTURES: dict[str, Architecture] = {}
"""Those that do more than most; the others have nothing of their own and give features and logits."""


def register_loss(
    kind: type[nn.Module],
    log_name: str,
    parts: Sequence[str] = ("features",),
    labels: Sequence[str] = ("pids",),
    group: str = "",
) -> None:
    """Register a class of losses by its name; its constructor's arguments are keys of `MODEL.LOSSES`.

    Args:
        kind: the class, all of whose arguments have defaults.
        log_name: what logs call it.
        parts: attributes of a head's or a method's outputs that it is called with: `features`, `logits`, ...
        labels: fields of the batch that it is called with after them.
        group: the group of its keys; `log_name` in capitals without one.
    """
    node = group or log_name.upper()

    def build(values: Any) -> nn.Module:
        loss = kind(**options_from(values, kind))
        return FeatureLoss(loss) if (*parts, *labels) == ("features", "pids") else OutputLoss(loss, parts, labels)

    declare_group(f"MODEL.LOSSES.{node}")
    declare(keys_from(f"MODEL.LOSSES.{node}", kind))
    needs = next((part for part in parts if part not in COMMON_PARTS), "")
    LOSSES[kind.__name__] = LossEntry(log_name, node, build, needs, kind)


def declare_architecture(name: str, own: Mapping[str, str] | None = None, parts: Iterable[str] = ()) -> None:
    """Declare what a meta-architecture does about losses; see `Architecture`."""
    ARCHITECTURES[name] = Architecture(dict(own or {}), frozenset(parts))


def build_objectives(cfg, names: Sequence[str] | None = None) -> nn.ModuleDict:
    """Build losses of these names, those of `MODEL.LOSSES.NAME` without any, by the name that logs give them."""
    check_losses(cfg)
    objectives = nn.ModuleDict()
    for name in cfg.MODEL.LOSSES.NAME if names is None else names:
        entry = LOSSES[name]
        with key_error_context(f"MODEL.LOSSES.{entry.node}"):
            objectives[entry.log_name] = entry.build(cfg.MODEL.LOSSES[entry.node])
    return objectives


def check_losses(cfg) -> None:
    """Refuse names of `MODEL.LOSSES.NAME` that the meta-architecture can make nothing of.

    Raises:
        InputError: a name is unknown or listed twice, the architecture has the loss already, or it does not make what
            the loss needs.
    """
    names = list(cfg.MODEL.LOSSES.NAME)
    for name in names:
        if name not in LOSSES:
            raise unknown("MODEL.LOSSES.NAME", name, LOSSES)
        if names.count(name) > 1:
            raise InputError(f"MODEL.LOSSES.NAME names {name} twice")
        problem = _find_problem(name, LOSSES[name].needs, cfg.MODEL.META_ARCHITECTURE)
        if problem:
            raise InputError(f"MODEL.LOSSES.NAME {name} {problem}")


def _find_problem(name: str, needs: str, architecture: str) -> str:
    """Say why an architecture cannot take a loss, if it cannot."""
    facts = ARCHITECTURES.get(architecture, Architecture())
    if name in facts.own:
        key = facts.own[name]
        return f"is built into {architecture} already{key and f', weighted by {key}'}: leave the name out"
    if not needs or needs in facts.parts:
        return ""
    part, makers = needs.replace("_", " "), _list_makers(needs)
    if architecture in makers:
        return f"needs {part}, which {architecture} keeps for the losses that it has built in"
    others = f"{', '.join(makers)} {'do' if len(makers) > 1 else 'does'}" if makers else "no architecture does"
    return f"needs {part}, which {architecture} does not make; {others}"


def _list_makers(part: str) -> list[str]:
    """Return the registered architectures that make a part, for any loss or for those that they have built in."""
    makers = (
        name
        for name, facts in ARCHITECTURES.items()
        if name in META_ARCH_REGISTRY._obj_map
        and (part in facts.parts or any(LOSSES[own].needs == part for own in facts.own if own in LOSSES))
    )
    return sorted(makers, key=str.lower)


PAIRS = ("features", "text_features")  # of images and their texts
for _kind, _log_name, _parts, _labels in (
    (VIAL, "vial", ("features",), ("pids",)),
    (OrthogonalLoss, "orthogonal", ("features", "view_features"), ()),
    (ViewLoss, "view", ("view_logits",), ("views",)),
    (LoadBalanceLoss, "balance", ("routers",), ()),
    (AttributeLoss, "attributes", ("attribute_logits",), ("attributes",)),
    (NITC, "nitc", PAIRS, ("pids",)),
    (RITC, "ritc", PAIRS, ("pids",)),
    (SDMLoss, "sdm", PAIRS, ("pids",)),
    (SupConLoss, "supcon", PAIRS, ("pids",)),
):
    register_loss(_kind, _log_name, _parts, _labels)


# The host's: their names and most of their keys are its own. Its architectures compute all but FocalLoss by themselves.

HOST_KEYS = (
    Key("MODEL.LOSSES.CE.OVER_NONZERO", True, "Divide by the images whose loss is not zero, as the host does."),
    Key("MODEL.LOSSES.CE.OVER_ALL", False, "Spread EPSILON over all identities; our meta-architectures only."),
    Key("MODEL.LOSSES.TRI.SQUARED", False, "Squared distances, as ViSA's Eq. 15 prints; our meta-architectures only."),
    Key("MODEL.LOSSES.TRI.GATHER", True, "Mine triplets in the batch of all processes; our meta-architectures only."),
    Key("MODEL.LOSSES.CIRCLE.GATHER", True, "CircleLoss: pair the images of all processes; ours only, too."),
    Key("MODEL.LOSSES.COSFACE.GATHER", True, "Cosface: pair the images of all processes; ours only, too."),
)
declare(HOST_KEYS)


class HostLoss(nn.Module):
    """A loss function of the host with its options, on the batch of all processes if `gather` says so."""

    def __init__(self, function: Callable[..., Tensor], scale: float, *options: float, gather: bool = False):
        super().__init__()
        self.function, self.scale, self.options, self.gather = function, scale, options, gather

    def forward(self, values: Tensor, pids: Tensor) -> Tensor:
        """Return the weighted loss."""
        if self.gather:
            values, (pids,) = gather_features(values), gather_labels(pids)
        return self.scale * self.function(values, pids, *self.options)


def build_cross_entropy(node: Any) -> IdentityLoss | HostLoss:
    """Build the cross-entropy to identities; an `EPSILON` below 0 is the host's adaptive smoothing."""
    if node.EPSILON < 0:
        return HostLoss(cross_entropy_loss, node.SCALE, node.EPSILON, node.ALPHA)
    return IdentityLoss(node.SCALE, node.EPSILON, node.OVER_NONZERO, node.OVER_ALL)


def _build_triplet(node: Any) -> nn.Module:
    mining = {"normalize": node.NORM_FEAT, "hard_mining": node.HARD_MINING, "gather": node.GATHER}
    return FeatureLoss(TripletLoss(node.SCALE, node.MARGIN, node.SQUARED, **mining))


def compute_focal(logits: Tensor, pids: Tensor, alpha: float, gamma: float) -> Tensor:
    """Return the host's `focal_loss`, which is no number where a class is beyond the range of a softmax."""
    log_likely = F.log_softmax(logits, dim=1).gather(1, pids[:, None])
    return -alpha * ((1 - log_likely.exp()) ** gamma * log_likely).mean()


def _build_focal(node: Any) -> LogitLoss:
    return LogitLoss(HostLoss(compute_focal, node.SCALE, node.ALPHA, node.GAMMA))


def _build_pairwise(function: Callable[..., Tensor]) -> Callable[[Any], nn.Module]:
    return lambda node: FeatureLoss(HostLoss(function, node.SCALE, node.MARGIN, node.GAMMA, gather=node.GATHER))


LOSSES |= {
    "CrossEntropyLoss": LossEntry("cls", "CE", lambda node: LogitLoss(build_cross_entropy(node)), kind=IdentityLoss),
    "FocalLoss": LossEntry("focal", "FL", _build_focal, kind=focal_loss),
    "TripletLoss": LossEntry("triplet", "TRI", _build_triplet, kind=TripletLoss),
    "CircleLoss": LossEntry("circle", "CIRCLE", _build_pairwise(pairwise_circleloss), kind=pairwise_circleloss),
    "Cosface": LossEntry("cosface", "COSFACE", _build_pairwise(pairwise_cosface), kind=pairwise_cosface),
}
