"""ViSA's backbone: view-aware encoder (VAB, Sec. 3.2), ETGM and DLFM, any of them left out as in Table 2.

Shapes: B images, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from agreid_plugin.errors import InputError
from agreid_plugin.methods.visa.dlfm import DLFM
from agreid_plugin.methods.visa.etgm import ETGM, PlainQueries, Queries
from agreid_plugin.methods.visa.variants import Variant, get_variant
from agreid_plugin.nn.patch_features import PatchNetwork, TokenTransformer
from agreid_plugin.nn.view_token_vit import DecoupledEncoder, Encoder, EncoderOutputs, PlainEncoder
from agreid_plugin.types import View


@dataclass(frozen=True)
class ViSAFeatures:
    """Outputs of the backbone; `local` and `queries` are None without their modules."""

    encoded: EncoderOutputs
    queries: Queries | None = None
    local: Tensor | None = None  # (B, D)

    @property
    def feature(self) -> Tensor:
        """Input of a head: the identity feature, with the local feature side by side."""
        identity = self.encoded.identity
        return identity if self.local is None else torch.cat([identity, self.local], dim=1)


class ViSABackbone(nn.Module):
    """Encoder, ETGM and DLFM.

    Args:
        encoder: VAB, or a plain encoder.
        queries: ETGM, or plain queries; None together with `fusion`.
        fusion: DLFM, or None for the encoder only.
    """

    def __init__(self, encoder: Encoder, queries: ETGM | PlainQueries | None, fusion: DLFM | None):
        super().__init__()
        if (queries is None) != (fusion is None):
            raise InputError("queries and the fusion of them come together: give both ETGM and DLFM, or neither")
        if fusion is not None and fusion.invariant.neighbors > encoder.num_patches:
            raise InputError(
                f"neighbors={fusion.invariant.neighbors} patches are wanted for a graph, but an image has "
                f"{encoder.num_patches}: lower neighbors, or the stride of the patches"
            )
        self.encoder, self.queries, self.fusion = encoder, queries, fusion
        self.width = encoder.width
        self.needs_views = encoder.needs_views or (queries is not None and queries.needs_views)

    def forward(self, images: Tensor, views: Tensor | None = None) -> ViSAFeatures:
        """Encode images of these views: (B, 3, rows, cols), (B,)."""
        encoded = self.encoder(images, views)
        if self.queries is None or self.fusion is None:
            return ViSAFeatures(encoded)
        queries = self.queries(encoded.identity, encoded.view, views)
        return ViSAFeatures(encoded, queries, self.fusion(queries, encoded))


def build_backbone(
    vit: PatchNetwork,
    *,
    variant: str = "paper",
    vab: bool = True,
    etgm: bool = True,
    dlfm: bool = True,
    experts: int = 8,
    top_k: int = 2,
    tokens: int = 16,
    neighbors: int = 64,
    routing: str = "paper",
    shed: str = "paper",
) -> ViSABackbone:
    """Build the backbone of a variant, any of its modules left out as in Table 2.

    Args:
        vit: the transformer, with one extra token for VAB and none without it; or another network, see
            `nn.network_adapters.adapt_network`.
        variant: `paper` or `released`.
        vab: view tokens and their subtraction; without it the class token serves both branches.
        etgm: experts; without it the queries are learned tokens to which the branch's feature is added.
        dlfm: graphs and fusion; without it there is no local feature, and no use for ETGM.
        experts: E, experts in each group.
        top_k: k, experts chosen for an image.
        tokens: M, queries a branch.
        neighbors: K, patches in a graph.
        routing: how ETGM routes: `paper`, or `centered`, where all experts are used from any start; see `ETGM`.
        shed: how VAB subtracts the view token: `paper`, or `gated`, which keeps what a trained ViT knows; see
            `DecoupledEncoder`.
    """
    switches = get_variant(variant)
    if etgm and not dlfm:
        raise InputError("etgm=True needs dlfm=True: without the fusion nothing reads the queries")
    if vab and not isinstance(vit, TokenTransformer):
        raise InputError(
            f"vab=True, but {type(vit).__name__} has no blocks that a view token could join: set it to False"
        )
    encoder = build_vab(vit, switches, shed) if isinstance(vit, TokenTransformer) and vab else PlainEncoder(vit)
    if not dlfm:
        return ViSABackbone(encoder, None, None)
    queries = ETGM(vit.width, vit.heads, experts, top_k, tokens, routing) if etgm else PlainQueries(vit.width, tokens)
    fusion = DLFM(
        vit.width,
        vit.heads,
        neighbors,
        switches.patches_per_query,
        switches.graph_per_branch,
        switches.graph_gradient,
        fuse_cls=switches.fuse_cls,
    )
    return ViSABackbone(encoder, queries, fusion)


def build_vab(vit: TokenTransformer, switches: Variant, shed: str = "paper") -> DecoupledEncoder:
    """Build VAB (Sec. 3.2): a token for each view, subtracted from CLS after every block; see `DecoupledEncoder`.

    After the last block the final norm comes before the subtraction.
    """
    return DecoupledEncoder(vit, len(View), switches.tokens_per_block, vit.depth - 1, shed)
