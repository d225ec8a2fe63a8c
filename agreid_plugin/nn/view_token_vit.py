"""View-token ViT: an encoder that subtracts a view token from the class token (VDT; ViSA's VAB), and a plain one.

The view-aware backbone (VAB) of ViSA, Sec. 3.2, is `DecoupledEncoder` with a token for each view; its plain form is
`methods.visa.reference.encode`.

Shapes: B images, N patches, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_known
from agreid_plugin.nn.patch_features import PatchNetwork, TokenTransformer
from agreid_plugin.types import View

CLS, VIEW, FIRST_PATCH = 0, 1, 2  # order of the tokens
SHEDS = ("paper", "gated")


@dataclass(frozen=True)
class EncoderOutputs:
    """Outputs of an encoder. Without view tokens the class token is both identity and view."""

    cls: Tensor  # (B, D)
    view: Tensor  # (B, D)
    identity: Tensor  # (B, D)
    patches: Tensor  # (B, N, D) as they enter the last block, not normalized

    @property
    def feature(self) -> Tensor:
        """Input of a head: the identity feature, (B, D)."""
        return self.identity


class DecoupledEncoder(nn.Module):
    """ViT with a view token that is subtracted from the class token block by block (VDT; ViSA's view-aware backbone).

    Args:
        vit: the transformer, built with one extra token; of another library, see `network_adapters`.
        views: 1 for a token that all images share (VDT), 2 for one a view, chosen by the image's (ViSA).
        per_block: give every block its view tokens, which are added to the view token from the previous block, instead
            of the first block only. Those of later blocks start at zero, where both are the same.
        subtractions: number of blocks after which the view token is subtracted; None for all. It is always subtracted
            once more after the final norm, which gives `EncoderOutputs.identity`.
        shed: `paper`, or `gated`: each subtraction has a factor for every channel, which is learned and starts at 0. A
            new view token comes out of a trained ViT as a copy of the class token, so that subtracting it would take
            away what the ViT knows; with gates the class token starts as it is.
    """

    def __init__(
        self,
        vit: TokenTransformer,
        views: int = 1,
        per_block: bool = False,
        subtractions: int | None = None,
        shed: str = "paper",
    ):
        super().__init__()
        if vit.extra_tokens != 1:
            raise InputError(f"the ViT has extra_tokens={vit.extra_tokens}, but a view token needs extra_tokens=1")
        self.vit = vit
        self.width, self.num_patches = vit.width, vit.num_patches
        self.needs_views = views > 1
        self.subtractions = vit.depth if subtractions is None else subtractions
        self.view_tokens = nn.Parameter(torch.zeros(vit.depth if per_block else 1, views, vit.width))
        gated = require_known("shed", shed, SHEDS) == "gated"
        self.gates = nn.Parameter(torch.zeros(self.subtractions + 1, vit.width)) if gated else None

    def forward(self, images: Tensor, views: Tensor | None = None) -> EncoderOutputs:
        """Encode images; their views, (B,), are needed if there is a token for each."""
        view_tokens = self._select_tokens(images.shape[0], views)  # (blocks or 1, B, D)
        before_last: list[Tensor] = []

        def add_view_tokens(number: int, tokens: Tensor) -> Tensor:
            if number == self.vit.depth - 1:
                before_last.append(tokens[:, FIRST_PATCH : FIRST_PATCH + self.num_patches])
            if 0 < number < len(view_tokens):
                view = tokens[:, VIEW] + view_tokens[number]
                return torch.cat([tokens[:, :VIEW], view.unsqueeze(1), tokens[:, FIRST_PATCH:]], dim=1)
            return tokens

        tokens = self.vit(images, view_tokens[0].unsqueeze(1), add_view_tokens, self._subtract, first=FIRST_PATCH)
        cls, view = tokens[:, CLS], tokens[:, VIEW]
        return EncoderOutputs(cls, view, cls - self._gate(-1, view), before_last[0])

    def _select_tokens(self, batch: int, views: Tensor | None) -> Tensor:
        if not self.needs_views:
            return self.view_tokens.expand(-1, batch, -1)
        if views is None:
            raise InputError(f"the view of each image is needed: {', '.join(view.word for view in View)}")
        return self.view_tokens[:, views]

    def _subtract(self, number: int, tokens: Tensor) -> Tensor:
        if number >= self.subtractions:
            return tokens
        shed = self._gate(number, tokens[:, VIEW:FIRST_PATCH])
        return torch.cat([tokens[:, :VIEW] - shed, tokens[:, VIEW:]], dim=1)

    def _gate(self, number: int, view: Tensor) -> Tensor:
        return view if self.gates is None else self.gates[number] * view


class PlainEncoder(nn.Module):
    """A ViT or a CNN without a view token, behind the same interface.

    Args:
        vit: the network.
    """

    needs_views = False

    def __init__(self, vit: PatchNetwork):
        super().__init__()
        if vit.extra_tokens:
            raise InputError(f"the ViT has extra_tokens={vit.extra_tokens}, but a plain encoder has none")
        self.vit = vit
        self.width, self.num_patches = vit.width, vit.num_patches

    def forward(self, images: Tensor, views: Tensor | None = None) -> EncoderOutputs:  # noqa: ARG002 - the others need them
        """Encode images."""
        features = self.vit.patch_features(images)
        return EncoderOutputs(features.vector, features.vector, features.vector, features.patches)


Encoder = DecoupledEncoder | PlainEncoder
"""Either encoder: both return `EncoderOutputs`."""
