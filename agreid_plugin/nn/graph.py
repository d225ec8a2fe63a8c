"""Graph layer over a query and its nearest patches (ViSA, Eqs. 8-12), at the cost of the query's row only.

A graph's nodes are one query and its K patches. With C the cosine of every two nodes, A = max(C, 0) + I and degrees
d = A 1, a graph layer gives the query tanh((D^-1/2 A D^-1/2 X W)[0]). Only row 0 of the normalized adjacency is needed,
and of the patches among each other only their degrees, which all queries of an image share up to one term. Plain form,
with all nodes and rows: `methods.visa.reference.move_query`.

Shapes: B images, M queries an image, N patches an image, D width, K chosen patches.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError


def compute_cosines(left: Tensor, right: Tensor) -> Tensor:
    """Return the cosines between two sets (Eq. 9): (B, L, D), (B, R, D) -> (B, L, R)."""
    return F.normalize(left, dim=-1) @ F.normalize(right, dim=-1).transpose(1, 2)


def find_nearest_patches(anchors: Tensor, patches: Tensor, count: int) -> Tensor:
    """Return the patches most similar to each anchor (Eq. 8), strongest first: (B, M, D), (B, N, D) -> (B, M, K).

    Example:
        >>> patches = torch.tensor([[[0.0, 1.0], [3.0, 0.0], [1.0, 1.0]]])
        >>> find_nearest_patches(torch.tensor([[[2.0, 0.0]]]), patches, count=2)
        tensor([[[1, 2]]])
    """
    if count > patches.shape[1]:
        raise InputError(f"count={count} patches cannot be chosen: an image has {patches.shape[1]}")
    return compute_cosines(anchors, patches).topk(count, dim=-1).indices


def compute_query_row(queries: Tensor, patches: Tensor, chosen: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return each query's row of its graph's normalized adjacency (Eqs. 10-12): the weights of itself and of patches.

    Args:
        queries: (B, M, D).
        patches: (B, N, D).
        chosen: which patches are in each query's graph, (B, M, N) of True and False; None for all.

    Returns:
        (B, M) and (B, M, N), the latter 0 for patches that are not in the graph.

    Example:
        A patch parallel to the query shares its graph evenly; an orthogonal one has no weight.

        >>> query, patches = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[4.0, 0.0], [0.0, 1.0]]])
        >>> self_weight, others = compute_query_row(query, patches)
        >>> self_weight, others
        (tensor([[0.6667]]), tensor([[[0.3333, 0.0000]]]))
    """
    near = compute_cosines(queries, patches).clamp(min=0)  # (B, M, N)
    among = compute_cosines(patches, patches).clamp(min=0)  # (B, N, N)
    if chosen is None:
        shared = among.sum(dim=-1).unsqueeze(1)  # (B, 1, N): the part of the degrees that all queries share
    else:
        near = near * chosen
        shared = chosen.to(among.dtype) @ among
    patch_degree = shared + near + 1  # + 1: the identity in A; a node's cosine with itself is in C already
    query_degree = near.sum(dim=-1) + 2
    return 2 / query_degree, near * (query_degree.unsqueeze(-1) * patch_degree).rsqrt()


class QueryGraph(nn.Module):
    """One graph layer that moves each query among its patches (Eq. 12).

    The neighborhood is averaged first and multiplied by the weight once a query, which equals multiplying all K + 1
    nodes and keeping one row. Cosines and degrees are computed in float32 inside autocast too.

    Args:
        width: width of queries and patches.
    """

    def __init__(self, width: int):
        super().__init__()
        bound = 1 / math.sqrt(width)
        self.weight = nn.Parameter(torch.empty(width, width).uniform_(-bound, bound))  # used as X @ weight

    def forward(self, queries: Tensor, patches: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Return the moved queries: (B, M, D), (B, N, D), (B, M, N) or None -> (B, M, D)."""
        with torch.autocast(queries.device.type, enabled=False):
            dtype = torch.promote_types(queries.dtype, torch.float32)
            queries, patches = queries.to(dtype), patches.to(dtype)
            self_weight, others = compute_query_row(queries, patches, chosen)
            mixed = self_weight.unsqueeze(-1) * queries + others @ patches
        return torch.tanh(mixed @ self.weight)
