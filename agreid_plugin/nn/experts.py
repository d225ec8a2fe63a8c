"""Mixture of experts: a router, a bank of experts that turn one vector into tokens, and its form for exports.

Shapes: B images, D width, E experts a group, G groups, k chosen experts, A assignments of a vector to an expert,
M tokens an expert makes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError
from agreid_plugin.nn.expert_usage import RoutingRecord


@dataclass(frozen=True)
class Routing:
    """Result of a router: the experts of its group that each image goes to."""

    logits: Tensor  # (B, E)
    experts: Tensor  # (B, k) strongest first
    weights: Tensor  # (B, k) adding up to 1

    @property
    def probabilities(self) -> Tensor:
        """Probability of each expert of the group, which a load balance is computed from: (B, E)."""
        return self.logits.softmax(dim=-1)

    @property
    def choices(self) -> Tensor:
        """Share of each expert in an image's choices, 1 / k for those chosen, without a gradient: (B, E)."""
        return torch.zeros_like(self.logits).scatter(-1, self.experts, 1 / self.experts.shape[1]).detach()


class Router(nn.Module):
    """Chooses the `top_k` experts of an image's group, weighted by a softmax over the chosen logits.

    The logits of every group are computed for every image, which costs next to nothing, and those of the image's group
    are taken. So each parameter has a gradient in every batch, also in one without an image of some group. In float32
    inside autocast, too: a choice should not depend on rounding. Plain form: `methods.visa.reference.route`.

    Args:
        width: width of the vectors.
        experts: experts a group.
        top_k: experts chosen for an image.
        groups: groups of experts, for example one a view.
        centered: normalize the vectors over the batch first (a batch norm without scale and shift). What all vectors
            have in common chooses the same experts for all; without it their differences choose.

    Example:
        >>> router = Router(width=2, experts=3, top_k=2)
        >>> router.weight.data = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]])
        >>> router.bias.data.zero_()
        tensor([[0., 0., 0.]])
        >>> routing = router(torch.tensor([[2.0, 2.0], [-3.0, 3.0]]))
        >>> routing.experts.sort().values.tolist()
        [[0, 1], [1, 2]]
        >>> routing.weights.tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """

    def __init__(self, width: int, experts: int, top_k: int, groups: int = 1, centered: bool = False):
        super().__init__()
        if not 1 <= top_k <= experts:
            raise InputError(f"top_k={top_k} should be between 1 and the number of experts, {experts}")
        self.top_k = top_k
        self.norm = nn.BatchNorm1d(width, affine=False) if centered else None
        self.weight = _draw_uniform(groups, experts, width)
        self.bias = _draw_uniform(groups, experts, bound=1 / math.sqrt(width))

    def forward(self, vectors: Tensor, group: Tensor | None = None) -> Routing:
        """Route each vector among the experts of its group (the first if none is given): (B, D), (B,)."""
        with torch.autocast(vectors.device.type, enabled=False):
            group = torch.zeros(vectors.shape[0], dtype=torch.long, device=vectors.device) if group is None else group
            vectors = vectors.to(self.weight.dtype)
            vectors = vectors if self.norm is None else self.norm(vectors)
            everywhere = torch.einsum("bd,ged->bge", vectors, self.weight) + self.bias
            index = group.view(-1, 1, 1).expand(-1, 1, everywhere.shape[-1])
            logits = everywhere.gather(1, index).squeeze(1)  # (B, E)
            strongest, experts = logits.topk(self.top_k, dim=-1)
            return Routing(logits, experts, strongest.softmax(dim=-1))

    def record_routing(self, arguments: tuple[Any, ...], outputs: Routing) -> RoutingRecord:
        """Return the routing of a call; see `Mixture`."""
        weights = torch.zeros_like(outputs.logits).scatter(-1, outputs.experts, outputs.weights)  # (B, E)
        groups, experts = self.bias.shape
        return RoutingRecord(weights, self.top_k, (range(experts),) * groups, *arguments[1:])


@torch.library.custom_op(
    "agreid_plugin::grouped_linear",
    mutates_args=(),
    schema="(Tensor values, Tensor weight, Tensor? bias, Tensor counts) -> Tensor",
)
def _grouped_linear(values: Tensor, weight: Tensor, bias: Tensor | None, counts: Tensor) -> Tensor:
    """`apply_grouped` as one operation of a compiled graph, whose shapes may not depend on the counts."""
    return apply_grouped(values, weight, bias, counts.tolist())


@torch.library.custom_op(
    "agreid_plugin::grouped_gradients",
    mutates_args=(),
    schema="(Tensor grad, Tensor values, Tensor counts) -> Tensor[]",
)
def _grouped_gradients(grad: Tensor, values: Tensor, counts: Tensor) -> list[Tensor]:
    """Return the gradients of weight and bias, those of `_grouped_linear`."""
    sizes = counts.tolist()
    parts = [
        (out.flatten(0, -2), given.flatten(0, -2))
        for out, given in zip(grad.split(sizes), values.split(sizes), strict=True)
    ]
    return [torch.stack([out.t() @ given for out, given in parts]), torch.stack([out.sum(0) for out, _ in parts])]


@_grouped_linear.register_fake
def _(values: Tensor, weight: Tensor, bias: Tensor | None, counts: Tensor) -> Tensor:  # noqa: ARG001
    return values.new_empty(*values.shape[:-1], weight.shape[1])


@_grouped_gradients.register_fake
def _(grad: Tensor, values: Tensor, counts: Tensor) -> list[Tensor]:
    experts, shape = counts.shape[0], (grad.shape[-1], values.shape[-1])
    return [grad.new_empty(experts, *shape), grad.new_empty(experts, shape[0])]


def _keep_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Tensor], output: Tensor) -> None:  # noqa: ARG001
    values, weight, bias, counts = inputs
    ctx.save_for_backward(values, weight, counts)
    ctx.has_bias = bias is not None


def _run_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
    values, weight, counts = ctx.saved_tensors
    of_weight, of_bias = _grouped_gradients(grad, values, counts)
    of_values = _grouped_linear(grad, weight.transpose(1, 2), None, counts)
    return of_values, of_weight, of_bias if ctx.has_bias else None, None


_grouped_linear.register_autograd(_run_backward, setup_context=_keep_inputs)


def apply_grouped(values: Tensor, weight: Tensor, bias: Tensor | None, counts: list[int]) -> Tensor:
    """Apply layer 0 to the first `counts[0]` values, and so on: (A, ..., in) -> (A, ..., out)."""
    biases = [None] * len(counts) if bias is None else bias.unbind()
    parts = zip(values.split(counts), weight.unbind(), biases, strict=True)
    return torch.cat([F.linear(part, each, of_each) for part, each, of_each in parts])


class GroupedLinear(nn.Module):
    """One linear layer for each expert, applied to the expert's consecutive assignments.

    The weights are one tensor: an expert without an assignment has a gradient of zero instead of none.
    """

    def __init__(self, experts: int, in_width: int, out_width: int, bias: bool = True):
        super().__init__()
        self.weight = _draw_uniform(experts, out_width, in_width)
        self.bias = _draw_uniform(experts, out_width, bound=1 / math.sqrt(in_width)) if bias else None

    def forward(self, values: Tensor, counts: list[int] | Tensor) -> Tensor:
        """Apply expert 0 to the first `counts[0]` values, and so on: (A, ..., in) -> (A, ..., out)."""
        if isinstance(counts, list):
            return apply_grouped(values, self.weight, self.bias, counts)
        device = values.device.type
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            values, weight, bias = values.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        return _grouped_linear(values, weight, bias, counts)


class GroupedLayerNorm(nn.Module):
    """Layer norm with the scale and shift of each assignment's expert."""

    def __init__(self, experts: int, width: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(experts, width))
        self.bias = nn.Parameter(torch.zeros(experts, width))
        self.eps = eps

    def forward(self, values: Tensor, experts: Tensor) -> Tensor:
        """Normalize each assignment's tokens: (A, M, D), (A,) -> (A, M, D)."""
        normal = F.layer_norm(values, values.shape[-1:], eps=self.eps)
        return normal * self.weight[experts].unsqueeze(1) + self.bias[experts].unsqueeze(1)


class TokenExperts(nn.Module):
    """A bank of experts, each turning a vector into M tokens (ViSA, Eq. 7): T' = FFN(SelfAttn(CrossAttn(T, Z))).

    T are the expert's learned tokens and Z is one vector. A softmax over one key is 1, so every token's cross-attention
    to Z is out(value(Z)), whatever its query and key: those two projections could never learn and are left out.
    Each of the three steps adds its result and normalizes: t = LN(t + step(t)). Plain form of one expert with both
    projections: `methods.visa.reference.run_expert`.

    Assignments are sorted by expert and each layer runs once for each expert on its assignments, so that the cost is
    that of the assignments. Only their number for each expert is read back from the device.

    Args:
        experts: experts in the bank.
        tokens: M, tokens an expert makes.
        width: width of vectors and tokens.
        heads: heads of the self-attention.
        mlp_ratio: hidden width of the feed-forward layer over `width`.

    Example:
        >>> bank = TokenExperts(experts=3, tokens=4, width=8, heads=2)
        >>> bank(torch.randn(5, 8), experts=torch.tensor([0, 2, 2, 1, 0])).shape
        torch.Size([5, 4, 8])
    """

    def __init__(self, experts: int, tokens: int, width: int, heads: int, mlp_ratio: float = 2.0):
        super().__init__()
        if width % heads:
            raise InputError(f"width={width} should be divisible by heads={heads}")
        if tokens < 1:
            raise InputError(f"tokens={tokens} should be 1 or more")
        hidden = int(width * mlp_ratio)
        self.experts, self.heads = experts, heads
        self.tokens = nn.Parameter(nn.init.trunc_normal_(torch.empty(experts, tokens, width), std=0.02))
        self.value = GroupedLinear(experts, width, width)
        self.out = GroupedLinear(experts, width, width)
        self.norm1 = GroupedLayerNorm(experts, width)
        self.qkv = GroupedLinear(experts, width, 3 * width, bias=False)
        self.proj = GroupedLinear(experts, width, width)
        self.norm2 = GroupedLayerNorm(experts, width)
        self.fc1 = GroupedLinear(experts, width, hidden)
        self.fc2 = GroupedLinear(experts, hidden, width)
        self.norm3 = GroupedLayerNorm(experts, width)

    def traceable(self) -> nn.Module:
        """Return the same experts as a graph of fixed shape, for exports; see `Traceable`."""
        return DenseTokenExperts(self)

    def forward(self, vectors: Tensor, experts: Tensor) -> Tensor:
        """Return the tokens that each vector's expert makes of it: (A, D), (A,) -> (A, M, D)."""
        order = experts.argsort(stable=True)
        counts: Any = (experts.unsqueeze(1) == torch.arange(self.experts, device=experts.device)).sum(dim=0).cpu()
        counts = counts if torch.compiler.is_compiling() else counts.tolist()
        owners, vectors = experts[order], vectors[order]
        seen = self.out(self.value(vectors, counts), counts).unsqueeze(1)  # (A, 1, D)
        tokens = self.norm1(self.tokens[owners] + seen, owners)
        tokens = self.norm2(tokens + self._attend(tokens, counts), owners)
        tokens = self.norm3(tokens + self.fc2(F.gelu(self.fc1(tokens, counts)), counts), owners)
        return tokens[order.argsort()]

    def _attend(self, tokens: Tensor, counts: list[int] | Tensor) -> Tensor:
        shape = (*tokens.shape[:2], 3, self.heads, tokens.shape[2] // self.heads)
        query, key, value = self.qkv(tokens, counts).view(shape).permute(2, 0, 3, 1, 4)  # each (A, heads, M, D / heads)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2), counts)


def run_in_weight_precision(layer: nn.Module, values: Tensor) -> Tensor:
    """Apply a layer in the precision of its weights inside autocast too: a choice should not depend on rounding."""
    with torch.autocast(values.device.type, enabled=False):
        return layer(values.to(next(layer.parameters()).dtype))


def _draw_uniform(*shape: int, bound: float | None = None) -> nn.Parameter:
    """Return a parameter drawn as `nn.Linear` draws its own, within 1 / sqrt(inputs)."""
    bound = 1 / math.sqrt(shape[-1]) if bound is None else bound
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))


class DenseTokenExperts(nn.Module):
    """A bank of experts each of which runs on all vectors: a graph of fixed shape, which an exported model needs.

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
    """A module whose computation depends on values, with a form of fixed shape that an export can trace."""

    def traceable(self) -> nn.Module:
        """Return that form: same weights, same results."""


def make_traceable(model: nn.Module) -> None:
    """Replace every `Traceable` module of a model by its traceable form."""
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
