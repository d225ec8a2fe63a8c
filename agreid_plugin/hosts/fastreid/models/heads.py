"""Heads: ours where the host's are taken, and the host's where ours are."""

from __future__ import annotations

from fastreid.layers import pooling
from fastreid.modeling.heads import REID_HEADS_REGISTRY, build_heads
from torch import Tensor, nn

from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.types import HeadOutputs

OURS = "BNNeckHead"


@REID_HEADS_REGISTRY.register()
class BNNeckHead(nn.Module):
    """`BNNeck` as a head of the host: pools a backbone's map, and gives the host's outputs."""

    def __init__(self, cfg):
        super().__init__()
        self.pool = getattr(pooling, cfg.MODEL.HEADS.POOL_LAYER)()
        self.neck = BNNeck(cfg.MODEL.BACKBONE.FEAT_DIM, cfg.MODEL.HEADS.NUM_CLASSES)

    def forward(self, features: Tensor, targets: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        """Return the host's dictionary in training, the embedding otherwise: (B, D, rows, cols)."""
        outputs = self.neck(self.pool(features).flatten(1), targets)
        if not self.training:
            return outputs.embedding
        logits = outputs.logits
        return {"cls_outputs": logits, "pred_class_logits": logits, "features": outputs.features}


class HostHead(nn.Module):
    """A head of the host for a method of ours."""

    def __init__(self, head: nn.Module):
        super().__init__()
        self.head = head

    def forward(self, features: Tensor, labels: Tensor | None = None) -> HeadOutputs:
        """Run the head on one feature an image: (B, D)."""
        outputs = self.head(features[..., None, None], labels)
        if isinstance(outputs, Tensor):
            return HeadOutputs(features, outputs)
        return HeadOutputs(outputs["features"], outputs["features"], outputs["cls_outputs"])


def make_head(cfg, width: int, classes: int) -> nn.Module:
    """Make the head that `MODEL.HEADS.NAME` says for features of a width, which may have its own number of classes."""
    if cfg.MODEL.HEADS.NAME == OURS:
        return BNNeck(width, classes)
    own = cfg.clone()
    own.defrost()
    own.MODEL.BACKBONE.FEAT_DIM, own.MODEL.HEADS.NUM_CLASSES = width, classes
    return HostHead(build_heads(own))
