"""Losses by name: what `MODEL.LOSSES.NAME` may list, ours and the host's side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastreid.modeling.losses import cross_entropy_loss, pairwise_circleloss, pairwise_cosface
from torch import Tensor, nn

from agreid_plugin.errors import unknown
from agreid_plugin.hosts.fastreid.config import Key, said_of
from agreid_plugin.losses import VIAL, IdentityLoss, OnFeatures, OnLogits, TripletLoss

KEYS = (
    Key("MODEL.LOSSES.CE.OVER_NONZERO", True, "Divide by the images whose loss is not zero, as the host does."),
    Key("MODEL.LOSSES.TRI.SQUARED", False, "Squared distances, as ViSA's Eq. 15 prints; our meta-architectures only."),
    Key("MODEL.LOSSES.VIAL.SCALE", 1.0, "VIAL: weight of the loss, delta in Eq. 13 of VIF-AGReID."),
    Key("MODEL.LOSSES.VIAL.LAMBDA", 0.5, "VIAL: strength of the penalty (Eq. 8)."),
    Key("MODEL.LOSSES.VIAL.BETA", 5.0, "VIAL: decay of the penalty with the cosine (Eq. 8)."),
    Key("MODEL.LOSSES.VIAL.MARGIN", 0.5, "VIAL: how far below 1 the cosine of different people should be (Eq. 10)."),
    Key("MODEL.LOSSES.VIAL.HARD_MINING", True, "VIAL: take hard negatives too (Eq. 10), not positives alone (Eq. 9)."),
    Key("MODEL.LOSSES.VIAL.GATHER", False, "VIAL: pair the images of all processes."),
)


@dataclass(frozen=True)
class LossEntry:
    """A loss that a configuration may name: what logs call it, its group of keys, and how it is built."""

    log_name: str
    node: str
    build: Callable[..., nn.Module]


LOSSES: dict[str, LossEntry] = {}
HOST_LOSSES = ("CrossEntropyLoss", "TripletLoss", "CircleLoss", "Cosface")
"""Those that the host's own architectures have written into them."""


def register_loss(name: str, log_name: str, node: str) -> Callable:
    """Register the decorated function, which builds a loss from the group of keys `MODEL.LOSSES.<node>`.

    What it returns is called with a head's outputs and the batch; see `OnLogits` and `OnFeatures`.
    """

    def register(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        LOSSES[name] = LossEntry(log_name, node, build)
        return build

    return register


def build_objectives(cfg, names: Sequence[str] | None = None) -> nn.ModuleDict:
    """Build losses of these names, those of `MODEL.LOSSES.NAME` without any, by the name that logs give them."""
    objectives = nn.ModuleDict()
    for name in cfg.MODEL.LOSSES.NAME if names is None else names:
        if name not in LOSSES:
            raise unknown("MODEL.LOSSES.NAME", name, LOSSES)
        entry = LOSSES[name]
        with said_of(f"MODEL.LOSSES.{entry.node}"):
            objectives[entry.log_name] = entry.build(cfg.MODEL.LOSSES[entry.node])
    return objectives


class HostLoss(nn.Module):
    """A loss function of the host with its options."""

    def __init__(self, function: Callable[..., Tensor], scale: float, *options: float):
        super().__init__()
        self.function, self.scale, self.options = function, scale, options

    def forward(self, values: Tensor, pids: Tensor) -> Tensor:
        """Return the weighted loss."""
        return self.scale * self.function(values, pids, *self.options)


@register_loss("CrossEntropyLoss", "cls", "CE")
def _cross_entropy(node) -> nn.Module:
    if node.EPSILON < 0:  # the host's adaptive smoothing
        return OnLogits(HostLoss(cross_entropy_loss, node.SCALE, node.EPSILON, node.ALPHA))
    return OnLogits(IdentityLoss(node.SCALE, node.EPSILON, node.OVER_NONZERO))


@register_loss("TripletLoss", "triplet", "TRI")
def _triplet(node) -> nn.Module:
    return OnFeatures(TripletLoss(node.SCALE, node.MARGIN, node.SQUARED, node.NORM_FEAT, node.HARD_MINING))


@register_loss("CircleLoss", "circle", "CIRCLE")
def _circle(node) -> nn.Module:
    return OnFeatures(HostLoss(pairwise_circleloss, node.SCALE, node.MARGIN, node.GAMMA))


@register_loss("Cosface", "cosface", "COSFACE")
def _cosface(node) -> nn.Module:
    return OnFeatures(HostLoss(pairwise_cosface, node.SCALE, node.MARGIN, node.GAMMA))


@register_loss("VIAL", "vial", "VIAL")
def _vial(node) -> nn.Module:
    return OnFeatures(VIAL(node.SCALE, node.LAMBDA, node.BETA, node.MARGIN, node.HARD_MINING, node.GATHER))
