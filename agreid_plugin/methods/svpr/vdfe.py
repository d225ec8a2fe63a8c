"""View-Decoupled Feature Extractor (VDFE) of SVPR-ReID (Eqs. 1-4).

The text gives a token of the view (Eq. 1), which joins the image tower's tokens in the last blocks (Eq. 2); then class
token and view token are each freed of what they have of the other (Eqs. 3 and 4). The attention and the map phi that
are introduced here are used by ASMoE and CVPR, too.

Shapes: B images, Q queries, K keys, D width of both; n prompts, E width of the text's outputs, C width of image tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError
from agreid_plugin.methods.svpr.text import ViewText
from agreid_plugin.nn.attention import init_linear

HEADS = 8
DECOUPLING_HEADS = 4


class CrossAttention(nn.Module):
    """Multi-head attention of some tokens to others; queries, keys and values have no bias.

    Args:
        width: width of the tokens.
        heads: number of heads, which divides the width.
    """

    def __init__(self, width: int, heads: int = HEADS):
        super().__init__()
        if width % heads:
            raise InputError(f"heads={heads} should divide width={width} of the attention")
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.proj = nn.Linear(width, width)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Attend to the keys: (B, Q, D), (B, K, D) -> (B, Q, D)."""
        projected = self.query(queries), self.key(keys), self.value(keys)
        query, key, value = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in projected)
        seen = F.scaled_dot_product_attention(query, key, value)  # (B, heads, Q, D / heads)
        return self.proj(seen.transpose(1, 2).flatten(2))


class InverseNet(nn.Sequential):
    """phi, which maps a vector of the text to the space of image tokens: two layers with dropout after each.

    Args:
        inputs: width of the text's vectors; the hidden layer has four times as much.
        outputs: width of image tokens.
        dropout: probability of either dropout.
    """

    def __init__(self, inputs: int, outputs: int, dropout: float = 0.1):
        super().__init__(
            nn.Linear(inputs, 4 * inputs),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * inputs, outputs),
            nn.Dropout(dropout),
        )


class ViewToken(nn.Module):
    """The token of a view for the image tower: phi of the view descriptor (Eq. 1), with a learned position.

    Args:
        text_width: E.
        width: C.
        prompts: n.
    """

    def __init__(self, text_width: int, width: int, prompts: int = 4):
        super().__init__()
        self.attention = CrossAttention(text_width)
        self.fusion = nn.Linear(prompts * text_width, text_width)
        init_linear(self)
        self.inverse = InverseNet(text_width, width)
        self.position = nn.Parameter(torch.randn(width) * width**-0.5)

    def forward(self, text: ViewText) -> Tensor:
        """Make the token: (B, n, E), (B, E) -> (B, C)."""
        return self.inverse(self.fusion(self.descriptor(text).flatten(1))) + self.position

    def descriptor(self, text: ViewText) -> Tensor:
        """Return the view descriptor, P + CA(P, T, T) (Eq. 1): (B, n, E)."""
        return text.prompts + self.attention(text.prompts, text.key.unsqueeze(1))


class ViewDecoupling(nn.Module):
    """View-aware bidirectional decoupling: f_cls - CA(f_cls, f_view), and f_view - CA(f_view, a class token).

    Each attends to one token, and a softmax over one is 1: what is subtracted is an affine map of the other token.

    Args:
        width: C.
        scaled, entering_key, view_mlp: see `Variant`.
        heads: heads of either attention.
    """

    def __init__(
        self,
        width: int,
        scaled: bool = False,
        entering_key: bool = True,
        view_mlp: bool = False,
        heads: int = DECOUPLING_HEADS,
    ):
        super().__init__()
        if width % heads:
            raise InputError(f"heads={heads} should divide width={width} of the decoupling")
        self.of_view = nn.MultiheadAttention(width, heads, batch_first=True)
        self.of_cls = nn.MultiheadAttention(width, heads, batch_first=True)
        self.scale = nn.Parameter(torch.ones(())) if scaled else None
        self.entering_key = entering_key
        layers = [nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)]
        self.after = nn.Sequential(*layers) if view_mlp else nn.Identity()

    def forward(self, cls: Tensor, view: Tensor, entering: Tensor) -> tuple[Tensor, Tensor]:
        """Separate identity and view (Eqs. 3 and 4).

        Args:
            cls: the class token, (B, C).
            view: the view token, (B, C).
            entering: the class token as it entered the block where the view token joined it, (B, C).

        Returns:
            The identity's feature and the view's, both (B, C).
        """
        from_view = _attend_to(self.of_view, cls, view)
        identity = cls - (from_view if self.scale is None else self.scale * from_view)
        view = view - _attend_to(self.of_cls, view, entering if self.entering_key else identity)
        return identity, self.after(view)


class VDFE(nn.Module):
    """View token and the decoupling from it.

    Args:
        token: makes the view token from the text.
        decoupling: separates identity and view.
        at: i, the block before which the token joins the others; None for the last.
    """

    def __init__(self, token: ViewToken, decoupling: ViewDecoupling, at: int | None = None):
        super().__init__()
        self.token, self.decoupling, self.at = token, decoupling, at


def _attend_to(attention: nn.MultiheadAttention, query: Tensor, key: Tensor) -> Tensor:
    """Return the attention of one token to another: (B, C), (B, C) -> (B, C)."""
    query, key = query.unsqueeze(1), key.unsqueeze(1)
    return attention(query, key, key, need_weights=False)[0].squeeze(1)
