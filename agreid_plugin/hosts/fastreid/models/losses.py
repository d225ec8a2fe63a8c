"""Losses by name: what `MODEL.LOSSES.NAME` may list, ours and the host's side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastreid.modeling.losses import cross_entropy_loss, pairwise_circleloss, pairwise_cosface
from torch import Tensor, nn

from agreid_plugin.hosts.fastreid.config.loading import Key, declare, key_error_context
from agreid_plugin.hosts.fastreid.models.loss_registry import (
    HOST_LOSSES,
    LOSSES,
    LossEntry,
    check_losses,
    declare_architecture,
    register_loss,
)
from agreid_plugin.losses import (
    NITC,
    RITC,
    VIAL,
    AttributeLoss,
    IdentityLoss,
    LoadBalanceLoss,
    OnFeatures,
    OnLogits,
    OnParts,
    OrthogonalLoss,
    SDMLoss,
    SupConLoss,
    TripletLoss,
    ViewLoss,
)
from agreid_plugin.losses.gathering import gather_features, gather_labels

__all__ = [
    "HOST_LOSSES",
    "KEYS",
    "LOSSES",
    "HostLoss",
    "LossEntry",
    "build_objectives",
    "check_losses",
    "declare_architecture",
    "register_loss",
]

KEYS = (
    Key("MODEL.LOSSES.CE.OVER_NONZERO", True, "Divide by the images whose loss is not zero, as the host does."),
    Key("MODEL.LOSSES.CE.OVER_ALL", False, "Spread EPSILON over all identities; our meta-architectures only."),
    Key("MODEL.LOSSES.TRI.SQUARED", False, "Squared distances, as ViSA's Eq. 15 prints; our meta-architectures only."),
    Key("MODEL.LOSSES.TRI.GATHER", True, "Mine triplets in the batch of all processes; our meta-architectures only."),
    Key("MODEL.LOSSES.CIRCLE.GATHER", True, "CircleLoss: pair the images of all processes; ours only, too."),
    Key("MODEL.LOSSES.COSFACE.GATHER", True, "Cosface: pair the images of all processes; ours only, too."),
    Key("MODEL.LOSSES.VIAL.SCALE", 1.0, "VIAL: weight of the loss, delta in Eq. 13 of VIF-AGReID."),
    Key("MODEL.LOSSES.VIAL.LAMBDA", 0.5, "VIAL: strength of the penalty (Eq. 8)."),
    Key("MODEL.LOSSES.VIAL.BETA", 5.0, "VIAL: decay of the penalty with the cosine (Eq. 8)."),
    Key("MODEL.LOSSES.VIAL.MARGIN", 0.5, "VIAL: how far below 1 the cosine of different people should be (Eq. 10)."),
    Key("MODEL.LOSSES.VIAL.HARD_MINING", True, "VIAL: take hard negatives too (Eq. 10), not positives alone (Eq. 9)."),
    Key("MODEL.LOSSES.VIAL.GATHER", True, "VIAL: pair the images of all processes."),
    Key("MODEL.LOSSES.ORTHOGONAL.SCALE", 1.0, "OrthogonalLoss: weight of the loss."),
    Key("MODEL.LOSSES.ORTHOGONAL.KIND", "cosine", "OrthogonalLoss: cosine (ViSA, Eq. 17) | dot (SVPR-ReID, Eq. 10)."),
    Key("MODEL.LOSSES.VIEW.SCALE", 1.0, "ViewLoss: weight of the loss."),
    Key("MODEL.LOSSES.VIEW.CLASSES", 2, "ViewLoss: number of views that are told apart."),
    Key("MODEL.LOSSES.VIEW.EPSILON", 0.0, "ViewLoss: share of the target that is spread over the views."),
    Key("MODEL.LOSSES.VIEW.SMOOTHED_OVER", 0, "ViewLoss: classes that EPSILON is divided among; 0: the views."),
    Key("MODEL.LOSSES.BALANCE.SCALE", 0.001, "LoadBalanceLoss: weight of the loss, lambda in Eq. 20 of ViSA."),
    Key("MODEL.LOSSES.BALANCE.GATHER", True, "LoadBalanceLoss: balance the images of all processes together."),
    Key("MODEL.LOSSES.ATTRIBUTES.SCALE", 1.0, "AttributeLoss: weight of the loss, beta in Eq. 12 of SVPR-ReID."),
    Key("MODEL.LOSSES.NITC.SCALE", 1.0, "NITC: weight of the loss."),
    Key("MODEL.LOSSES.NITC.SOFT_LABEL", 0.5, "NITC: share of the target that the network gives itself."),
    Key("MODEL.LOSSES.NITC.TEMPERATURE", 0.01, "NITC: what cosines are divided by."),
    Key("MODEL.LOSSES.NITC.GATHER", True, "NITC: pair the images and texts of all processes."),
    Key("MODEL.LOSSES.RITC.SCALE", 1.0, "RITC: weight of the loss."),
    Key("MODEL.LOSSES.RITC.EPSILON", 0.01, "RITC: what is added to every entry of the targets."),
    Key("MODEL.LOSSES.RITC.TEMPERATURE", 0.01, "RITC: what cosines are divided by."),
    Key("MODEL.LOSSES.RITC.GATHER", True, "RITC: pair the images and texts of all processes."),
    Key("MODEL.LOSSES.SDM.SCALE", 1.0, "SDMLoss: weight of the loss."),
    Key("MODEL.LOSSES.SDM.TEMPERATURE", 0.02, "SDMLoss: what cosines are divided by."),
    Key("MODEL.LOSSES.SDM.GATHER", True, "SDMLoss: pair the images and texts of all processes."),
    Key("MODEL.LOSSES.SUPCON.SCALE", 1.0, "SupConLoss: weight of the loss."),
    Key("MODEL.LOSSES.SUPCON.TEMPERATURE", 1.0, "SupConLoss: what dot products are divided by."),
    Key("MODEL.LOSSES.SUPCON.GATHER", True, "SupConLoss: compare the images and texts of all processes."),
)
declare(KEYS)


def build_objectives(cfg, names: Sequence[str] | None = None) -> nn.ModuleDict:
    """Build losses of these names, those of `MODEL.LOSSES.NAME` without any, by the name that logs give them."""
    check_losses(cfg)
    objectives = nn.ModuleDict()
    for name in cfg.MODEL.LOSSES.NAME if names is None else names:
        entry = LOSSES[name]
        with key_error_context(f"MODEL.LOSSES.{entry.node}"):
            objectives[entry.log_name] = entry.build(cfg.MODEL.LOSSES[entry.node])
    return objectives


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


@register_loss("CrossEntropyLoss", "cls", "CE")
def _cross_entropy(node) -> nn.Module:
    if node.EPSILON < 0:  # the host's adaptive smoothing
        return OnLogits(HostLoss(cross_entropy_loss, node.SCALE, node.EPSILON, node.ALPHA))
    return OnLogits(IdentityLoss(node.SCALE, node.EPSILON, node.OVER_NONZERO, node.OVER_ALL))


@register_loss("TripletLoss", "triplet", "TRI")
def _triplet(node) -> nn.Module:
    mining = {"normalize": node.NORM_FEAT, "hard_mining": node.HARD_MINING, "gather": node.GATHER}
    return OnFeatures(TripletLoss(node.SCALE, node.MARGIN, node.SQUARED, **mining))


@register_loss("CircleLoss", "circle", "CIRCLE")
def _circle(node) -> nn.Module:
    return OnFeatures(HostLoss(pairwise_circleloss, node.SCALE, node.MARGIN, node.GAMMA, gather=node.GATHER))


@register_loss("Cosface", "cosface", "COSFACE")
def _cosface(node) -> nn.Module:
    return OnFeatures(HostLoss(pairwise_cosface, node.SCALE, node.MARGIN, node.GAMMA, gather=node.GATHER))


@register_loss("VIAL", "vial", "VIAL")
def _vial(node) -> nn.Module:
    return OnFeatures(VIAL(node.SCALE, node.LAMBDA, node.BETA, node.MARGIN, node.HARD_MINING, node.GATHER))


@register_loss("OrthogonalLoss", "orthogonal", "ORTHOGONAL", needs="view_features")
def _orthogonal(node) -> nn.Module:
    """Mean absolute cosine between identity and view features (ViSA, Eq. 17), or SVPR-ReID's dot product (Eq. 10)."""
    return OnParts(OrthogonalLoss(node.SCALE, node.KIND), ("features", "view_features"))


@register_loss("ViewLoss", "view", "VIEW", needs="view_logits")
def _view(node) -> nn.Module:
    """Cross-entropy between a view classifier's logits and the views (ViSA, Eq. 16)."""
    loss = ViewLoss(node.SCALE, node.CLASSES, node.EPSILON, node.SMOOTHED_OVER or None)
    return OnParts(loss, ("view_logits",), ("views",))


@register_loss("LoadBalanceLoss", "balance", "BALANCE", needs="routers")
def _balance(node) -> nn.Module:
    """Keeps every router from sending all images to a few experts (ViSA, Eqs. 18-19)."""
    return OnParts(LoadBalanceLoss(node.SCALE, node.GATHER), ("routers",))


@register_loss("AttributeLoss", "attributes", "ATTRIBUTES", needs="attribute_logits")
def _attributes(node) -> nn.Module:
    """Cross-entropy between each attribute's logits and labels (SVPR-ReID, Eq. 11)."""
    return OnParts(AttributeLoss(node.SCALE), ("attribute_logits",), ("attributes",))


@register_loss("NITC", "nitc", "NITC", needs="text_features")
def _nitc(node) -> nn.Module:
    """Brings each image to the texts of its person and each text to the images (TAG-CLIP, Eqs. 1-2)."""
    loss = NITC(node.SCALE, node.SOFT_LABEL, node.TEMPERATURE, node.GATHER)
    return OnParts(loss, ("features", "text_features"), ("pids",))


@register_loss("RITC", "ritc", "RITC", needs="text_features")
def _ritc(node) -> nn.Module:
    """Takes each image away from the texts of others, and each text from their images (TAG-CLIP, Eqs. 1-2)."""
    loss = RITC(node.SCALE, node.EPSILON, node.TEMPERATURE, node.GATHER)
    return OnParts(loss, ("features", "text_features"), ("pids",))


@register_loss("SDMLoss", "sdm", "SDM", needs="text_features")
def _sdm(node) -> nn.Module:
    """Has cosines of images and texts distributed as those of one person are (IRRA)."""
    loss = SDMLoss(node.SCALE, temperature=node.TEMPERATURE, gather=node.GATHER)
    return OnParts(loss, ("features", "text_features"), ("pids",))


@register_loss("SupConLoss", "supcon", "SUPCON", needs="text_features")
def _supcon(node) -> nn.Module:
    """Brings each image to all texts of its person, and each text to all its images (CLIP-ReID)."""
    loss = SupConLoss(node.SCALE, node.TEMPERATURE, node.GATHER)
    return OnParts(loss, ("features", "text_features"), ("pids",))
