"""CLIP's image and text towers around open_clip's modules, for methods that add tokens between blocks; its tokenizer.

`clip_build.build_clip` builds them, `clip_weights.load_clip` fills them from a file.

Shapes: B images, P patches, T extra tokens, C width of the image tower; N sentences of L tokens, D width of the text
tower; E width that both are projected to.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from agreid_plugin.errors import InputError, first_line
from agreid_plugin.nn.module_types import ResidualBlock, Textual, TypedModuleList, Visual

SOT, EOT = 49406, 49407  # tokens that start and end a sentence
SPECIAL_WORD = re.compile(r"<(?:start|end)_of_text>", re.IGNORECASE)


@dataclass(frozen=True)
class ImageTokens:
    """Outputs of the image tower."""

    before: Tensor  # (B, 1+P, C) as they enter the block where extra tokens join them, not normalized
    tokens: Tensor  # (B, 1+P+T, C) CLS, patches, extra tokens; after the last block and its norm

    @property
    def feature(self) -> Tensor:
        """Input of a head: CLS, (B, C)."""
        return self.tokens[:, 0]


class ImageTower(nn.Module):
    """CLIP's vision transformer, which can be run block by block.

    Attributes:
        visual: the `VisionTransformer` of open_clip.
        width: C.
        embed_width: width of `patches`.
        depth: number of blocks.
        embed_dim: E.
        image_size: (rows, columns) of images.
        grid: (rows, columns) of patches.
        num_patches: P.
    """

    def __init__(self, visual: Visual):
        super().__init__()
        self.visual = visual
        self.width, self.embed_dim = visual.proj.shape
        self.embed_width = self.width
        self.depth = len(visual.transformer.resblocks)
        self.image_size, self.grid = visual.image_size, visual.grid_size
        self.num_patches = self.grid[0] * self.grid[1]

    @property
    def blocks(self) -> TypedModuleList[ResidualBlock]:
        """The blocks, each with `ln_1`, `attn`, `ln_2` and `mlp`."""
        return self.visual.transformer.resblocks

    def patches(self, images: Tensor) -> Tensor:
        """Return the patch embeddings with their positions, before any norm: (B, 3, rows, cols) -> (B, P, C)."""
        if images.dim() != 4 or tuple(images.shape[1:]) != (3, *self.image_size):
            rows, cols = self.image_size
            raise InputError(f"images={tuple(images.shape)} should be (images, 3, {rows}, {cols}): see image_size")
        embedded = self.visual.conv1(images).flatten(2).transpose(1, 2)
        return embedded + self.visual.positional_embedding[1:].to(embedded.dtype)

    def enter(self, tokens: Tensor) -> Tensor:
        """Return tokens of a method as the first block takes them: (..., C)."""
        return self.visual.ln_pre(tokens)

    def freeze_projection(self) -> None:
        """Leave the projection to the space of both towers as it is."""
        self.visual.proj.requires_grad_(False)

    def freeze_patches(self) -> None:
        """Leave the embedding of patches as it is."""
        self.visual.conv1.requires_grad_(False)

    def start(self, images: Tensor) -> Tensor:
        """Return the tokens that enter the first block: (B, 3, rows, cols) -> (B, 1+P, C)."""
        patches = self.patches(images)
        cls = self.visual.class_embedding.to(patches.dtype) + self.visual.positional_embedding[0].to(patches.dtype)
        return self.visual.ln_pre(torch.cat([cls.expand(patches.shape[0], 1, -1), patches], dim=1))

    def run(self, tokens: Tensor, first: int = 0, last: int | None = None) -> Tensor:
        """Run the blocks `first` to `last` - 1 (to the end without a `last`) on any number of tokens."""
        for block in self.blocks[first:last]:
            tokens = block(tokens)
        return tokens

    def end(self, tokens: Tensor) -> Tensor:
        """Return every token after the final norm."""
        return self.visual.ln_post(tokens)

    def project(self, tokens: Tensor) -> Tensor:
        """Take tokens after the final norm to the space of both towers: (..., C) -> (..., E)."""
        return tokens @ self.visual.proj

    def forward(self, images: Tensor, extra: Tensor | None = None, at: int | None = None) -> ImageTokens:
        """Run all of the tower.

        Args:
            images: (B, 3, rows, cols).
            extra: tokens to append, (B, T, C).
            at: the block before which they join the others; None for the last.
        """
        at = self.depth - 1 if at is None else at
        if not 0 <= at < self.depth:
            raise InputError(f"at={at} should be a block, 0 .. {self.depth - 1}")
        tokens = before = self.run(self.start(images), last=at)
        if extra is not None:
            if extra.dim() != 3 or (len(extra), extra.shape[2]) != (len(images), self.width):
                raise InputError(f"extra={tuple(extra.shape)} should be ({len(images)}, tokens, {self.width})")
            tokens = torch.cat([before, extra], dim=1)
        return ImageTokens(before, self.end(self.run(tokens, first=at)))

    def cls_attention(self, tokens: Tensor) -> Tensor:
        """Return the attention of CLS in the last block, averaged over heads, from its input: (B, n, C) -> (B, n)."""
        return _attend_once(self.blocks[-1], tokens, tokens[:, :1], None)


class TextTower(nn.Module):
    """CLIP's text transformer, which returns every position and takes embeddings in the place of tokens.

    Attributes:
        text: the `TextTransformer` of open_clip.
        width: D.
        depth: number of blocks.
        embed_dim: E.
        length: maximum number of tokens of a sentence, with the two that start and end it.
    """

    def __init__(self, text: Textual):
        super().__init__()
        self.text = text
        self.width, self.embed_dim = text.text_projection.shape
        self.depth, self.length = len(text.transformer.resblocks), text.context_length

    @property
    def blocks(self) -> TypedModuleList[ResidualBlock]:
        """The blocks, each with `ln_1`, `attn`, `ln_2` and `mlp`."""
        return self.text.transformer.resblocks

    def tokenize(self, sentences: str | Sequence[str]) -> Tensor:
        """Return the tokens of each sentence, on the tower's device; see `tokenize`: (N, length)."""
        return tokenize(sentences, self.length).to(self.text.positional_embedding.device)

    def count(self, sentence: str) -> int:
        """Count the tokens of an uncut sentence, with the two that start and end it."""
        return count_tokens(sentence)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of tokens, without positions: (N, L) -> (N, L, D)."""
        return self.text.token_embedding(tokens)

    def forward(self, tokens: Tensor, embeddings: Tensor | None = None) -> Tensor:
        """Return every position after the final norm, projected: (N, L) -> (N, L, E).

        Args:
            tokens: (N, L); L may be below `length`, with the same result for these positions.
            embeddings: (N, L, D) instead of those of `tokens`, of which only the shape then counts.
        """
        return self._end(self._run(self._start(tokens, embeddings)))

    def with_attention(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return every position as `forward` does, and the attention of sentences' ends: (N, L) -> (N, L, E), (N, L).

        The attention is that of the last block, averaged over heads, without a gradient. In training it is taken after
        dropout, as the block uses it.
        """
        entering = self._run(self._start(tokens, None), last=-1)
        with torch.no_grad():
            row = self._attend_from_end(entering, tokens)
        return self._end(self._run(entering, first=-1)), row

    def find_ends(self, tokens: Tensor) -> Tensor:
        """Return where each sentence ends, at its first `EOT`: (N, L) -> (N,)."""
        found = tokens == EOT
        if not torch.compiler.is_compiling() and not found.any(dim=1).all():
            raise InputError(f"tokens should have the end of text, {EOT}, in every sentence: see `TextTower.tokenize`")
        return found.int().argmax(dim=1)

    def pool(self, outputs: Tensor, tokens: Tensor) -> Tensor:
        """Return the row of each sentence's end: (N, L, E) -> (N, E)."""
        return outputs[torch.arange(outputs.shape[0], device=outputs.device), self.find_ends(tokens)]

    def _start(self, tokens: Tensor, embeddings: Tensor | None) -> Tensor:
        if tokens.dim() != 2 or not 0 < tokens.shape[1] <= self.length:
            raise InputError(f"tokens={tuple(tokens.shape)} should be (sentences, 1 .. {self.length}): see text_length")
        embeddings = self.embed(tokens) if embeddings is None else embeddings
        if tuple(embeddings.shape) != (*tokens.shape, self.width):
            raise InputError(f"embeddings={tuple(embeddings.shape)} should be {(*tokens.shape, self.width)}")
        return embeddings + self.text.positional_embedding[: tokens.shape[1]].to(embeddings.dtype)

    def _run(self, tokens: Tensor, first: int | None = None, last: int | None = None) -> Tensor:
        mask = self.text.attn_mask[: tokens.shape[1], : tokens.shape[1]]
        for block in self.blocks[first:last]:
            tokens = block(tokens, attn_mask=mask)
        return tokens

    def _end(self, tokens: Tensor) -> Tensor:
        return self.text.ln_final(tokens) @ self.text.text_projection

    def _attend_from_end(self, entering: Tensor, tokens: Tensor) -> Tensor:
        """Return the attention of sentences' ends in the last block, from its input: (N, L, D), (N, L) -> (N, L)."""
        later = torch.arange(tokens.shape[1], device=tokens.device) > self.find_ends(tokens)[:, None]  # (N, L)
        return _attend_once(self.blocks[-1], entering, self.pool(entering, tokens)[:, None], later)


@dataclass
class CLIP:
    """The two towers of one model."""

    image: ImageTower
    text: TextTower


def _attend_once(block: ResidualBlock, tokens: Tensor, query: Tensor, hidden: Tensor | None) -> Tensor:
    """Return the attention of one token an item, (B, 1, C), to the inputs of a block: (B, n, C) -> (B, n)."""
    keys = block.ln_1(tokens)
    return block.attn(block.ln_1(query), keys, keys, key_padding_mask=hidden, need_weights=True)[1][:, 0]


def tokenize(sentences: str | Sequence[str], length: int) -> Tensor:
    """Return the tokens of each sentence, zeros after its end: (N, length).

    A sentence that is too long is cut and still ends with `EOT`. The words `<start_of_text>` and
    `<end_of_text>` become `SOT` and `EOT`.
    """
    sentences = [sentences] if isinstance(sentences, str) else sentences
    rows = torch.zeros(len(sentences), length, dtype=torch.long)
    for row, sentence in zip(rows, sentences, strict=True):
        ids = [SOT, *_encode_words(sentence)[: length - 2], EOT]
        row[: len(ids)] = torch.tensor(ids)
    return rows


@dataclass(frozen=True)
class Tokenizer:
    """CLIP's tokenizer without a tower: data loaders are made before the model, and run in other processes."""

    length: int

    def __call__(self, caption: str) -> Tensor:
        """Return the tokens of a caption, cut at `length` and still ended: (length,)."""
        return tokenize(caption, self.length)[0]

    def is_long(self, caption: str) -> bool:
        """Return whether a caption has to be cut."""
        return count_tokens(caption) > self.length


def count_tokens(sentence: str) -> int:
    """Count the tokens of an uncut sentence, with the two that start and end it."""
    return len(_encode_words(sentence)) + 2


def _encode_words(sentence: str) -> list[int]:
    """Return the tokens of a sentence without start and end; a special word is one token wherever it stands."""
    return _load_tokenizer().encode(SPECIAL_WORD.sub(r" \g<0> ", sentence))


@cache
def _load_tokenizer() -> Any:
    return import_open_clip("open_clip.tokenizer").SimpleTokenizer()


def import_open_clip(module: str) -> ModuleType:
    """Import open_clip or a module of it, which only the methods on CLIP need."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f'CLIP needs open_clip, which does not import ({first_line(error)}): pip install "agreid-plugin[clip]"'
        ) from error
