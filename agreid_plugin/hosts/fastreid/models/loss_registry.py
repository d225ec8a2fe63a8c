"""The registry of losses, and which of them a meta-architecture can take.

Every architecture gives its losses features and logits of identities. Some losses need more, and some architectures
have losses of their own: both are declared, so that a name that would come to nothing is refused before training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from torch import nn

from agreid_plugin.errors import InputError, unknown
from agreid_plugin.hosts.fastreid.config.loading import declare_group


@dataclass(frozen=True)
class LossEntry:
    """A loss that a configuration may name.

    Attributes:
        log_name: what logs call it.
        node: its group of keys.
        build: builds it from them.
        needs: the part beside features and logits that it works on, as `view_features`; empty if it needs none.
    """

    log_name: str
    node: str
    build: Callable[..., nn.Module]
    needs: str = ""


@dataclass(frozen=True)
class Architecture:
    """What a meta-architecture does about losses.

    Attributes:
        own: losses that it has built in, each with the key of its weight, or an empty string if there is none.
        parts: what it gives the losses of `MODEL.LOSSES.NAME` beside features and logits; see `OnParts`.
    """

    own: Mapping[str, str] = field(default_factory=dict)
    parts: frozenset[str] = frozenset()


LOSSES: dict[str, LossEntry] = {}
ARCHITECTURES: dict[str, Architecture] = {}
"""Those that do more than most; the others have nothing of their own and give features and logits."""
HOST_LOSSES = ("CrossEntropyLoss", "TripletLoss", "CircleLoss", "Cosface")
"""Those that the host's own architectures have written into them."""


def register_loss(name: str, log_name: str, node: str = "", needs: str = "") -> Callable:
    """Register the decorated function, which builds a loss from the group of keys `MODEL.LOSSES.<node>`.

    A loss without options declares no key of the group, which is called like `log_name` where no other is named.
    What it returns is called with a head's outputs and the batch; see `OnLogits` and `OnFeatures`, and `OnParts` for
    one that needs more than they have.
    """

    node = node or log_name.upper()
    declare_group(f"MODEL.LOSSES.{node}")

    def register(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        LOSSES[name] = LossEntry(log_name, node, build, needs)
        return build

    return register


def declare_architecture(name: str, own: Mapping[str, str] | None = None, parts: Iterable[str] = ()) -> None:
    """Declare what a meta-architecture does about losses; see `Architecture`."""
    ARCHITECTURES[name] = Architecture(dict(own or {}), frozenset(parts))


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
        problem = _problem(name, LOSSES[name].needs, cfg.MODEL.META_ARCHITECTURE)
        if problem:
            raise InputError(f"MODEL.LOSSES.NAME {name} {problem}")


def _problem(name: str, needs: str, architecture: str) -> str:
    """Tell why an architecture cannot take a loss, if it cannot."""
    facts = ARCHITECTURES.get(architecture, Architecture())
    if name in facts.own:
        key = facts.own[name]
        return f"is built into {architecture} already{key and f', weighted by {key}'}: leave the name out"
    if not needs or needs in facts.parts:
        return ""
    part, makers = needs.replace("_", " "), _makers(needs)
    if architecture in makers:
        return f"needs {part}, which {architecture} keeps for the losses that it has built in"
    others = f"{', '.join(makers)} {'do' if len(makers) > 1 else 'does'}" if makers else "no architecture does"
    return f"needs {part}, which {architecture} does not make; {others}"


def _makers(part: str) -> list[str]:
    """Return the registered architectures that make a part, for any loss or for those that they have built in."""
    makers = (
        name
        for name, facts in ARCHITECTURES.items()
        if name in META_ARCH_REGISTRY._obj_map
        and (part in facts.parts or any(LOSSES[own].needs == part for own in facts.own if own in LOSSES))
    )
    return sorted(makers, key=str.lower)
