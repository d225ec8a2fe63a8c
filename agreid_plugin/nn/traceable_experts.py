"""Experts in a graph of fixed shape: every one runs on every vector, and the chosen one's tokens are taken.

What an exported model needs, which cannot send vectors here or there; the weights are those of the fast form.

Shapes: A assignments of a vector to an expert, E experts, M tokens an expert makes, D width.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.nn.experts import GroupedLayerNorm, GroupedLinear, TokenExperts


class DenseTokenExperts(nn.Module):
    """The weights of a bank of experts, each run on all vectors.

    Args:
        bank: the experts.
    """

    def __init__(self, bank: TokenExperts):
        super().__init__()
        self.bank = bank

    def forward(self, vectors: Tensor, experts: Tensor) -> Tensor:
        """Return the tokens that each vector's expert makes of it: (A, D), (A,) -> (A, M, D)."""
        bank, everyone = self.bank, vectors.unsqueeze(0).unsqueeze(2)  # (1, A, 1, D)
        seen = _linear(bank.out, _linear(bank.value, everyone))  # (E, A, 1, D)
        tokens = _norm(bank.norm1, bank.tokens.unsqueeze(1) + seen)  # (E, A, M, D)
        tokens = _norm(bank.norm2, tokens + self._attend(tokens))
        tokens = _norm(bank.norm3, tokens + _linear(bank.fc2, F.gelu(_linear(bank.fc1, tokens))))
        chosen = F.one_hot(experts, bank.experts).to(tokens.dtype)  # (A, E)
        return torch.einsum("ae,eamd->amd", chosen, tokens)

    def _attend(self, tokens: Tensor) -> Tensor:
        width = self.bank.tokens.shape[-1] // self.bank.heads
        heads = _linear(self.bank.qkv, tokens).unflatten(-1, (3, self.bank.heads, width))  # (E, A, M, 3, H, D / H)
        query, key, value = heads.permute(3, 0, 1, 4, 2, 5).unbind(0)  # each (E, A, H, M, D / H)
        mixed = (query @ key.transpose(-2, -1) * width**-0.5).softmax(dim=-1) @ value
        return _linear(self.bank.proj, mixed.transpose(2, 3).flatten(3))


@runtime_checkable
class Traceable(Protocol):
    """A module whose work depends on values, and that has a form with a graph of fixed shape, which can be traced."""

    def traceable(self) -> nn.Module:
        """Return the form: same weights, same results."""


def make_traceable(model: nn.Module) -> None:
    """Replace every `Traceable` module within a model by its form."""
    for owner in list(model.modules()):
        for name, module in list(owner.named_children()):
            if isinstance(module, Traceable):
                setattr(owner, name, module.traceable())


def _linear(layer: GroupedLinear, values: Tensor) -> Tensor:
    """Apply each expert's layer: (E or 1, A, m, in) -> (E, A, m, out)."""
    made = values @ layer.weight.transpose(1, 2).unsqueeze(1)
    return made if layer.bias is None else made + layer.bias[:, None, None]


def _norm(layer: GroupedLayerNorm, values: Tensor) -> Tensor:
    """Normalize each expert's tokens: (E, A, M, D) -> (E, A, M, D)."""
    normal = F.layer_norm(values, layer.weight.shape[-1:], eps=layer.eps)
    return normal * layer.weight[:, None, None] + layer.bias[:, None, None]
