"""Token Selection Embedding (TSE) of RDE (CVPR 2024): a local feature from the most attended tokens.

Shapes: B images or sentences of N tokens, E width of a token, k selected tokens, W width of the feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_within

SHARE = 0.3  # of the tokens
WIDTH = 1024  # of the feature


@dataclass(frozen=True)
class SelectedTokens:
    """The local feature, and the tokens it was made of."""

    features: Tensor  # (B, W)
    indices: Tensor  # (B, k) places of the tokens, the most attended first
    real: Tensor  # (B, k) False where there was no token left to select; such places follow the real ones


class TokenSelection(nn.Module):
    """Selects the tokens that a summary token attends to most, embeds each, and takes the maximum of each channel.

    E = Linear(f) + Linear(ReLU(BatchNorm(Linear(f)))) of each selected token f, scaled to length 1; max over them.

    Where a sentence has fewer tokens than are selected, padding does not count. The released code of TAG-CLIP leaves it
    out of the maximum as well, but not out of the statistics of the batch norm, where ties decide which padding enters.
    Here the statistics are of real tokens only, so that training differs for short sentences; evaluation is the same.

    The released code also has a linear layer for images and two batch norms that nothing reads; they are left out.

    Args:
        width: E.
        candidates: most tokens there are to select from: patches, or words of the longest sentence.
        share: part of the candidates to select, rounded down, but one token at least. It is a part of all candidates:
            for a short sentence it may be every word.
        out_width: W.

    Example:
        >>> tse = TokenSelection(width=8, candidates=10, share=0.3, out_width=16)
        >>> tokens, attention = torch.randn(2, 11, 8), torch.arange(22.0).view(2, 11)
        >>> selected = tse(tokens, attention, mask_patches(tokens))
        >>> selected.features.shape, selected.indices.tolist()
        (torch.Size([2, 16]), [[10, 9, 8], [10, 9, 8]])
    """

    def __init__(self, width: int, candidates: int, share: float = SHARE, out_width: int = WIDTH):
        super().__init__()
        if candidates < 1:
            raise InputError(f"candidates={candidates} should be 1 or more")
        self.most = max(1, int(candidates * require_within("share", share, 0, 1)))
        self.linear = nn.Linear(width, out_width)
        self.fc1 = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.fc2 = nn.Linear(width, out_width)

    def forward(self, tokens: Tensor, attention: Tensor, allowed: Tensor) -> SelectedTokens:
        """Make one feature of the tokens: (B, N, E), (B, N), (B, N).

        Args:
            tokens: the tokens, of any length.
            attention: of the summary token to each; it gets no gradient.
            allowed: which may be selected, at least one in every row: no summary token, no padding.
        """
        indices, real = select_strongest(attention, allowed, self.most)
        chosen = tokens.gather(1, indices.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))  # (B, k, E)
        chosen = F.normalize(chosen, dim=-1)
        hidden = self._normalize(self.fc1(chosen), real).relu()
        embedded = self.linear(chosen) + self.fc2(hidden)  # (B, k, W)
        pooled = embedded.masked_fill(~real.unsqueeze(-1), -torch.inf).amax(dim=1)
        return SelectedTokens(pooled.to(self.norm.weight.dtype), indices, real)

    @torch.compiler.disable  # how many tokens are real differs from batch to batch
    def _normalize(self, values: Tensor, real: Tensor) -> Tensor:
        """Run the batch norm, in training on the rows of real tokens only: (B, k, E), (B, k) -> (B, k, E)."""
        rows = values.flatten(0, 1)
        if not self.training:
            return self.norm(rows).view_as(values)
        taken = real.flatten().nonzero().squeeze(1)
        normal = self.norm(rows[taken])
        return rows.to(normal.dtype).index_copy(0, taken, normal).view_as(values)


def select_strongest(attention: Tensor, allowed: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the places of the most attended tokens, and which of them are allowed: (B, N), (B, N) -> twice (B, k)."""
    if attention.shape != allowed.shape:
        raise InputError(f"attention={tuple(attention.shape)} should have the shape of allowed: {tuple(allowed.shape)}")
    scores = attention.detach().masked_fill(~allowed, -torch.inf)
    found, indices = scores.topk(min(most, scores.shape[1]), dim=1)
    return indices, found > -torch.inf


def mask_patches(tokens: Tensor) -> Tensor:
    """Return which tokens of images may be selected, all but CLS, which comes first: (B, N, E) -> (B, N)."""
    places = torch.arange(tokens.shape[1], device=tokens.device)
    return (places > 0).expand(tokens.shape[:2])


def mask_words(ends: Tensor, length: int) -> Tensor:
    """Return which tokens of sentences may be selected, those between start and end: (B,) -> (B, length).

    A sentence without a word has its end selected, since nothing else stands for it.

    Args:
        ends: where each sentence ends.
        length: N.

    Example:
        >>> mask_words(torch.tensor([3, 1]), length=5).int()  # of two words, and of none
        tensor([[0, 1, 1, 0, 0],
                [0, 1, 0, 0, 0]], dtype=torch.int32)
    """
    places = torch.arange(length, device=ends.device)
    words = (places > 0) & (places < ends.unsqueeze(1))
    return words | ((places == ends.unsqueeze(1)) & (ends.unsqueeze(1) <= 1))
