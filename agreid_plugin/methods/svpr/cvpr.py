"""Context-Vision Progressive Refinement (CVPR) of SVPR-ReID (Eq. 8).

From stage to stage a query attends to fewer patches, those it attended to most; both are refined.

Shapes: B images, P patches, C width, n candidates, k of them chosen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_within
from agreid_plugin.methods.svpr.vdfe import HEADS, CrossAttention
from agreid_plugin.nn.attention import Attention, Mlp, init_linear


@dataclass(frozen=True)
class RefinementOutputs:
    """Outputs of the last stage."""

    query: Tensor  # (B, C) f_cvpr
    local: Tensor  # (B, C) f_local
    patches: Tensor  # (B, P, C) behind f_local, before they are weighted
    chosen: tuple[Tensor, ...]  # the patches that each stage chose, strongest first: (B, k) each


class CVAttention(nn.Module):
    """A decoder block: the query attends to itself and to the patches, then the patches attend to the query.

    q = LN(q + SA(q)), q = LN(q + CA(q, patches)), q = LN(q + Mlp(q)), patches = LN(patches + CA(patches, q))
    """

    def __init__(self, width: int):
        super().__init__()
        self.attn = Attention(width, HEADS, qkv_bias=False)
        self.to_patches, self.to_query = CrossAttention(width), CrossAttention(width)
        self.mlp = Mlp(width, 4 * width)
        self.norm1, self.norm2, self.norm3, self.patch_norm = (nn.LayerNorm(width) for _ in range(4))

    def forward(self, query: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Refine both: (B, 1, C), (B, k, C) -> the same."""
        query = self.norm1(query + self.attn(query))
        query = self.norm2(query + self.to_patches(query, patches))
        query = self.norm3(query + self.mlp(query))
        return query, self.patch_norm(patches + self.to_query(patches, query))


class PatchScores(nn.Module):
    """Attention of a query to each candidate: a softmax over them, averaged over heads, in full precision."""

    def __init__(self, width: int, heads: int = HEADS):
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Score the candidates: (B, 1, C), (B, n, C) -> (B, n), adding up to 1."""
        with torch.autocast(query.device.type, enabled=False):
            dtype = self.query.weight.dtype
            projected = self.query(query.to(dtype)), self.key(candidates.to(dtype))
            query, key = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in projected)
            logits = query @ key.transpose(-2, -1) / math.sqrt(key.shape[-1])  # (B, heads, 1, n)
            return logits.softmax(dim=-1).mean(dim=1).squeeze(1)


class Refinement(nn.Module):
    """Base of both variants: token, block, scores, and the weights of the local feature.

    Args:
        width: C.
        patches: P.
        stages: N; all run the same block.
        keep: share of the candidates that a stage chooses, at least one.
        momentum: gamma in Eq. 8.
    """

    def __init__(self, width: int, patches: int, stages: int = 3, keep: float = 0.5, momentum: float = 0.1):
        super().__init__()
        if stages < 1:
            raise InputError(f"stages={stages} should be 1 or more")
        self.stages = stages
        self.keep = require_within("keep", keep, 0, 1)
        self.momentum = require_within("momentum", momentum, 0, 1)
        self.token = nn.Parameter(nn.init.trunc_normal_(torch.empty(width), std=0.02))
        self.block, self.scores = CVAttention(width), PatchScores(width)
        init_linear(self)
        self.local_weight = nn.Parameter(torch.randn(patches, width))

    def local(self, patches: Tensor) -> Tensor:
        """Return f_local, the mean of the patches weighted by place and channel: (B, P, C) -> (B, C)."""
        return (patches * self.local_weight.tanh()).mean(dim=1)

    def strongest(self, query: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Choose among candidates: (B, 1, C), (B, n, C) -> their scores and places, strongest first, (B, k)."""
        count = max(1, int(self.keep * candidates.shape[1]))
        return self.scores(query, candidates).topk(count, dim=-1)

    @staticmethod
    def chosen_patches(_: tuple[Tensor | None, ...], refined: RefinementOutputs) -> dict[str, Tensor]:
        """Return the patches that the query chooses in each stage, of a call's inputs and output: (B, 1, k) each."""
        return {f"stage {number}": places.unsqueeze(1) for number, places in enumerate(refined.chosen, start=1)}

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return f"stages={self.stages}, keep={self.keep:g}, momentum={self.momentum:g}"


class MomentumRefinement(Refinement):
    """The paper's variant: query and chosen patches move by momentum (Eq. 8), and enter the next stage.

    The choice is learned: a chosen patch enters the block multiplied by s / s, the lower s without gradient. That is 1,
    and its gradient is that of log s, so that helpful patches get higher scores.
    """

    def forward(self, identity: Tensor, attributes: Tensor | None, patches: Tensor) -> RefinementOutputs:
        """Refine: f_cls (B, C), f_asmoe (B, C) or None, (B, P, C)."""
        start = identity if attributes is None else identity + attributes
        query, anchor = (start + self.token).unsqueeze(1), identity.unsqueeze(1)
        places, chosen = _all_indices(patches), []
        for _ in range(self.stages):
            candidates = gather_patches(patches, places)
            scores, strongest = self.strongest(query, candidates)
            places = places.gather(1, strongest)
            kept = gather_patches(candidates, strongest)
            refined_query, refined = self.block(query, kept * straight_through(scores).unsqueeze(-1).to(kept.dtype))
            query = torch.lerp(anchor.to(refined_query.dtype), refined_query, self.momentum)
            patches = scatter_patches(patches, places, torch.lerp(kept.to(refined.dtype), refined, self.momentum))
            chosen.append(places)
        return RefinementOutputs(query.squeeze(1), self.local(patches), patches, tuple(chosen))


class GatedRefinement(Refinement):
    """The released variant: a learned gate moves the token, and every stage reads the unrefined patches.

    Its choice is not learned: the projections behind the scores keep their first weights. Refined patches are in the
    order of the candidates, but written to places in the order of scores, so that most replace another patch; features
    of released checkpoints depend on it.
    """

    def __init__(self, width: int, patches: int, stages: int = 3, keep: float = 0.5, momentum: float = 0.1):
        super().__init__(width, patches, stages, keep, momentum)
        self.entry, self.gate = CrossAttention(width), nn.Linear(width, width)
        init_linear(self.entry)
        init_linear(self.gate)
        self.scores.requires_grad_(False)

    def forward(self, identity: Tensor, attributes: Tensor | None, patches: Tensor) -> RefinementOutputs:
        """Refine: f_cls (B, C), f_asmoe (B, C) or None, (B, P, C)."""
        start = identity if attributes is None else identity + attributes
        token = self.token.to(start.dtype).expand(start.shape[0], 1, -1)
        query = self.entry(token, start.unsqueeze(1))
        places, updated, chosen = _all_indices(patches), patches, []
        for _ in range(self.stages):
            candidates = gather_patches(patches, places)
            with torch.no_grad():
                strongest = self.strongest(query, candidates)[1]
            places = places.gather(1, strongest)
            query, refined = self.block(query, gather_patches(candidates, strongest.sort(dim=1).values))
            updated = scatter_patches(updated, places, refined)
            gate = torch.sigmoid(self.gate(query))
            token = gate * query + (1 - gate) * token
            chosen.append(places)
        patches = patches + self.momentum * updated
        return RefinementOutputs(token.squeeze(1), self.local(patches), patches, tuple(chosen))


def gather_patches(patches: Tensor, places: Tensor) -> Tensor:
    """Return the patches at some places: (B, P, C), (B, k) -> (B, k, C)."""
    return patches.gather(1, places.unsqueeze(-1).expand(-1, -1, patches.shape[-1]))


def scatter_patches(patches: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """Return the patches with other values at some places: (B, P, C), (B, k), (B, k, C) -> (B, P, C)."""
    index = places.unsqueeze(-1).expand(-1, -1, patches.shape[-1])
    return patches.scatter(1, index, values.to(patches.dtype))


def _all_indices(patches: Tensor) -> Tensor:
    return torch.arange(patches.shape[1], device=patches.device).expand(patches.shape[0], -1)


def straight_through(scores: Tensor) -> Tensor:
    """Return ones with the gradient of log(scores)."""
    scores = scores.clamp(min=torch.finfo(scores.dtype).tiny)
    return scores / scores.detach()
