"""Transformer blocks: attention, MLP, stochastic depth, and the two orders of normalization around them.

Shapes: B images, T tokens of width D, H heads.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_within


class Attention(nn.Module):
    """Multi-head self-attention with one projection for queries, keys and values.

    Args:
        width: width of a token.
        heads: number of heads, which divides the width.
        qkv_bias: whether that projection has a bias.
    """

    def __init__(self, width: int, heads: int, qkv_bias: bool = True):
        super().__init__()
        if heads < 1 or width % heads:
            raise InputError(f"heads={heads} should divide width={width} of the attention")
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor, first: int | None = None) -> Tensor:
        """Let every token, or the `first` few, attend to all of its image: (B, T, D) -> (B, T or first, D)."""
        if first is None:
            query, key, value = self._split(self.qkv(tokens), 3)
        else:
            width = tokens.shape[-1]
            weight, bias = self.qkv.weight, self.qkv.bias
            query_bias, rest_bias = (None, None) if bias is None else (bias[:width], bias[width:])
            (query,) = self._split(F.linear(tokens[:, :first], weight[:width], query_bias), 1)
            key, value = self._split(F.linear(tokens, weight[width:], rest_bias), 2)
        seen = F.scaled_dot_product_attention(query, key, value)
        return self.proj(seen.transpose(1, 2).flatten(2))

    def cls_attention(self, tokens: Tensor) -> Tensor:
        """Return the attention of the first token, averaged over heads: (B, T, D) -> (B, T), adding up to 1."""
        query, key, _ = self._split(self.qkv(tokens), 3)  # (B, H, T, D / H) each
        logits = query[:, :, :1] @ key.mT / math.sqrt(query.shape[-1])
        return logits.softmax(dim=-1).mean(dim=1).squeeze(1)

    def _split(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Split queries, keys and values by heads: (B, T, parts * D) -> each (B, H, T, D / H)."""
        heads = projected.unflatten(-1, (parts, self.heads, -1))  # (B, T, parts, H, D / H)
        return heads.permute(2, 0, 3, 1, 4).unbind(0)


class Mlp(nn.Module):
    """Two linear layers with an exact GELU between them, applied to each token."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        if hidden < 1:
            raise InputError(f"hidden={hidden} should be 1 or more: raise mlp_ratio of a model of width={width}")
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map each token: (B, T, D) -> (B, T, D)."""
        return self.fc2(F.gelu(self.fc1(tokens)))


class DropPath(nn.Module):
    """Stochastic depth: in training, zeroes the branch of an image with probability `rate`.

    The remaining branches are divided by 1 - rate, which keeps the mean. In evaluation nothing changes.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = require_within("drop_path", rate, 0, 1)

    def forward(self, branch: Tensor) -> Tensor:
        """Drop some images' branches: (B, ...) -> (B, ...)."""
        if not self.training or self.rate == 0:
            return branch
        ones = branch.new_ones(branch.shape[0], *[1] * (branch.dim() - 1))
        return branch * F.dropout(ones, self.rate)

    def extra_repr(self) -> str:
        """Name the rate when printed."""
        return f"rate={self.rate:g}"


class Block(nn.Module):
    """Pre-norm transformer block: t + Attn(LN(t)), then t + Mlp(LN(t)).

    Args:
        width: width of a token.
        heads: number of attention heads.
        mlp_ratio: hidden width of the MLP over `width`.
        qkv_bias: whether queries, keys and values have a bias.
        drop_path: probability of skipping each of the two branches in training.
    """

    def __init__(self, width: int, heads: int, mlp_ratio: float = 4.0, qkv_bias: bool = True, drop_path: float = 0.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads, qkv_bias)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width, int(width * mlp_ratio))
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tensor, first: int | None = None) -> Tensor:
        """Run the block for all tokens, or only for the `first` few: (B, T, D) -> (B, T or first, D)."""
        tokens = tokens[:, :first] + self.drop_path(self.attn(self.norm1(tokens), first))
        return tokens + self.drop_path(self.mlp(self.norm2(tokens)))


class PostNormBlock(nn.Module):
    """Post-norm transformer block: t = LN(t + Attn(t)), then t = LN(t + Mlp(t)). Its attention has no qkv bias.

    Args:
        width: width of a token.
        heads: number of attention heads.
        mlp_ratio: hidden width of the MLP over `width`.
    """

    def __init__(self, width: int, heads: int, mlp_ratio: float = 4.0):
        super().__init__()
        self.attn = Attention(width, heads, qkv_bias=False)
        self.norm1 = nn.LayerNorm(width, eps=1e-5)
        self.mlp = Mlp(width, int(width * mlp_ratio))
        self.norm2 = nn.LayerNorm(width, eps=1e-5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Run the block: (B, T, D) -> (B, T, D)."""
        tokens = self.norm1(tokens + self.attn(tokens))
        return self.norm2(tokens + self.mlp(tokens))


def init_linear(module: nn.Module) -> None:
    """Initialize the linear layers of a module: a truncated normal of 0.02, biases zero."""
    for each in module.modules():
        if isinstance(each, nn.Linear):
            nn.init.trunc_normal_(each.weight, std=0.02)
            if each.bias is not None:
                nn.init.zeros_(each.bias)
