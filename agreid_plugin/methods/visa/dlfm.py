"""Dual-branch Local Fusion Module (DLFM) of ViSA (Sec. 3.4, Eqs. 8-13).

Shapes: B images, D width, N patches, M queries a branch, K patches in a graph.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agreid_plugin.errors import InputError
from agreid_plugin.methods.visa.etgm import Queries
from agreid_plugin.nn.attention import PostNormBlock
from agreid_plugin.nn.graph import QueryGraph, find_nearest_patches
from agreid_plugin.nn.view_token_vit import EncoderOutputs


class GraphBranch(nn.Module):
    """Queries of one branch, moved among their patches: Q + LN(graph(Q)) (Eqs. 8-12).

    Plain form: `reference.move_queries`.

    Args:
        graph: the graph layer, which two branches may share.
        neighbors: K, patches in a graph.
        patches_per_query: each query chooses its patches; otherwise the branch's feature chooses for all queries.
        gradient: let gradients through the graph reach queries and patches.
    """

    def __init__(self, graph: QueryGraph, neighbors: int, patches_per_query: bool, gradient: bool):
        super().__init__()
        if neighbors < 1:
            raise InputError(f"neighbors={neighbors} should be 1 or more")
        self.graph, self.neighbors = graph, neighbors
        self.patches_per_query, self.gradient = patches_per_query, gradient
        self.norm = nn.LayerNorm(graph.weight.shape[0])

    def forward(self, queries: Tensor, feature: Tensor, patches: Tensor) -> Tensor:
        """Move the queries: (B, M, D), (B, D), (B, N, D) -> (B, M, D)."""
        return self.norm(self.move(queries, feature, patches)) + queries

    def move(self, queries: Tensor, feature: Tensor, patches: Tensor) -> Tensor:
        """Run the graph layer on the queries, without the norm."""
        if not self.gradient:
            queries, patches = queries.detach(), patches.detach()
        nearest = self.nearest(queries, feature, patches)
        if self.patches_per_query:
            chosen = torch.zeros(*queries.shape[:2], patches.shape[1], dtype=torch.bool, device=patches.device)
            return self.graph(queries, patches, chosen.scatter(-1, nearest, 1))
        index = nearest.transpose(1, 2).expand(-1, -1, patches.shape[-1])  # (B, K, D)
        return self.graph(queries, patches.gather(1, index))

    def nearest(self, queries: Tensor, feature: Tensor, patches: Tensor) -> Tensor:
        """Return the patches that each query chooses, (B, M, K); (B, 1, K) where the branch's feature chooses."""
        return find_nearest_patches(
            queries if self.patches_per_query else feature.unsqueeze(1), patches, self.neighbors
        )


class DLFM(nn.Module):
    """Dual-branch Local Fusion Module: one local feature from the queries of both branches (Eqs. 8-13).

    Plain form: `reference.fuse`.

    Args:
        width: width of queries and patches.
        heads: attention heads of the fusion.
        neighbors: K, patches in a query's graph.
        patches_per_query, graph_per_branch, graph_gradient, fuse_cls: see `Variant`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        neighbors: int = 64,
        patches_per_query: bool = True,
        graph_per_branch: bool = True,
        graph_gradient: bool = True,
        fuse_cls: bool = True,
    ):
        super().__init__()
        graph = QueryGraph(width)
        self.invariant = GraphBranch(graph, neighbors, patches_per_query, graph_gradient)
        graph = QueryGraph(width) if graph_per_branch else graph
        self.specific = GraphBranch(graph, neighbors, patches_per_query, graph_gradient)
        self.token = None if fuse_cls else nn.Parameter(nn.init.trunc_normal_(torch.empty(width), std=0.02))
        self.fusion = PostNormBlock(width, heads)

    def forward(self, queries: Queries, encoded: EncoderOutputs) -> Tensor:
        """Return the local feature: (B, D)."""
        invariant = self.invariant(queries.invariant, encoded.identity, encoded.patches)
        specific = self.specific(queries.specific, encoded.view, encoded.patches)
        first = encoded.identity if self.token is None else self.token.expand_as(encoded.identity)
        return self.fusion(torch.cat([first.unsqueeze(1), invariant, specific], dim=1))[:, 0]

    def chosen_patches(self, inputs: tuple[Queries, EncoderOutputs], _: Tensor) -> dict[str, Tensor]:
        """Return the patches that the queries of each branch choose, of a call's inputs and output: (B, M, K) each."""
        queries, encoded = inputs
        return {
            "identity": self.invariant.nearest(queries.invariant, encoded.identity, encoded.patches),
            "view": self.specific.nearest(queries.specific, encoded.view, encoded.patches),
        }
