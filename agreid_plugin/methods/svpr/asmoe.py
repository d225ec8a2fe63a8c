"""Attribute-Scattered Mixture of Experts (ASMoE) of SVPR-ReID (Eqs. 5-7).

Shapes: B images, P patches, C width, E width of the text's outputs, M attributes of V_m values, k chosen attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_within
from agreid_plugin.methods.svpr.vdfe import CrossAttention, InverseNet
from agreid_plugin.nn.attention import init_linear
from agreid_plugin.nn.expert_usage import RoutingRecord
from agreid_plugin.nn.experts import run_in_weight_precision


@dataclass(frozen=True)
class AttributeFeatures:
    """Outputs of the experts of attributes."""

    vector: Tensor  # (B, C) f_asmoe
    logits: list[Tensor]  # M of (B, V_m)
    tokens: Tensor  # (B, M, C) from the experts, one an attribute
    scores: Tensor  # (B, M) by which attributes are chosen
    chosen: Tensor  # (B, k) strongest first
    gates: Tensor  # (B, M, experts) logits of the gate


class QuickGELU(nn.Module):
    """The activation of OpenAI's CLIP: x sigmoid(1.702 x)."""

    def forward(self, values: Tensor) -> Tensor:
        """Apply it to every value."""
        return values * torch.sigmoid(1.702 * values)


class AttributeExperts(nn.Module):
    """A mixture of MLPs with a linear gate: the sum of their outputs, weighted by the gate's softmax.

    Args:
        width: C.
        experts: number of MLPs.
        top_k: how many of them count; the weights of the others become 0, the rest are not scaled. None for all.
    """

    def __init__(self, width: int, experts: int = 4, top_k: int | None = None):
        super().__init__()
        self.top_k = experts if top_k is None else top_k
        if not 1 <= self.top_k <= experts:
            raise InputError(f"expert_top_k={self.top_k} should be between 1 and the number of experts, {experts}")
        self.experts = nn.ModuleList(_build_expert(width) for _ in range(experts))
        self.gate = nn.Linear(width, experts)

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mixture and the gate's logits: (..., C) -> (..., C), (..., experts)."""
        logits = run_in_weight_precision(self.gate, vectors)
        weights = self._gate(logits)
        made = torch.stack([expert(vectors) for expert in self.experts], dim=-2)  # (..., experts, C)
        return (weights.unsqueeze(-1).to(made.dtype) * made).sum(dim=-2), logits

    def record_routing(self, arguments: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> RoutingRecord:  # noqa: ARG002
        """Return the routing of a call; see `Mixture`."""
        logits = outputs[1].detach().flatten(0, -2)
        return RoutingRecord(self._gate(logits), self.top_k, (range(len(self.experts)),))

    def _gate(self, logits: Tensor) -> Tensor:
        """Return the experts' weights, 0 for those that do not count: (..., experts)."""
        weights = logits.softmax(dim=-1)
        if self.top_k < len(self.experts):
            strongest = weights.topk(self.top_k, dim=-1).indices
            weights = weights * torch.zeros_like(weights).scatter(-1, strongest, 1)
        return weights


class ScoredFusion(nn.Module):
    """The paper's Eq. 7: W . TopK(theta(tokens)), theta a linear layer and a softmax over all attributes.

    Args:
        width: C.
        attributes: M.
    """

    def __init__(self, width: int, attributes: int):
        super().__init__()
        self.score = nn.Linear(width, 1)
        init_linear(self)
        self.weight = nn.Parameter(torch.ones(attributes))

    def forward(self, entering: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG002
        """Return the sum of the `count` chosen tokens, all scores and the choice: (B, C), (B, M), (B, k)."""
        scores = run_in_weight_precision(self.score, tokens).squeeze(-1).softmax(dim=-1)
        strongest, chosen = scores.topk(count, dim=-1)
        return _sum_weighted(tokens, chosen, self.weight[chosen] * strongest), scores, chosen


class RoutedFusion(nn.Module):
    """The released code's Eq. 7: scores of what enters the experts, weighted by a softmax over the chosen only.

    A score is the mean of the outputs of an MLP with one hidden unit.

    Args:
        width: C.
    """

    def __init__(self, width: int):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(width, 1), nn.GELU(), nn.Linear(1, width))
        init_linear(self)

    def forward(self, entering: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sum of the `count` chosen tokens, all scores and the choice: (B, C), (B, M), (B, k)."""
        scores = run_in_weight_precision(self.score, entering).mean(dim=-1)
        strongest, chosen = scores.topk(count, dim=-1)
        return _sum_weighted(tokens, chosen, strongest.softmax(dim=-1)), scores, chosen


class AttributeHeads(nn.Module):
    """A batch norm without a shift and a classifier for each attribute; the norms are one, over all channels.

    Args:
        width: C.
        sizes: V_m of each attribute.
    """

    def __init__(self, width: int, sizes: Sequence[int]):
        super().__init__()
        self.norm = nn.BatchNorm1d(len(sizes) * width)
        self.norm.bias.requires_grad_(False)
        self.classifiers = nn.ModuleList(nn.Linear(width, size, bias=False) for size in sizes)
        init_linear(self)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        """Return the logits of each attribute: (B, M, C) -> M of (B, V_m)."""
        normal = self.norm(tokens.flatten(1)).view_as(tokens)
        return [classify(normal[:, place]) for place, classify in enumerate(self.classifiers)]


class ASMoE(nn.Module):
    """Attributes from text, patches and identity (Eqs. 5-7).

    Args:
        text_width: E.
        width: C.
        sizes: V_m, the number of values of each attribute.
        experts: number of experts.
        top_k: experts that count for an attribute; None for all.
        ratio: share of the attributes that are chosen, at least one.
        scored_experts: see `Variant`.
    """

    def __init__(
        self,
        text_width: int,
        width: int,
        sizes: Sequence[int],
        experts: int = 4,
        top_k: int | None = None,
        ratio: float = 0.7,
        scored_experts: bool = True,
    ):
        super().__init__()
        if not sizes:
            raise InputError("sizes=() should have one number an attribute, one or more")
        self.count = max(1, int(require_within("attribute_ratio", ratio, 0, 1) * len(sizes)))
        self.inverse = InverseNet(text_width, width)
        self.attention = CrossAttention(width)
        self.prompts = nn.Parameter(torch.randn(len(sizes), width))
        self.experts = AttributeExperts(width, experts, top_k)
        init_linear(self.attention)
        init_linear(self.experts)
        self.fusion = ScoredFusion(width, len(sizes)) if scored_experts else RoutedFusion(width)
        self.heads = AttributeHeads(width, sizes)

    def forward(self, text: Tensor, patches: Tensor, identity: Tensor) -> AttributeFeatures:
        """Predict attributes from T + Mean(P) of the text, patches and identity: (B, E), (B, P, C), (B, C)."""
        context = self.context(text, patches)
        entering = (identity + context).unsqueeze(1) + self.prompts  # (B, M, C)
        tokens, gates = self.experts(entering)
        vector, scores, chosen = self.fusion(entering, tokens, self.count)
        return AttributeFeatures(vector, self.heads(tokens), tokens, scores, chosen, gates)

    def context(self, text: Tensor, patches: Tensor) -> Tensor:
        """Return f_attr, the attention of phi of the text to the patches (Eq. 5): (B, E), (B, P, C) -> (B, C)."""
        return self.attention(self.inverse(text).unsqueeze(1), patches).squeeze(1)


def _build_expert(width: int) -> nn.Sequential:
    hidden = 4 * width
    layers = [nn.Linear(width, hidden), QuickGELU(), nn.Linear(hidden, width), QuickGELU()]
    return nn.Sequential(*layers, nn.LayerNorm(width, eps=1e-6))


def _sum_weighted(tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of the chosen tokens: (B, M, C), (B, k), (B, k) -> (B, C)."""
    selected = tokens.gather(1, chosen.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))  # (B, k, C)
    return (weights.unsqueeze(-1).to(selected.dtype) * selected).sum(dim=1)
