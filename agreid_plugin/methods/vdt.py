"""VDT: View-decoupled Transformer (CVPR 2024), as released.

A view token, shared by all images, is subtracted from the class token after each block and once more after the final
norm. The result is the identity feature; the view token learns to classify aerial and ground, orthogonal to it.

Shapes: B images, D width, C identities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from agreid_plugin.losses import OrthogonalLoss, ViewLoss, identity_objectives
from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.nn.patch_features import TokenTransformer
from agreid_plugin.nn.view_token_vit import DecoupledEncoder, EncoderOutputs
from agreid_plugin.types import Batch, HeadOutputs, ReIDMethod, View


@dataclass(frozen=True)
class VDTOutputs:
    """Outputs of VDT."""

    encoded: EncoderOutputs
    identity: HeadOutputs
    view: HeadOutputs


class VDT(ReIDMethod):
    """L = L_id + L_tri + view_weight (L_view + L_o); the view of a test image is not needed.

    Args:
        backbone: gives class, view and identity tokens.
        identities: number of identities to train on.
        make_head: makes a head for features of a width and a number of classes; None for `BNNeck`.
        objectives: name -> loss of the identity head.
        view_weight: factor of the view classification and of the orthogonality.
        neck_sees_cls: pass the class token through the identity head in training, too, as the released code does. It
            has no loss, but the running statistics of the head's norm, through which test features pass, become those
            of identity features and class tokens in turn.
    """

    training_inputs = frozenset({"images", "pids", "views"})

    def __init__(
        self,
        backbone: DecoupledEncoder,
        identities: int,
        make_head: Callable[[int, int], nn.Module] | None = None,
        objectives: nn.ModuleDict | None = None,
        *,
        view_weight: float = 0.001,
        neck_sees_cls: bool = True,
    ):
        super().__init__()
        self.backbone, make_head = backbone, make_head or BNNeck
        self.head, self.view_head = make_head(backbone.width, identities), make_head(backbone.width, len(View))
        self.objectives = identity_objectives(over_nonzero=True) if objectives is None else objectives
        self.view_loss = ViewLoss(view_weight)
        self.orthogonal_loss = OrthogonalLoss(view_weight)
        self.neck_sees_cls = neck_sees_cls

    def forward(self, batch: Batch) -> VDTOutputs:
        """Encode a batch and run the heads."""
        encoded = self.backbone(batch.images)
        identity = self.head(encoded.identity, batch.pids)
        if self.training and self.neck_sees_cls:
            self.head(encoded.cls, batch.pids)
        return VDTOutputs(encoded, identity, self.view_head(encoded.view, batch.views))

    def losses(self, outputs: VDTOutputs, batch: Batch) -> dict[str, Tensor]:
        """Return the weighted terms."""
        terms = {f"loss_{name}_id": loss(outputs.identity, batch) for name, loss in self.objectives.items()}
        terms["loss_view"] = self.view_loss(outputs.view.logits, batch.views)
        terms["loss_orthogonal"] = self.orthogonal_loss(outputs.encoded.identity, outputs.encoded.view)
        return terms

    def embed(self, outputs: VDTOutputs) -> Tensor:
        """Return the identity feature behind its norm: (B, D)."""
        return outputs.identity.embedding


def build_backbone(vit: TokenTransformer, *, shed: str = "paper") -> DecoupledEncoder:
    """Build VDT's backbone.

    Args:
        vit: the transformer, with one extra token.
        shed: how the view token is subtracted: `paper`, or `gated`, which keeps what a trained ViT knows; see
            `DecoupledEncoder`.
    """
    return DecoupledEncoder(vit, shed=shed)
