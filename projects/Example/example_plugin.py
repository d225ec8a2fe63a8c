"""A backbone and a loss of one's own in fast-reid, next to agreid_plugin's and the host's."""

from itertools import pairwise

import torch.nn.functional as F
from fastreid.modeling.backbones import BACKBONE_REGISTRY
from torch import Tensor, nn

from agreid_plugin.hosts.fastreid.config.loading import Key, declare
from agreid_plugin.hosts.fastreid.models.losses import register_loss

declare([Key("MODEL.BACKBONE.STRIPES", 4, "Horizontal stripes that build_stripes_backbone cuts an image into.")])


class SpreadLoss(nn.Module):
    """Mean squared cosine between images of different people.

    Args:
        weight: factor of the loss.
    """

    def __init__(self, weight: float = 0.1):
        super().__init__()
        self.weight = weight

    def forward(self, features: Tensor, pids: Tensor) -> Tensor:
        """Return the loss of (B, D) features and (B,) identities."""
        cosines = F.normalize(features) @ F.normalize(features).T
        others = pids[:, None] != pids
        return self.weight * cosines.square().where(others, 0).sum() / others.sum().clamp(min=1)


register_loss(SpreadLoss, "spread")


@BACKBONE_REGISTRY.register()
def build_stripes_backbone(cfg) -> nn.Module:
    """A small convolutional network that keeps one feature a stripe."""
    widths = (3, 32, 64, cfg.MODEL.BACKBONE.FEAT_DIM)
    layers = []
    for narrow, wide in pairwise(widths):
        layers += [nn.Conv2d(narrow, wide, 3, stride=2, padding=1), nn.BatchNorm2d(wide), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d((cfg.MODEL.BACKBONE.STRIPES, 1)))
