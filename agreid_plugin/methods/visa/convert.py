"""Conversion of released VDT and ViSA checkpoints.

The released ViSA trains 36 M parameters that reach no output; they are dropped, and listed. Its view classifier counts
aerial as 1 and ground as 0; here, as in all of the package, aerial is 0.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from agreid_plugin.nn.key_mapping import (
    Converted,
    State,
    drop_dead,
    join_keys,
    list_numbers,
    rename_keys,
    require_released,
    take_key,
)

VIT = r"(cls_token|pos_embed|patch_embed\..*|blocks\..*|norm\..*)"
HEADS = (
    (r"heads\.(.*)", r"head.\1"),
    (r"local_heads\.(.*)", r"local_head.\1"),
    (r"view_heads\.(.*)", r"view_head.\1"),
)
VDT_RENAMES = ((rf"backbone\.{VIT}", r"backbone.vit.\1"), *HEADS)
DEAD = (
    (r"backbone\.base\.blocks\.{last}\..*", "last block of `base`: its copy in `b1` is what runs"),
    (r"backbone\.base\.norm\..*", "final norm of `base`: its copy in `b1` is what runs"),
    (r"backbone\.view_gcn\..*", "graph layer of the specific branch: both branches run `share_gcn`"),
    (r"backbone\.image_pe", "position embedding of the fusion: nothing reads it"),
    (
        r"backbone\.\w+_experts\.\d+\.prm\.cross_attn\.[qk]_proj\..*",
        "query and key projections of the experts: a softmax over one key is 1",
    ),
)
VISA_RENAMES = (
    (r"backbone\.b1\.0\.(.*)", r"backbone.encoder.vit.blocks.{last}.\1"),
    (r"backbone\.b1\.1\.(.*)", r"backbone.encoder.vit.norm.\1"),
    (rf"backbone\.base\.{VIT}", r"backbone.encoder.vit.\1"),
    (r"backbone\.norm_share\.(.*)", r"backbone.fusion.invariant.norm.\1"),
    (r"backbone\.norm_view\.(.*)", r"backbone.fusion.specific.norm.\1"),
    (r"backbone\.final_attn_token_to_image\.attn\.(.*)", r"backbone.fusion.fusion.attn.\1"),
    (r"backbone\.final_attn_token_to_image\.mlp\.(.*)", r"backbone.fusion.fusion.mlp.\1"),
    (r"backbone\.final_attn_token_to_image\.norm2\.(.*)", r"backbone.fusion.fusion.norm1.\1"),
    (r"backbone\.final_attn_token_to_image\.norm3\.(.*)", r"backbone.fusion.fusion.norm2.\1"),
    *HEADS,
)
EXPERT_PARTS = {
    "prm.cross_attn.v_proj": "value",
    "prm.cross_attn.out_proj": "out",
    "prm.attn.qkv": "qkv",
    "prm.attn.proj": "proj",
    "prm.mlp.fc1": "fc1",
    "prm.mlp.fc2": "fc2",
    "prm.norm1": "norm1",
    "prm.norm2": "norm2",
    "prm.norm3": "norm3",
}
EXPERT_GROUPS = ("share", "sky", "ground")


def convert_vdt(state: State) -> Converted:
    """Convert a released VDT's state dict."""
    rest = require_released(state, "vdt")
    made = {"backbone.view_tokens": rest.pop("backbone.view_token")}
    return Converted(_to_our_names({**made, **rename_keys(rest, VDT_RENAMES)}), {})


def convert_visa(state: State) -> Converted:
    """Convert a released ViSA's state dict, for `variant: released`."""
    rest = require_released(state, "visa")
    last = str(max(list_numbers(rest, "backbone.base.blocks")))
    unused = drop_dead(rest, [(pattern.replace("{last}", last), what) for pattern, what in DEAD])
    made = {**_join_view_tokens(rest), **_stack_experts(rest), **_stack_routers(rest), **_convert_fusion(rest)}
    names = [(pattern, replacement.replace("{last}", last)) for pattern, replacement in VISA_RENAMES]
    return Converted(_to_our_names({**made, **rename_keys(rest, names)}), unused)


def _to_our_names(made: State) -> dict[str, Tensor]:
    """Rename heads as in `BNNeck`, and put the view head's classes in our order."""
    return {_rename_neck(key): _swap_views(key, value) for key, value in made.items()}


def _rename_neck(key: str) -> str:
    """Return a head's key in the names of `BNNeck`."""
    return re.sub(r"head\.bottleneck\.0\.", "head.norm.", re.sub(r"head\.weight$", "head.classifier.weight", key))


def _swap_views(key: str, value: Tensor) -> Tensor:
    return value.flip(0) if key == "view_head.weight" else value


def _join_view_tokens(rest: dict[str, Tensor]) -> dict[str, Tensor]:
    tokens = [f"backbone.base.view_token_{view}" for view in EXPERT_GROUPS[1:]]
    return {"backbone.encoder.view_tokens": join_keys(rest, tokens, lambda values: torch.cat(values, dim=1))}


def _stack_experts(rest: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stack the experts' tensors into those of one bank."""
    every = list_numbers(rest, "backbone.share_experts")
    owners = [f"backbone.{group}_experts.{number}" for group in EXPERT_GROUPS for number in every]
    made = {"backbone.queries.experts.tokens": join_keys(rest, [f"{owner}.prompt" for owner in owners], torch.cat)}
    for part, name in EXPERT_PARTS.items():
        for leaf in ("weight",) if part == "prm.attn.qkv" else ("weight", "bias"):
            keys = [f"{owner}.{part}.{leaf}" for owner in owners]
            made[f"backbone.queries.experts.{name}.{leaf}"] = join_keys(rest, keys, torch.stack)
    return made


def _stack_routers(rest: dict[str, Tensor]) -> dict[str, Tensor]:
    made = {}
    for leaf in ("weight", "bias"):
        share, *by_view = (f"backbone.{group}_router.gate.{leaf}" for group in EXPERT_GROUPS)
        made[f"backbone.queries.shared_router.{leaf}"] = take_key(rest, share).unsqueeze(0)
        made[f"backbone.queries.view_router.{leaf}"] = join_keys(rest, by_view, torch.stack)
    return made


def _convert_fusion(rest: dict[str, Tensor]) -> dict[str, Tensor]:
    graph = take_key(rest, "backbone.share_gcn.gcn_weights")
    return {
        "backbone.fusion.invariant.graph.weight": graph,
        "backbone.fusion.specific.graph.weight": graph,
        "backbone.fusion.token": take_key(rest, "backbone.out_token").squeeze(0),
    }
