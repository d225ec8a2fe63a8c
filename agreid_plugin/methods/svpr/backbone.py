"""SVPR-ReID's backbone: VDFE, ASMoE and CVPR on the towers of CLIP, any of them left out as in Table 5.

Shapes: B images, P patches, C width, E width of the text's outputs, M attributes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_given
from agreid_plugin.methods.svpr.asmoe import ASMoE, AttributeFeatures
from agreid_plugin.methods.svpr.cvpr import Refinement, RefinementOutputs
from agreid_plugin.methods.svpr.text import SentenceEncoder
from agreid_plugin.methods.svpr.vdfe import VDFE
from agreid_plugin.nn.clip import ImageTower
from agreid_plugin.types import UNKNOWN


@dataclass(frozen=True)
class SVPRFeatures:
    """Outputs of the backbone; parts without their module are None."""

    identity: Tensor  # (B, C) f_cls, with VDFE the view-invariant one
    entering: Tensor  # (B, C) the class token as it enters the block where a view token joins, without VDFE the last
    view: Tensor | None = None  # (B, C) f_view
    attributes: AttributeFeatures | None = None
    refined: RefinementOutputs | None = None

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The parts of f_reid, (B, C) each: f_cls, and with CVPR f_cvpr and f_local."""
        if self.refined is None:
            return (self.identity,)
        return self.identity, self.refined.query, self.refined.local


class SVPRBackbone(nn.Module):
    """Image tower, sentence encoder, VDFE, ASMoE and CVPR.

    Args:
        image: the image tower. Its projection to the space of both towers is read by nothing here and is frozen.
        text: the sentence encoder; None without VDFE and ASMoE.
        vdfe: None for features that keep their view.
        asmoe: None without attributes.
        cvpr: None for the class token only.
    """

    def __init__(
        self,
        image: ImageTower,
        text: SentenceEncoder | None,
        vdfe: VDFE | None,
        asmoe: ASMoE | None,
        cvpr: Refinement | None,
    ):
        super().__init__()
        if vdfe and not image.depth:
            raise InputError("vdfe=True, but the network has no class token and blocks that a view's token could join")
        if vdfe and vdfe.at is not None and not 0 <= vdfe.at < image.depth:
            raise InputError(f"inject_at={vdfe.at} should be a block of the image tower, 0 .. {image.depth - 1}")
        self.image, self.text = image, text
        self.vdfe, self.asmoe, self.cvpr = vdfe, asmoe, cvpr
        image.freeze_projection()
        if asmoe and not cvpr:  # f_asmoe reaches no loss
            asmoe.fusion.requires_grad_(False)

    def forward(
        self,
        images: Tensor,
        views: Tensor | None = None,
        attributes: Tensor | None = None,
        use_cache: bool = False,
    ) -> SVPRFeatures:
        """Encode images.

        Args:
            images: (B, 3, rows, cols).
            views: the place of each view's word, (B,), for VDFE.
            attributes: (B, M) that the sentences name, for ASMoE; None for sentences without any.
            use_cache: reuse encoded sentences of earlier batches while no weight changes.
        """
        cls, patches, view, entering = self._encode(images, views, use_cache)
        identity = cls
        if self.vdfe:
            identity, view = self.vdfe.decoupling(cls, view, entering)
        attribute_features = (
            self.asmoe(self._encode_attributes(identity, attributes, use_cache), patches, identity)
            if self.asmoe
            else None
        )
        refined = (
            self.cvpr(identity, attribute_features.vector if attribute_features else None, patches)
            if self.cvpr
            else None
        )
        return SVPRFeatures(identity, entering, view, attribute_features, refined)

    def _encode(
        self, images: Tensor, views: Tensor | None, use_cache: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Run the image tower, with a token of the view in its last blocks (Eq. 2)."""
        if self.vdfe is None:
            encoded, view = self.image(images), None
        else:
            text = require_given("text", self.text).views(require_given("views", views), use_cache)
            token = self.vdfe.token(text)
            encoded = self.image(images, token.unsqueeze(1), self.vdfe.at)
            view = encoded.tokens[:, -1]
        patches = encoded.tokens[:, 1 : 1 + self.image.num_patches]
        return encoded.tokens[:, 0], patches, view, encoded.before[:, 0]

    def _encode_attributes(self, identity: Tensor, labels: Tensor | None, use_cache: bool) -> Tensor:
        """Return the text of attributes, or that of a sentence without any: (B, C), (B, M) -> (B, E)."""
        text = require_given("text", self.text)
        if labels is not None:
            return text.attributes(labels, use_cache)
        nothing = torch.full((1, len(require_given("schema", text.schema))), UNKNOWN, device=identity.device)
        return text.attributes(nothing, use_cache).expand(identity.shape[0], -1)
