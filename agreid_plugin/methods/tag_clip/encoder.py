"""Towers of TAG-CLIP: an image tower with a view token and mixtures of experts, and CLIP's text tower.

Shapes: B images or sentences of N or L tokens, P patches, C width of the image tower, E width that both are projected
to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_known
from agreid_plugin.methods.tag_clip.hrmoe import BlockRouting, HRMoEBlock, MoEBlock
from agreid_plugin.nn.clip import ImageTower, TextTower

BLOCKS = ("hr_moe", "moe", "vit")


@dataclass(frozen=True)
class TowerOutputs:
    """Outputs of a tower."""

    tokens: Tensor  # (B, N, E) after the final norm, projected; of images CLS and patches, without the view token
    attention: Tensor | None  # (B, N) of CLS or EOT in the last block, averaged over heads; None if not asked for
    routed: tuple[BlockRouting, ...] = ()  # by block that has experts


@dataclass(frozen=True)
class PairOutputs:
    """Outputs of both towers; None for one without input."""

    images: TowerOutputs | None
    texts: TowerOutputs | None


class ImageEncoder(nn.Module):
    """A tower of CLIP some of whose blocks have experts instead of an MLP; see `HRMoEBlock`.

    With HR-MoE a learned view token is the last token from the first block to the last that has experts, and is dropped
    there. It has no position, and passes the norm before the first block like the others.

    Args:
        tower: the tower, with its pretrained weights: experts start as copies of its MLPs. Its blocks are replaced. For
            one of another library see `nn.network_tower`.
        kind: `hr_moe`, `moe` (no view token, no groups) or `vit` (unchanged blocks) (Table 4).
        at: the blocks that have experts, counted from 0; unused by `vit`.
        block: further arguments of `HRMoEBlock` or `MoEBlock`.
    """

    def __init__(self, tower: ImageTower, kind: str = "hr_moe", at: Sequence[int] = (6, 7, 8), **block: Any):
        super().__init__()
        self.at = () if require_known("block", kind, BLOCKS) == "vit" else _check_blocks(at, tower.depth)
        self.tower, has_view = tower, kind == "hr_moe"
        make = HRMoEBlock if has_view else MoEBlock
        if not tower.depth:
            raise InputError("the network has no class token and blocks that take tokens, which TAG-CLIP needs")
        for number in self.at:
            old = tower.blocks[number]
            tower.blocks[number] = make(old, **block)
            _require_copy(old, tower.blocks[number], tower.width)
        self.view_token = nn.Parameter(tower.width**-0.5 * torch.randn(tower.width)) if has_view else None

    def forward(self, images: Tensor, attention: bool = True) -> TowerOutputs:
        """Encode images, with the attention of CLS if asked for: (B, 3, rows, cols)."""
        tokens, row, routed = self._start(images), None, []
        for number, block in enumerate(self.tower.blocks):
            if attention and number == self.tower.depth - 1:
                with torch.no_grad():
                    row = self.tower.cls_attention(tokens)[:, : 1 + self.tower.num_patches]
            if isinstance(block, MoEBlock):
                tokens, one = block.run_with_routing(tokens)
                routed.append(one)
            else:
                tokens = block(tokens)
            if self.view_token is not None and number == self.at[-1]:
                tokens = tokens[:, :-1]
        tokens = tokens[:, : 1 + self.tower.num_patches]  # some networks have tokens of their own behind them
        return TowerOutputs(self.tower.project(self.tower.end(tokens)), row, tuple(routed))

    def freeze_image_routers(self) -> None:
        """Switch off the gradients of the image-level routers, which only the view loss has any for."""
        for block in self.tower.blocks:
            if isinstance(block, HRMoEBlock):
                block.image_router.requires_grad_(False)

    def _start(self, images: Tensor) -> Tensor:
        tokens = self.tower.start(images)
        if self.view_token is None:
            return tokens
        view = self.tower.enter(self.view_token).to(tokens.dtype)
        return torch.cat([tokens, view.expand(tokens.shape[0], 1, -1)], dim=1)


def read_texts(tower: TextTower, tokens: Tensor, attention: bool = True) -> TowerOutputs:
    """Encode sentences in one pass, with the attention of EOT if asked for: (B, L)."""
    return TowerOutputs(*tower.with_attention(tokens)) if attention else TowerOutputs(tower(tokens), None)


def set_text_dropout(tower: TextTower, dropout: float) -> None:
    """Set the dropout of attention weights in every block."""
    for block in tower.blocks:
        block.attn.dropout = dropout


def _check_blocks(at: Sequence[int], depth: int) -> tuple[int, ...]:
    """Return the numbers of blocks in order, or refuse them."""
    numbers = tuple(sorted(set(at)))
    if not numbers or len(numbers) != len(at) or not 0 <= numbers[0] <= numbers[-1] < depth:
        raise InputError(f"at={list(at)} should be blocks with experts, each once: 0 .. {depth - 1}")
    return numbers


@torch.no_grad()
def _require_copy(old: nn.Module, new: nn.Module, width: int) -> None:
    """Refuse a block that does more than attention and an MLP, which one with experts would leave out."""
    parameter = next(old.parameters())
    if parameter.is_meta:  # a model of shapes, without values to compare
        return
    tokens = torch.randn(1, 4, width, generator=torch.Generator().manual_seed(0)).to(parameter)
    training, _ = old.training, (old.eval(), new.eval())
    same = torch.allclose(old(tokens), new(tokens), rtol=1e-3, atol=1e-4)
    old.train(training), new.train(training)
    if not same:
        raise InputError(f"{type(old).__name__} does more than attention and an MLP: it cannot have experts")
