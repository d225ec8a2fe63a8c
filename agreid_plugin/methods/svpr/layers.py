"""Layers that several modules of SVPR-ReID have.

Shapes: B images, Q queries, K keys, D width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError

HEADS = 8


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
        """Let each query look at the keys: (B, Q, D), (B, K, D) -> (B, Q, D)."""
        projected = self.query(queries), self.key(keys), self.value(keys)
        query, key, value = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in projected)
        seen = F.scaled_dot_product_attention(query, key, value)  # (B, heads, Q, D / heads)
        return self.proj(seen.transpose(1, 2).flatten(2))


class InverseNet(nn.Sequential):
    """phi, which takes a vector of the text to the space of image tokens: two layers with dropout after each.

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
