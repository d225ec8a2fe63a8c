"""Reference form of ViSA: its equations as printed, with loops, on the weights of the fast modules.

Attention is softmax(Q K^T) V written out, experts run one after another behind masks, and each query has a graph
of its own whose nodes all pass the layer. Slow on purpose; tests and `tools/bench` compare the fast modules with it.

Shapes: B images, D width, N patches, E experts a group, k chosen experts, M queries a branch, K patches in a graph,
V vectors sent to one expert, T tokens.
"""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from agreid_plugin.errors import require_given
from agreid_plugin.methods.visa.backbone import ViSABackbone, ViSAFeatures
from agreid_plugin.methods.visa.dlfm import DLFM, GraphBranch
from agreid_plugin.methods.visa.etgm import ETGM, Queries
from agreid_plugin.nn.attention import Attention, Block, PostNormBlock
from agreid_plugin.nn.experts import GroupedLayerNorm, GroupedLinear, Router, Routing, TokenExperts
from agreid_plugin.nn.view_token_vit import DecoupledEncoder, Encoder, EncoderOutputs
from agreid_plugin.nn.vit import VisionTransformer
from agreid_plugin.types import View


class ReferenceBackbone(ViSABackbone):
    """The modules of another backbone, run in the reference form."""

    def __init__(self, backbone: ViSABackbone):
        super().__init__(backbone.encoder, backbone.queries, backbone.fusion)

    def forward(self, images: Tensor, views: Tensor | None = None) -> ViSAFeatures:
        """Encode images of these views: (B, 3, rows, cols), (B,)."""
        return encode_features(self, images, views)


def encode_features(backbone: ViSABackbone, images: Tensor, views: Tensor | None = None) -> ViSAFeatures:
    """Return the features of images in the reference form: (B, 3, rows, cols), (B,)."""
    encoded = encode(backbone.encoder, images, views)
    make = backbone.queries
    if make is None or backbone.fusion is None:
        return ViSAFeatures(encoded)
    if isinstance(make, ETGM):
        queries = generate_queries(make, encoded.identity, encoded.view, require_given("views", views))
    else:
        queries = make(encoded.identity, encoded.view)
    return ViSAFeatures(encoded, queries, fuse(backbone.fusion, queries, encoded))


def encode(encoder: Encoder, images: Tensor, views: Tensor | None = None) -> EncoderOutputs:
    """Run an encoder block by block (Sec. 3.2): the view's token joins, and is subtracted from CLS after each block."""
    vit, view_tokens, subtractions = cast(VisionTransformer, encoder.vit), None, 0
    if isinstance(encoder, DecoupledEncoder):
        learned, subtractions = encoder.view_tokens, encoder.subtractions
        view_tokens = (
            learned[:, require_given("views", views)] if encoder.needs_views else learned.expand(-1, len(images), -1)
        )
    extra = [] if view_tokens is None else [view_tokens[0].unsqueeze(1)]
    tokens = torch.cat([vit.cls_token.expand(len(images), -1, -1), *extra, vit.patches(images)], dim=1) + vit.pos_embed
    for number, block in enumerate(vit.blocks):
        patches = tokens[:, -vit.num_patches :]  # those that enter the last block stay
        if view_tokens is not None and 0 < number < len(view_tokens):
            tokens = torch.cat([tokens[:, :1], tokens[:, 1:2] + view_tokens[number].unsqueeze(1), tokens[:, 2:]], dim=1)
        tokens = pre_norm_block(block, tokens)
        if number < subtractions:
            tokens = torch.cat([tokens[:, :1] - tokens[:, 1:2], tokens[:, 1:]], dim=1)
    tokens = vit.norm(tokens)
    if view_tokens is None:
        return EncoderOutputs(tokens[:, 0], tokens[:, 0], tokens[:, 0], patches)
    return EncoderOutputs(tokens[:, 0], tokens[:, 1], tokens[:, 0] - tokens[:, 1], patches)


def pre_norm_block(block: Block, tokens: Tensor) -> Tensor:
    """Run a block of the encoder: t + Attn(LN(t)), then t + Mlp(LN(t)); (B, T, D)."""
    tokens = tokens + block.drop_path(self_attention(block.attn, block.norm1(tokens)))
    return tokens + block.drop_path(block.mlp(block.norm2(tokens)))


def post_norm_block(block: PostNormBlock, tokens: Tensor) -> Tensor:
    """Run the fusion: t = LN(t + Attn(t)), then t = LN(t + Mlp(t)); (B, T, D)."""
    tokens = block.norm1(tokens + self_attention(block.attn, tokens))
    return block.norm2(tokens + block.mlp(tokens))


def self_attention(attention: Attention, tokens: Tensor) -> Tensor:
    """Run self-attention: (B, T, D)."""
    query, key, value = attention.qkv(tokens).chunk(3, dim=-1)
    return attention.proj(attend(query, key, value, attention.heads))


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Return softmax(Q K^T / sqrt(D / heads)) V, with the heads side by side: (B, T, D), twice (B, S, D)."""
    query, key, value = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value))
    scores = query @ key.mT / math.sqrt(query.shape[-1])  # (B, heads, T, S)
    return (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)


def run_expert(bank: TokenExperts, number: int, vectors: Tensor, cross: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Run one expert on its vectors (Eq. 7), the cross-attention of all M tokens to one key included.

    Args:
        bank: the experts.
        number: which of them.
        vectors: (V, D).
        cross: query and key projections of the cross-attention, each (D, D). The bank has none, since they cannot
            change the result; None runs two other matrices of the bank in their place, at the same cost.

    Returns:
        (V, M, D).
    """
    to_query, to_key = (bank.value.weight[number], bank.out.weight[number]) if cross is None else cross
    tokens = bank.tokens[number].expand(len(vectors), -1, -1)
    key = vectors.unsqueeze(1)  # (V, 1, D)
    seen = attend(F.linear(tokens, to_query), F.linear(key, to_key), _linear(bank.value, number, key), bank.heads)
    tokens = _norm(bank.norm1, number, tokens + _linear(bank.out, number, seen))
    query, key, value = _linear(bank.qkv, number, tokens).chunk(3, dim=-1)
    seen = _linear(bank.proj, number, attend(query, key, value, bank.heads))
    tokens = _norm(bank.norm2, number, tokens + seen)
    hidden = F.gelu(_linear(bank.fc1, number, tokens))
    return _norm(bank.norm3, number, tokens + _linear(bank.fc2, number, hidden))


def route(router: Router, vectors: Tensor, group: int = 0) -> Routing:
    """Choose among the experts of one group: the k largest logits, softmax over those; (V, D)."""
    logits = F.linear(vectors, router.weight[group], router.bias[group])
    strongest, experts = logits.topk(router.top_k, dim=-1)
    return Routing(logits, experts, strongest.softmax(dim=-1))


def mix(bank: TokenExperts, first: int, routing: Routing, vectors: Tensor) -> Tensor:
    """Add up the chosen experts' tokens, expert by expert and choice by choice: (V, D) -> (V, M, D).

    Args:
        bank: the experts of all groups.
        first: number of the group's first expert in the bank.
        routing: experts of the group for each vector.
        vectors: inputs of the experts.
    """
    total = vectors.new_zeros(len(vectors), *bank.tokens.shape[1:])
    for number in range(routing.logits.shape[1]):
        for choice in range(routing.experts.shape[1]):
            mask = routing.experts[:, choice] == number
            if mask.any():
                made = routing.weights[mask, choice].view(-1, 1, 1) * run_expert(bank, first + number, vectors[mask])
                total = total.index_add(0, mask.nonzero().squeeze(1), made)
    return total


def generate_queries(etgm: ETGM, identity: Tensor, view: Tensor, views: Tensor) -> Queries:
    """Run ETGM (Eqs. 4-7): the shared group on all images, then each view's group on the images of that view."""
    shared = route(etgm.shared_router, identity)
    group_size = shared.logits.shape[1]
    invariant = mix(etgm.experts, 0, shared, identity)
    specific, order, routings = [], [], []
    for group in View:
        members = (views == group).nonzero().squeeze(1)
        routing = route(etgm.view_router, view[members], group)
        specific.append(mix(etgm.experts, group_size * (1 + group), routing, view[members]))
        order.append(members)
        routings.append(routing)
    back = torch.cat(order).argsort()
    logits, experts, weights = (
        torch.cat([getattr(routing, name) for routing in routings])[back] for name in ("logits", "experts", "weights")
    )
    return Queries(invariant, torch.cat(specific)[back], shared, Routing(logits, experts, weights))


def compute_cosines(left: Tensor, right: Tensor) -> Tensor:
    """Return the cosine of each of one set with each of the other (Eq. 9): (L, D), (R, D) -> (L, R)."""
    return (left @ right.mT) / (left.norm(dim=-1)[:, None] * right.norm(dim=-1))


def normalize_adjacency(nodes: Tensor) -> Tensor:
    """Return D^-1/2 A D^-1/2 of A = max(cos, 0) + I (Eqs. 10-12): (K + 1, D) -> (K + 1, K + 1)."""
    adjacency = compute_cosines(nodes, nodes).clamp(min=0) + torch.eye(
        len(nodes), dtype=nodes.dtype, device=nodes.device
    )
    scale = torch.diag(adjacency.sum(dim=1) ** -0.5)
    return scale @ adjacency @ scale


def move_query(weight: Tensor, query: Tensor, patches: Tensor) -> Tensor:
    """Run the graph layer on all nodes of one query's graph and keep its row (Eq. 12): (D, D), (D,), (K, D) -> (D,)."""
    nodes = torch.cat([query.unsqueeze(0), patches])
    return torch.tanh(normalize_adjacency(nodes) @ (nodes @ weight))[0]


def move_queries(branch: GraphBranch, queries: Tensor, feature: Tensor, patches: Tensor) -> Tensor:
    """Run a branch's graph layer on its queries, image by image and query by query.

    (B, M, D), (B, D), (B, N, D) -> (B, M, D), before the norm.
    """
    if not branch.gradient:
        queries, patches = queries.detach(), patches.detach()
    moved = []
    for image in range(len(queries)):
        for query in queries[image]:
            anchor = query if branch.patches_per_query else feature[image]
            nearest = compute_cosines(anchor.unsqueeze(0), patches[image])[0].topk(branch.neighbors).indices  # Eq. 8
            moved.append(move_query(branch.graph.weight, query, patches[image, nearest]))
    return torch.stack(moved).view_as(queries)


def fuse(dlfm: DLFM, queries: Queries, encoded: EncoderOutputs) -> Tensor:
    """Run DLFM (Eqs. 8-13): (B, D)."""
    invariant = move_queries(dlfm.invariant, queries.invariant, encoded.identity, encoded.patches)
    invariant = dlfm.invariant.norm(invariant) + queries.invariant
    specific = move_queries(dlfm.specific, queries.specific, encoded.view, encoded.patches)
    specific = dlfm.specific.norm(specific) + queries.specific
    first = encoded.identity if dlfm.token is None else dlfm.token.expand_as(encoded.identity)
    return post_norm_block(dlfm.fusion, torch.cat([first.unsqueeze(1), invariant, specific], dim=1))[:, 0]


def _linear(layer: GroupedLinear, number: int, values: Tensor) -> Tensor:
    return F.linear(values, layer.weight[number], None if layer.bias is None else layer.bias[number])


def _norm(layer: GroupedLayerNorm, number: int, values: Tensor) -> Tensor:
    return F.layer_norm(values, values.shape[-1:], layer.weight[number], layer.bias[number], layer.eps)
