"""Expert-driven Token Generation Module (ETGM) of ViSA (Sec. 3.3, Eqs. 4-7).

Shapes: B images, D width, E experts a group, k chosen experts, M queries a branch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_given, require_known
from agreid_plugin.losses.balance import RouterUse
from agreid_plugin.nn.experts import Router, Routing, TokenExperts
from agreid_plugin.types import View

ROUTINGS = ("paper", "centered")


@dataclass(frozen=True)
class Queries:
    """Query tokens of both branches, and their routing."""

    invariant: Tensor  # (B, M, D)
    specific: Tensor  # (B, M, D)
    shared: Routing | None = None
    by_view: Routing | None = None
    balance_choices: bool = False  # the balance sees who is chosen

    def routers(self, views: Tensor) -> list[RouterUse]:
        """Return the use of each router: the shared one, and one a view."""
        shared, by_view = require_given("shared", self.shared), require_given("by_view", self.by_view)
        members = [(shared, None), *((by_view, views == view.value) for view in View)]
        return [
            RouterUse(each.probabilities, who, each.choices if self.balance_choices else None) for each, who in members
        ]


class ETGM(nn.Module):
    """Expert-driven Token Generation Module: queries from identity and view features (Eqs. 4-7).

    The identity feature goes to experts that all images share, the view feature to those of the image's view; all
    stand in one bank, in the order shared, aerial, ground, and run together. Plain form:
    `reference.generate_queries`.

    Args:
        width: width of features and queries.
        heads: attention heads in an expert.
        experts: E, experts in each of the three groups.
        top_k: experts whose tokens are added up for an image.
        tokens: M, queries a branch.
        routing: `paper`, or `centered`: routers read features normalized over the batch, and their balance sees who is
            chosen; see `Router` and `load_balance`.
    """

    needs_views = True

    def __init__(
        self, width: int, heads: int, experts: int = 8, top_k: int = 2, tokens: int = 16, routing: str = "paper"
    ):
        super().__init__()
        self.centered = require_known("routing", routing, ROUTINGS) == "centered"
        self.shared_router = Router(width, experts, top_k, centered=self.centered)
        self.view_router = Router(width, experts, top_k, groups=len(View), centered=self.centered)
        self.experts = TokenExperts((1 + len(View)) * experts, tokens, width, heads)

    def forward(self, identity: Tensor, view: Tensor, views: Tensor) -> Queries:
        """Make queries: (B, D), (B, D), (B,) -> twice (B, M, D)."""
        shared, by_view = self.shared_router(identity), self.view_router(view, views)
        group_size = shared.logits.shape[1]
        chosen = torch.cat([shared.experts, by_view.experts + group_size * (1 + views.unsqueeze(1))])  # (2B, k)
        weights = torch.cat([shared.weights, by_view.weights])
        vectors = torch.cat([identity, view]).repeat_interleave(chosen.shape[1], dim=0)  # (2Bk, D)
        tokens = self.experts(vectors, chosen.flatten()).unflatten(0, chosen.shape)  # (2B, k, M, D)
        invariant, specific = torch.einsum("bk,bkmd->bmd", weights.to(tokens.dtype), tokens).chunk(2)
        return Queries(invariant, specific, shared, by_view, self.centered)


class PlainQueries(nn.Module):
    """Replacement of ETGM where it is left out: learned tokens to which the branch's feature is added."""

    needs_views = centered = False

    def __init__(self, width: int, tokens: int = 16):
        super().__init__()
        if tokens < 1:
            raise InputError(f"tokens={tokens} should be 1 or more")
        self.tokens = nn.Parameter(nn.init.trunc_normal_(torch.empty(2, tokens, width), std=0.02))

    def forward(self, identity: Tensor, view: Tensor, views: Tensor | None = None) -> Queries:  # noqa: ARG002
        """Make queries: (B, D), (B, D) -> twice (B, M, D)."""
        return Queries(self.tokens[0] + identity.unsqueeze(1), self.tokens[1] + view.unsqueeze(1))
