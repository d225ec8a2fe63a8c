"""ViSA's heads and losses around its backbone (Sec. 3.5, Eqs. 14-20).

Shapes: B images, N patches, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from agreid_plugin.errors import require_given
from agreid_plugin.losses import LoadBalanceLoss, OrthogonalLoss, ViewLoss, identity_objectives
from agreid_plugin.methods.visa.backbone import ViSABackbone, ViSAFeatures
from agreid_plugin.methods.visa.variants import get_variant
from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.nn.view_predictor import ViewAwareMethod, ViewClasses, ViewPredictor
from agreid_plugin.types import Batch, HeadOutputs, View

CENTERED_BALANCE = 0.1
"""Lambda of Eq. 20 with centered routing: at the paper's 0.001 its gradient at a router is 1/136 of the others'."""


@dataclass(frozen=True)
class ViSAOutputs:
    """Outputs of ViSA; parts without their module are None."""

    features: ViSAFeatures
    identity: HeadOutputs
    local: HeadOutputs | None = None
    view: HeadOutputs | None = None
    predicted: Tensor | None = None  # (B, 2) logits of the view predictor


class ViSA(ViewAwareMethod):
    """L = (L_id + L_tri) of identity and local features + view_weight (L_o + L_view) + balance_weight L_balance.

    Args:
        backbone: encoder, ETGM and DLFM.
        identities: number of identities to train on.
        make_head: makes a head for features of a width and a number of classes; None for `BNNeck`.
        objectives: name -> loss of the identity head and of the local head; None for L_id and L_tri (Eqs. 14-15).
        variant: `paper` or `released`; see `Variant`. It should be the backbone's.
        view: where the view of a test image comes from, `given` with it or `predicted`. Training needs it given.
        view_weight: factor of the view classification and of the orthogonality.
        balance_weight: lambda, weight of the load balance (Eq. 20); None for the variant's, or `CENTERED_BALANCE` where
            routing is centered.

    Example:
        >>> from agreid_plugin.methods.visa import build_backbone
        >>> from agreid_plugin.nn.vit import VisionTransformer
        >>> vit = VisionTransformer((32, 16), patch_size=8, width=16, depth=2, heads=2, extra_tokens=1)
        >>> visa = ViSA(build_backbone(vit, experts=3, tokens=4, neighbors=3), identities=5).eval()
        >>> batch = Batch(images=torch.zeros(4, 3, 32, 16), views=torch.tensor([0, 1, 0, 1]))
        >>> visa.embed(visa(batch)).shape  # identity and local features, side by side
        torch.Size([4, 32])
    """

    title = "ViSA"
    view_classes = ViewClasses()

    def __init__(
        self,
        backbone: ViSABackbone,
        identities: int,
        make_head: Callable[[int, int], nn.Module] | None = None,
        objectives: nn.ModuleDict | None = None,
        *,
        variant: str = "paper",
        view: str = "given",
        view_weight: float = 1.0,
        balance_weight: float | None = None,
    ):
        super().__init__()
        switches, make_head = get_variant(variant), partial(make_head or BNNeck, backbone.width)
        self.backbone = backbone
        self.head = make_head(identities)
        self.local_head = make_head(identities) if backbone.fusion else None
        self.view_head = make_head(len(View)) if backbone.encoder.needs_views else None
        self.view_predictor = ViewPredictor(backbone.encoder.vit.embed_width) if backbone.needs_views else None
        self.objectives = identity_objectives(switches.over_nonzero) if objectives is None else objectives
        self.view_loss, self.orthogonal_loss = ViewLoss(view_weight), OrthogonalLoss(view_weight)
        self.predictor_loss = ViewLoss()
        if balance_weight is None:
            centered = backbone.queries is not None and backbone.queries.centered
            balance_weight = CENTERED_BALANCE if centered else switches.balance_weight
        self.balance_loss = LoadBalanceLoss(balance_weight)
        self.neck_sees_cls = switches.neck_sees_cls
        self.set_view_source(view)

    def forward(self, batch: Batch) -> ViSAOutputs:
        """Encode a batch and run the heads."""
        predicted = self.predict_views(batch)
        features = self.backbone(batch.images, self.select_views(batch, predicted))
        encoded = features.encoded
        identity = self.head(encoded.identity, batch.pids)
        if self.training and self.neck_sees_cls:
            self.head(encoded.cls, batch.pids)
        local = self.local_head(features.local, batch.pids) if self.local_head else None
        view = self.view_head(encoded.view, batch.views) if self.view_head else None
        return ViSAOutputs(features, identity, local, view, predicted)

    def losses(self, outputs: ViSAOutputs, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of Eq. 20, weighted, and the view predictor's."""
        terms: dict[str, Tensor] = {}
        for branch, head in (("id", outputs.identity), ("local", outputs.local)):  # L_id + L_tri (Eqs. 14-15) of both
            if head is not None:
                terms |= {f"loss_{name}_{branch}": loss(head, batch) for name, loss in self.objectives.items()}
        encoded = outputs.features.encoded
        if outputs.view is not None:
            terms["loss_view"] = self.view_loss(outputs.view.logits, batch.views)
            terms["loss_orthogonal"] = self.orthogonal_loss(encoded.identity, encoded.view)
        if outputs.predicted is not None:
            terms["loss_view_predictor"] = self.predictor_loss(outputs.predicted, batch.views)
        queries = outputs.features.queries
        if queries is not None and queries.shared is not None:
            terms["loss_balance"] = self.balance_loss(queries.routers(require_given("views", batch.views)))
        return terms

    def embed(self, outputs: ViSAOutputs) -> Tensor:
        """Return identity and local features behind their norms, side by side: (B, 2D), without DLFM (B, D)."""
        if outputs.local is None:
            return outputs.identity.embedding
        return torch.cat([outputs.identity.embedding, outputs.local.embedding], dim=1)

    def embed_patches(self, images: Tensor) -> Tensor:
        """Return the patches before any token of a view is there: (B, 3, rows, cols) -> (B, N, embed width)."""
        return self.backbone.encoder.vit.embed_patches(images)
