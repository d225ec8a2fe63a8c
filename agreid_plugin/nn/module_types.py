"""Types of modules for type checkers: lists of one kind, and the modules of open_clip, which ships no types.

None of the open_clip classes is ever instantiated. The modules are open_clip's own, built by `clip_build.build_clip`,
and have the attributes that are listed here, among others.

Shapes: P patches, C width of the image tower; L tokens, D width of the text tower; E width that both are projected to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from torch import Tensor, nn

Kind = TypeVar("Kind", bound=nn.Module)

if TYPE_CHECKING:

    class TypedModuleList(nn.ModuleList, Generic[Kind]):
        """An `nn.ModuleList` of modules of one kind."""

        def __init__(self, modules: Iterable[Kind]): ...

        @overload
        def __getitem__(self, idx: slice) -> TypedModuleList[Kind]: ...

        @overload
        def __getitem__(self, idx: int) -> Kind: ...

        def __getitem__(self, idx: int | slice) -> Kind | TypedModuleList[Kind]: ...

        def __iter__(self) -> Iterator[Kind]: ...

else:
    TypedModuleList = nn.ModuleList


class BlockMlp(nn.Module):
    """The feed-forward part of a block."""

    c_fc: nn.Linear
    gelu: nn.Module
    c_proj: nn.Linear


class ResidualBlock(nn.Module):
    """One block of either tower."""

    ln_1: nn.LayerNorm
    attn: nn.MultiheadAttention
    ln_2: nn.LayerNorm
    mlp: BlockMlp


class Blocks(nn.Module):
    """The blocks of a tower."""

    resblocks: TypedModuleList[ResidualBlock]


class Visual(nn.Module):
    """open_clip's `VisionTransformer`."""

    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    grid_size: tuple[int, int]
    conv1: nn.Conv2d
    class_embedding: nn.Parameter  # (C,)
    positional_embedding: nn.Parameter  # (1+P, C)
    ln_pre: nn.LayerNorm
    transformer: Blocks
    ln_post: nn.LayerNorm
    proj: nn.Parameter  # (C, E)


class Textual(nn.Module):
    """open_clip's `TextTransformer`."""

    context_length: int
    token_embedding: nn.Embedding
    positional_embedding: nn.Parameter  # (L, D)
    attn_mask: Tensor  # (L, L)
    transformer: Blocks
    ln_final: nn.LayerNorm
    text_projection: nn.Parameter  # (D, E)
