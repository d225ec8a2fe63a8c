"""Patch features: a class token or pooled vector, and patch tokens, which parts of methods need of any network.

ETGM and DLFM of ViSA, ASMoE and CVPR of SVPR-ReID work on a `PatchNetwork`; view tokens need a `TokenTransformer`.
`network_adapters.adapt_network` makes either of a network of another library.

Shapes: B images, N patches, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

Hook = Callable[[int, Tensor], Tensor]
"""Takes a block's number and all tokens (B, 1+T+N, D), and returns the tokens that replace them."""


@dataclass(frozen=True)
class PatchFeatures:
    """Features of images in parts; a network whose `patch_features(images)` returns them needs no adapter."""

    vector: Tensor  # (B, D) class token, or mean of the patches
    patches: Tensor  # (B, N, D) row by row
    grid: tuple[int, int]  # rows and columns of patches


class PatchNetwork(nn.Module):
    """Base of networks with patches: a ViT, or a CNN, whose patches are the cells of its last map.

    Attributes:
        width: D.
        embed_width: D' of embedded patches.
        heads: heads that attention to the patches should have.
        grid: rows and columns of patches.
        num_patches: N.
        extra_tokens: tokens of a method beside the class token.
    """

    width: int
    embed_width: int
    heads: int
    grid: tuple[int, int]
    num_patches: int
    extra_tokens: int = 0

    def patch_features(self, images: Tensor) -> PatchFeatures:
        """Encode images: (B, 3, rows, cols)."""
        raise NotImplementedError

    def embed_patches(self, images: Tensor) -> Tensor:
        """Return the patches as they are before any token of a view is there: (B, 3, rows, cols) -> (B, N, D')."""
        raise NotImplementedError


class TokenTransformer(PatchNetwork):
    """Base of transformers whose blocks take all tokens: CLS, extra, patches, then others that the network has."""

    depth: int
    has_cls = True

    def patch_features(self, images: Tensor) -> PatchFeatures:
        """Return the class token, and patches as they enter the last block, not normalized: (B, 3, rows, cols)."""
        entering: list[Tensor] = []

        def keep(number: int, tokens: Tensor) -> Tensor:
            if number == self.depth - 1:
                entering.append(tokens[:, int(self.has_cls) :][:, : self.num_patches])
            return tokens

        tokens = self(images, before=keep, first=1 if self.has_cls else self.num_patches)
        vector = tokens[:, 0] if self.has_cls else tokens.mean(dim=1)
        return PatchFeatures(vector, entering[0], self.grid)
