"""ViSA's heads and losses around its backbone (Sec. 3.5, Eqs. 14-20).

Shapes: B images, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_given, require_known
from agreid_plugin.losses import LoadBalanceLoss, OrthogonalLoss, ViewLoss, identity_objectives
from agreid_plugin.methods.visa.backbone import ViSABackbone, ViSAFeatures
from agreid_plugin.methods.visa.variants import get_variant
from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.nn.view_predictor import ViewPredictor
from agreid_plugin.types import UNKNOWN, VIEW_SOURCES, Batch, HeadOutputs, ReIDMethod, View, known_or


@dataclass(frozen=True)
class ViSAOutputs:
    """What ViSA makes of a batch; parts without their module are None."""

    features: ViSAFeatures
    identity: HeadOutputs
    local: HeadOutputs | None = None
    view: HeadOutputs | None = None
    predicted: Tensor | None = None  # (B, 2) logits of the view predictor


class ViSA(ReIDMethod):
    """L = (L_id + L_tri) of identity and local features + view_weight (L_o + L_view) + balance_weight L_balance.

    Args:
        backbone: encoder, ETGM and DLFM.
        identities: number of identities to train on.
        variant: `paper` or `released`; see `Variant`. The backbone has its own, which should be the same.
        view: where the view of a test image comes from, `given` with it or `predicted`. Training needs it given.
        make_head: makes a head of a number of classes; a `BNNeck` without it.
        objectives: name -> loss of the identity head and of the local head.
        view_weight: factor of the view classification and of the orthogonality.
        balance_weight: lambda in Eq. 20; the variant's without a number.

    Example:
        >>> from agreid_plugin.methods.visa import build_backbone
        >>> from agreid_plugin.nn.vit import VisionTransformer
        >>> vit = VisionTransformer((32, 16), patch_size=8, width=16, depth=2, heads=2, extra_tokens=1)
        >>> visa = ViSA(build_backbone(vit, experts=3, tokens=4, neighbors=3), identities=5).eval()
        >>> batch = Batch(images=torch.zeros(4, 3, 32, 16), views=torch.tensor([0, 1, 0, 1]))
        >>> visa.embed(visa(batch)).shape  # identity and local features, side by side
        torch.Size([4, 32])
    """

    def __init__(
        self,
        backbone: ViSABackbone,
        identities: int,
        variant: str = "paper",
        view: str = "given",
        make_head: Callable[[int], nn.Module] | None = None,
        objectives: nn.ModuleDict | None = None,
        view_weight: float = 1.0,
        balance_weight: float | None = None,
    ):
        super().__init__()
        require_known("view", view, VIEW_SOURCES)
        switches, make_head = get_variant(variant), make_head or partial(BNNeck, backbone.width)
        self.backbone = backbone
        self.head = make_head(identities)
        self.local_head = make_head(identities) if backbone.fusion else None
        self.view_head = make_head(len(View)) if backbone.encoder.needs_views else None
        self.view_predictor = ViewPredictor(backbone.width) if backbone.needs_views else None
        self.objectives = identity_objectives(switches.over_nonzero) if objectives is None else objectives
        self.view_loss, self.orthogonal_loss = ViewLoss(view_weight), OrthogonalLoss(view_weight)
        self.predictor_loss = ViewLoss()
        self.balance_loss = LoadBalanceLoss(switches.balance_weight if balance_weight is None else balance_weight)
        self.neck_sees_cls = switches.neck_sees_cls
        self.view_source = view if backbone.needs_views else ""
        if backbone.needs_views:
            self.training_inputs |= {"views"}
        if self.view_source == "given":
            self.inference_inputs |= {"views"}

    def forward(self, batch: Batch) -> ViSAOutputs:
        """Encode a batch and run the heads."""
        predicted = self._predict(batch)
        features = self.backbone(batch.images, self._views(batch, predicted))
        encoded = features.encoded
        identity = self.head(encoded.identity, batch.pids)
        if self.training and self.neck_sees_cls:
            self.head(encoded.cls, batch.pids)
        local = self.local_head(features.local, batch.pids) if self.local_head else None
        view = self.view_head(encoded.view, batch.views) if self.view_head else None
        return ViSAOutputs(features, identity, local, view, predicted)

    def losses(self, outputs: ViSAOutputs, batch: Batch) -> dict[str, Tensor]:
        """Return the weighted terms of Eq. 20, and the view predictor's own."""
        terms: dict[str, Tensor] = {}
        for branch, head in (("id", outputs.identity), ("local", outputs.local)):
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

    @property
    def predicts_views(self) -> bool:
        """Whether there is a view predictor."""
        return self.view_predictor is not None

    def predicted_views(self, outputs: ViSAOutputs) -> Tensor | None:
        """Return the views that test images were taken for, (B,); None where they were given."""
        return None if outputs.predicted is None else outputs.predicted.argmax(dim=1)

    def fill_views(self, batch: Batch) -> Batch:
        """Return a batch whose unknown views are those of the view predictor."""
        if self.view_predictor is None:
            return batch
        logits = self.view_predictor(self.backbone.encoder.vit, batch.images)
        return batch.with_(views=known_or(batch.views, logits.argmax(dim=1)))

    def _predict(self, batch: Batch) -> Tensor | None:
        """Run the view predictor where it is learned or asked."""
        if self.view_predictor is None or not (self.training or self.view_source == "predicted"):
            return None
        return self.view_predictor(self.backbone.encoder.vit, batch.images)

    def _views(self, batch: Batch, predicted: Tensor | None) -> Tensor | None:
        """Return the views to go by: in training the true ones, at test time those that `view_source` says."""
        if not self.backbone.needs_views:
            return None
        if not self.training and predicted is not None:
            return predicted.argmax(dim=1)
        way_out = "training has no way around it" if self.training else "view='predicted' needs none"
        if batch.views is None:
            raise InputError(f"views=None, but ViSA needs the view of every image; {way_out}")
        if batch.views.device.type == "cpu" and (batch.views == UNKNOWN).any():  # elsewhere looking would be waiting
            raise InputError(f"views has {UNKNOWN} (unknown), but ViSA needs the view of every image; {way_out}")
        return batch.views
