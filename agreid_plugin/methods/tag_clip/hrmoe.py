"""Hierarchically-Routed Mixture of Experts (HR-MoE) of TAG-CLIP (Eqs. 3-8), in the blocks of a CLIP.

Shapes: B images of N tokens, C width of a token, H width inside an expert, E experts, V views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_known, require_within
from agreid_plugin.nn.expert_usage import RoutingRecord
from agreid_plugin.nn.experts import run_in_weight_precision
from agreid_plugin.nn.module_types import BlockMlp, ResidualBlock
from agreid_plugin.types import View

SAMPLING = ("gumbel", "argmax")


@dataclass(frozen=True)
class BlockRouting:
    """Routing of one block, and the two tokens that it should separate; None for parts of a view router."""

    weights: Tensor  # (B, N, E) of the experts, adding up to 1; 0 for those not chosen
    cls: Tensor  # (B, C) before the experts, behind `ln_2`
    view: Tensor | None = None  # (B, C) likewise
    logits: Tensor | None = None  # (B, V) of the image-level router (Eq. 3)
    views: Tensor | None = None  # (B,) that images were routed by (Eq. 4)


class Experts(nn.Module):
    """Copies of one MLP as stacked tensors: an expert without images has a gradient of zero instead of none.

    Plain form: `reference.DenseExperts`.

    Args:
        mlp: the MLP of a block, with `c_fc`, `gelu` and `c_proj`, in timm `fc1`, `act` and `fc2`.
        experts: E.
    """

    def __init__(self, mlp: BlockMlp, experts: int):
        super().__init__()
        self.activation: nn.Module = getattr(mlp, "gelu", getattr(mlp, "act", nn.GELU()))
        self.c_fc_weight, self.c_fc_bias = _copy_layer(_find(mlp, "c_fc", "fc1"), experts)  # (E, H, C), (E, H)
        self.c_proj_weight, self.c_proj_bias = _copy_layer(_find(mlp, "c_proj", "fc2"), experts)  # (E, C, H), (E, C)

    def traceable(self) -> nn.Module:
        """Return the same experts as a graph of fixed shape, for exports; see `Traceable`."""
        from agreid_plugin.methods.tag_clip.reference import DenseExperts

        return DenseExperts(self)

    @torch.compiler.disable  # how many tokens an expert runs on differs from batch to batch
    def forward(
        self, values: Tensor, weights: Tensor, top_k: int, groups: Sequence[range], group_of: Tensor | None = None
    ) -> Tensor:
        """Return the weighted sum of the experts' outputs: (B, N, C), (B, N, E) -> (B, N, C).

        Args:
            values: the tokens.
            weights: of every expert for every token.
            top_k: how many experts have weights for a token. Where these are fewer than the group, an expert runs only
                on the tokens that chose it.
            groups: experts that may have weights for the images of a group; others do not run on them.
            group_of: the group of each image, (B,); None for one group.
        """
        layers = self.unbind_layers()
        if group_of is None:
            return self._mix_group(values, weights, top_k, groups[0], layers)
        order = group_of.argsort(stable=True)
        counts = torch.stack([(group_of == number).sum() for number in range(len(groups))]).tolist()
        parts = zip(values[order].split(counts), weights[order].split(counts), groups, strict=True)
        mixed = [self._mix_group(tokens, scale, top_k, group, layers) for tokens, scale, group in parts]
        return torch.cat(mixed)[order.argsort()]

    def record_routing(self, arguments: tuple[Any, ...], outputs: Tensor) -> RoutingRecord:  # noqa: ARG002
        """Return the routing of a call, with the arguments of `forward`; see `Mixture`."""
        _, weights, top_k, groups, group_of = arguments
        of_tokens = None if group_of is None else group_of.repeat_interleave(weights.shape[1])
        return RoutingRecord(weights.flatten(0, 1), top_k, tuple(groups), of_tokens)

    def unbind_layers(self) -> list[tuple[Tensor, ...]]:
        """Return each expert's weights: unbound together, their gradients are written once."""
        stacked = (self.c_fc_weight, self.c_fc_bias, self.c_proj_weight, self.c_proj_bias)
        return list(zip(*(values.unbind() for values in stacked), strict=True))

    def run(self, values: Tensor, layers: tuple[Tensor, ...]) -> Tensor:
        """Run one expert: (..., C) -> (..., C)."""
        return F.linear(self.activation(F.linear(values, *layers[:2])), *layers[2:])

    def _mix_group(
        self, values: Tensor, weights: Tensor, top_k: int, experts: range, layers: list[tuple[Tensor, ...]]
    ) -> Tensor:
        """Add up the terms of a group's experts: (b, N, C), (b, N, E) -> (b, N, C)."""
        part = self._run_densely if top_k == len(experts) else self._run_sparsely
        return reduce(torch.add, (part(values, weights[..., each], layers[each]) for each in experts))

    def _run_densely(self, values: Tensor, weights: Tensor, layers: tuple[Tensor, ...]) -> Tensor:
        """Return one expert's term of the sum: (b, N, C), (b, N) -> (b, N, C)."""
        made = self.run(values, layers)
        return weights.unsqueeze(-1).to(made.dtype) * made

    def _run_sparsely(self, values: Tensor, weights: Tensor, layers: tuple[Tensor, ...]) -> Tensor:
        """Return the same, computed only for the tokens that chose the expert, 0 for the others."""
        values, weights, shape = values.flatten(0, 1), weights.flatten(), values.shape
        places = weights.nonzero().squeeze(1)
        made = self._run_densely(values[places], weights[places], layers)
        return made.new_zeros(values.shape).index_add(0, places, made).view(shape)


class MoEBlock(nn.Module):
    """A block of CLIP with experts instead of the MLP, `top_k` of them for each token: the plain mixture of Table 4.

    Experts start as exact copies of the MLP, so that at first the block computes the same, whatever the routing.

    Args:
        block: the block, of CLIP or of timm, whose norms and attention are used, and whose MLP is copied.
        experts: E.
        top_k: K, experts chosen for a token.
        noise: standard deviation of the noise added to the router's logits in training.
    """

    def __init__(self, block: ResidualBlock, experts: int = 6, top_k: int = 5, noise: float = 0.01):
        super().__init__()
        if not 1 <= top_k <= experts:
            raise InputError(f"top_k={top_k} should be between 1 and the number of experts, {experts}")
        self.ln_1, self.attn, self.ln_2 = (
            _find(block, "ln_1", "norm1"),
            _find(block, "attn"),
            _find(block, "ln_2", "norm2"),
        )
        self.after_attn, self.after_mlp = _find_scales(block, 1), _find_scales(block, 2)
        self.top_k, self.noise = top_k, require_within("noise", noise, 0, float("inf"))
        self.width = self.ln_2.normalized_shape[0]
        self.groups: tuple[range, ...] = (range(experts),)
        self.feature_router = _build_router(self.width, experts)
        self.experts = Experts(_find(block, "mlp"), experts)

    def forward(self, tokens: Tensor) -> Tensor:
        """Run the block: (B, N, C) -> (B, N, C)."""
        return self.run_with_routing(tokens)[0]

    def run_with_routing(self, tokens: Tensor) -> tuple[Tensor, BlockRouting]:
        """Run the block, and return its routing, too."""
        normal = self.ln_1(tokens)
        of_torch = isinstance(self.attn, nn.MultiheadAttention)
        seen = self.attn(normal, normal, normal, need_weights=False)[0] if of_torch else self.attn(normal)
        tokens = tokens + self.after_attn(seen)
        hidden = self.ln_2(tokens)
        routed = self.route(hidden)
        return tokens + self.after_mlp(self.mix(hidden, routed)), routed

    def route(self, hidden: Tensor) -> BlockRouting:
        """Choose experts for tokens behind `ln_2`: (B, N, C)."""
        return BlockRouting(self._route_tokens(hidden, None), hidden[:, 0])

    def mix(self, hidden: Tensor, routed: BlockRouting) -> Tensor:
        """Return the weighted sum of the experts' outputs (Eq. 8): (B, N, C) -> (B, N, C)."""
        return self.experts(hidden, routed.weights, self.top_k, self.groups, routed.views)

    def _route_tokens(self, hidden: Tensor, mask_permitted: Tensor | None) -> Tensor:
        """Return the experts' weights (Eqs. 5-7), where permitted, (B, 1, E): (B, N, C) -> (B, N, E)."""
        logits = run_in_weight_precision(self.feature_router, hidden)
        if self.training and self.noise:
            logits = logits + self.noise * torch.randn_like(logits)
        if mask_permitted is not None:
            logits = logits.masked_fill(~mask_permitted, -torch.inf)
        strongest, chosen = logits.topk(self.top_k, dim=-1)
        return torch.zeros_like(logits).scatter(-1, chosen, strongest.softmax(dim=-1))


class HRMoEBlock(MoEBlock):
    """A block with two routers (Eqs. 3-8): one from the image to the experts of its view, one from each token to some.

    The image-level router reads the view token, which is the last of the tokens. The first E - `exclusive` experts
    are for aerial images and the last E - `exclusive` for ground images: those in between are shared. Only the experts
    of an image's view run on it.

    The view is always the predicted one; only `ViewLoss` reads the true one.

    Args:
        block: see `MoEBlock`.
        experts: E.
        top_k: K, at most the experts of a view. With as many, as in the released code, tokens go to all experts of
            the view, by their weights.
        noise: see `MoEBlock`.
        exclusive: experts for one view only: in the paper's numbers, e0 = E - exclusive, e1 = 1 + exclusive.
        sample: how the view is taken from the router in training: `gumbel`, drawn by its probabilities, or `argmax`
            (Eq. 4). In evaluation it is argmax. The released code draws there, too, so that its results vary.
    """

    def __init__(
        self,
        block: ResidualBlock,
        experts: int = 6,
        top_k: int = 5,
        noise: float = 0.01,
        exclusive: int = 1,
        sample: str = "gumbel",
    ):
        super().__init__(block, experts, top_k, noise)
        if not 0 <= 2 * exclusive < experts:
            raise InputError(f"exclusive={exclusive} of each view leaves none to share of experts={experts}")
        if top_k > experts - exclusive:
            raise InputError(f"top_k={top_k} should be at most the experts of a view, {experts - exclusive}")
        self.sample = require_known("sample", sample, SAMPLING)
        self.groups = range(experts - exclusive), range(exclusive, experts)  # by view, aerial first
        self.image_router = _build_router(self.width, len(View))

    def route(self, hidden: Tensor) -> BlockRouting:
        """Choose experts for tokens behind `ln_2`, the view token last: (B, N, C)."""
        view = hidden[:, -1]
        logits = run_in_weight_precision(self.image_router, view)
        views = self._sample_views(logits.detach()).argmax(dim=1)
        weights = self._route_tokens(hidden, self.mask_permitted(views).unsqueeze(1))
        return BlockRouting(weights, hidden[:, 0], view, logits, views)

    def mask_permitted(self, views: Tensor) -> Tensor:
        """Return which experts images of these views may use, where M is 0 (Eq. 7): (B,) -> (B, E)."""
        experts = torch.arange(self.feature_router.out_features, device=views.device)
        aerial, ground = ((experts >= group.start) & (experts < group.stop) for group in self.groups)
        seen = (views == View.AERIAL.value).unsqueeze(1)
        return (seen & aerial) | (~seen & ground)

    def _sample_views(self, logits: Tensor) -> Tensor:
        """Add Gumbel noise, with which the largest logit is a draw from the softmax, in training with `gumbel`."""
        if not self.training or self.sample == "argmax":
            return logits
        return logits - torch.empty_like(logits).exponential_().log()


def _find(module: nn.Module, *names: str) -> Any:
    """Return the part of a block that has one of these names."""
    for name in names:
        if isinstance(part := getattr(module, name, None), nn.Module):
            return part
    raise InputError(
        f"{type(module).__name__} has no {' or '.join(names)}: experts need blocks like those of CLIP or timm"
    )


def _find_scales(block: nn.Module, number: int) -> nn.Module:
    """Return what a block does with the output of attention (1) or MLP (2) before it is added."""
    names = (f"ls_{number}", f"ls{number}", f"drop_path{number}")
    return nn.Sequential(*(part for name in names if isinstance(part := getattr(block, name, None), nn.Module)))


def _build_router(width: int, ways: int) -> nn.Linear:
    router = nn.Linear(width, ways)
    nn.init.normal_(router.weight, std=0.001)
    nn.init.zeros_(router.bias)
    return router


def _copy_layer(layer: nn.Linear, number: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Return a layer's weights and biases, once for each expert."""
    weight, bias = (each.detach().expand(number, *each.shape).clone() for each in (layer.weight, layer.bias))
    return nn.Parameter(weight), nn.Parameter(bias)
