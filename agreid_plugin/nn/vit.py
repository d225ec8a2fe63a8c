"""Vision transformer with extra tokens between CLS and patches, and hooks before and after each block.

Shapes: B images, T extra tokens, N patches, D width. Tokens stand in the order CLS, extra, patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agreid_plugin.errors import InputError, require_int, require_known, require_within
from agreid_plugin.nn.attention import Block, init_linear
from agreid_plugin.nn.module_types import TypedModuleList
from agreid_plugin.nn.patch_features import Hook, TokenTransformer


@dataclass(frozen=True)
class ViTSize:
    """Width of a token, number of blocks, heads of each."""

    width: int
    depth: int
    heads: int


SIZES = {"tiny": ViTSize(192, 12, 3), "small": ViTSize(384, 12, 6), "base": ViTSize(768, 12, 12)}


class PatchEmbed(nn.Module):
    """Embedding of image patches, which overlap where the stride is below the patch size."""

    def __init__(self, patch_size: int, stride: tuple[int, int], width: int):
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch_size, stride)

    def forward(self, images: Tensor) -> Tensor:
        """Embed the patches, row by row: (B, 3, rows, cols) -> (B, N, D)."""
        return self.proj(images).flatten(2).transpose(1, 2)


class VisionTransformer(TokenTransformer):
    """ViT whose parameters have the names of timm and fast-reid.

    Linear weights, the CLS token and the position embedding start from a truncated normal of 0.02, linear biases
    from zero, the patch convolution as torch has it; `vit_weights.load_pretrained` fills them from a file.

    Args:
        image_size: (rows, columns) of the images.
        patch_size: side of a square patch.
        stride: step between patches, one number or (rows, columns); None for the patch size.
        width: width of a token.
        depth: number of blocks.
        heads: attention heads of a block.
        mlp_ratio: hidden width of the MLPs over `width`.
        qkv_bias: whether queries, keys and values have a bias.
        drop_path: probability of skipping a branch in the last block; it grows from 0 block by block.
        extra_tokens: number of tokens between CLS and the patches. Their position embeddings are here, they themselves
            are given to `forward`.
        checkpointing: compute each block again in the backward pass of training instead of keeping its activations.
    """

    def __init__(
        self,
        image_size: Sequence[int] = (256, 128),
        patch_size: int = 16,
        stride: int | Sequence[int] | None = None,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        drop_path: float = 0.1,
        extra_tokens: int = 0,
        checkpointing: bool = False,
    ):
        super().__init__()
        patch_size, self.image_size = require_int("patch_size", patch_size), to_pair("image_size", image_size)
        stride = to_pair("stride", patch_size if stride is None else stride)
        self.grid = count_patches(self.image_size, patch_size, stride)
        self.num_patches = self.grid[0] * self.grid[1]
        self.width, self.depth, self.heads = require_int("width", width), require_int("depth", depth), heads
        self.embed_width = width
        self.extra_tokens = require_int("extra_tokens", extra_tokens, least=0)
        self.checkpointing = checkpointing

        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + extra_tokens + self.num_patches, width))
        self.patch_embed = PatchEmbed(patch_size, stride, width)
        self.blocks = TypedModuleList(
            Block(width, heads, mlp_ratio, qkv_bias, rate) for rate in _spread_drop_rates(drop_path, depth)
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self._initialize()

    def patches(self, images: Tensor) -> Tensor:
        """Return the patch embeddings, without positions: (B, 3, rows, cols) -> (B, N, D)."""
        if images.dim() != 4 or images.shape[1] != 3:
            raise InputError(
                f"images={tuple(images.shape)} should have four dimensions: images, 3 colors, rows, columns"
            )
        size, wanted = tuple(images.shape[2:]), self.image_size
        if size != wanted:
            raise InputError(
                f"images of {size[0]}x{size[1]} do not suit the position embedding, made for {wanted[0]}x{wanted[1]}: "
                f"resize the images or build the model with image_size={size}"
            )
        return self.patch_embed(images)

    def embed_patches(self, images: Tensor) -> Tensor:
        """Return the patch embeddings with their positions, before any block: (B, 3, rows, cols) -> (B, N, D)."""
        return self.patches(images) + self.pos_embed[:, -self.num_patches :]

    def forward(
        self,
        images: Tensor,
        extra: Tensor | None = None,
        before: Hook | None = None,
        after: Hook | None = None,
        first: int | None = None,
    ) -> Tensor:
        """Return the tokens after the final norm: (B, 3, rows, cols) -> (B, 1+T+N or first, D).

        Args:
            images: a batch of images of `image_size`.
            extra: the extra tokens, (T, D) for all images or (B, T, D); given if and only if there are any.
            before: called before each block. Hooks run outside gradient checkpointing, hence once a pass.
            after: called after each block.
            first: number of tokens to return; None for all. The last block is computed for these only, with the same
                result.
        """
        patches, batch = self.patches(images), images.shape[0]
        parts = [self.cls_token.expand(batch, -1, -1), *self._expand_extra(extra, batch), patches]
        tokens = torch.cat(parts, dim=1) + self.pos_embed  # (B, 1+T+N, D)
        for number, block in enumerate(self.blocks):
            tokens = before(number, tokens) if before else tokens
            tokens = self._run(block, tokens, first if number == self.depth - 1 else None)
            tokens = after(number, tokens) if after else tokens
        return self.norm(tokens)

    def _run(self, block: Block, tokens: Tensor, first: int | None) -> Tensor:
        if self.checkpointing and self.training:
            return checkpoint(block, tokens, first, use_reentrant=False)
        return block(tokens, first)

    def _expand_extra(self, extra: Tensor | None, batch: int) -> list[Tensor]:
        """Return a list of the extra tokens of each image, empty if there are none."""
        if extra is None and self.extra_tokens == 0:
            return []
        shape = (self.extra_tokens, self.width)
        given = None if extra is None else tuple(extra.shape)
        if extra is None or given not in (shape, (batch, *shape)) or self.extra_tokens == 0:
            wanted = f"{shape} or {(batch, *shape)}" if self.extra_tokens else "left out"
            raise InputError(f"extra={given} should be {wanted}: the model was built with extra_tokens={shape[0]}")
        return [extra.expand(batch, *shape)]

    def _initialize(self) -> None:
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        init_linear(self.blocks)


def build_vit(size: str, **arguments: Any) -> VisionTransformer:
    """Build a ViT of a size known by name (`tiny`, `small`, `base`); other arguments go to `VisionTransformer`.

    Example:
        >>> vit = build_vit("tiny", image_size=(64, 32), depth=1)
        >>> vit.grid, vit(torch.zeros(2, 3, 64, 32)).shape  # CLS and 8 patches
        ((4, 2), torch.Size([2, 9, 192]))
    """
    shape = SIZES[require_known("ViT size", size, SIZES)]
    return VisionTransformer(**asdict(shape) | arguments)


def to_pair(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    """Return (rows, columns) from one number for both or from two."""
    both = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(both) != 2 or not all(isinstance(number, int) and number > 0 for number in both):
        raise InputError(f"{name}={value!r} should be two whole numbers above 0, rows and columns")
    return both


def count_patches(image_size: tuple[int, int], patch_size: int, stride: tuple[int, int]) -> tuple[int, int]:
    """Count the rows and columns of patches that lie within the image."""
    if patch_size > min(image_size):
        raise InputError(f"patch_size={patch_size} should be at most the shorter side of image_size={image_size}")
    rows, cols = ((side - patch_size) // step + 1 for side, step in zip(image_size, stride, strict=True))
    return rows, cols


def _spread_drop_rates(last: float, depth: int) -> list[float]:
    """Grow from 0 at the first block to `last` at the last one."""
    require_within("drop_path", last, 0, 1)
    return [last * number / max(depth - 1, 1) for number in range(depth)]
