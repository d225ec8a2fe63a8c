"""Losses on embeddings, each a small module that knows no host."""

from agreid_plugin.losses.attributes import AttributeLoss
from agreid_plugin.losses.balance import LoadBalanceLoss, load_balance
from agreid_plugin.losses.contrastive import SupConLoss
from agreid_plugin.losses.identity import IdentityLoss
from agreid_plugin.losses.itc import NITC, RITC, SDMLoss
from agreid_plugin.losses.objectives import FeatureLoss, LogitLoss, OutputLoss, clip_objectives, identity_objectives
from agreid_plugin.losses.orthogonal import OrthogonalLoss
from agreid_plugin.losses.triplet import TripletLoss
from agreid_plugin.losses.vial import VIAL
from agreid_plugin.losses.view import ViewLoss

__all__ = [
    "NITC",
    "RITC",
    "VIAL",
    "AttributeLoss",
    "FeatureLoss",
    "IdentityLoss",
    "LoadBalanceLoss",
    "LogitLoss",
    "OrthogonalLoss",
    "OutputLoss",
    "SDMLoss",
    "SupConLoss",
    "TripletLoss",
    "ViewLoss",
    "clip_objectives",
    "identity_objectives",
    "load_balance",
]
