"""Conversion of released TAG-CLIP checkpoints.

The released model holds layers that reach no output; they are dropped, and listed. Its experts are modules one by one;
here their tensors are stacked. Its views are counted as ours, aerial 0 and ground 1.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from agreid_plugin.errors import InputError
from agreid_plugin.nn.key_mapping import Converted, State, drop_dead, join_keys, rename_keys, require_released

BLOCK = r"visual\.transformer\.resblocks\.(\d+)"
OURS = "image.tower.visual.transformer.resblocks"
DEAD = (
    (rf"{BLOCK}\.router\..*", "a first router of the blocks with experts: `img_router` and `fea_router` are what runs"),
    (r"visual_emb_layer\.linear\..*", "a linear layer of the image's TSE: `fc` is what runs"),
    (r"\w+_emb_layer\.mlp\.bns\.1\..*", "the second norm of both TSEs: nothing runs it"),
)
SELECTION = {"mlp.layers.0": "fc1", "mlp.bns.0": "norm", "mlp.layers.1": "fc2"}
LOCAL = {"visual_emb_layer": "image_local", "textual_emb_layer": "text_local"}
RENAMES = (
    (r"visual\.view_token", r"image.view_token"),
    (rf"{BLOCK}\.img_router\.(.*)", rf"{OURS}.\1.image_router.\2"),
    (rf"{BLOCK}\.fea_router\.(.*)", rf"{OURS}.\1.feature_router.\2"),
    (rf"{BLOCK}\.((?:ln_[12]|attn|mlp)\..*)", rf"{OURS}.\1.\2"),
    (r"visual\.(class_embedding|positional_embedding|proj|(?:conv1|ln_pre|ln_post)\..*)", r"image.tower.visual.\1"),
    (r"encode_text\.(.*)", r"text.text.\1"),
    (r"visual_emb_layer\.fc\.(.*)", r"image_local.linear.\1"),
    *(
        (rf"{re.escape(f'{theirs}.{part}')}\.(.*)", rf"{ours}.{name}.\1")
        for theirs, ours in LOCAL.items()
        for part, name in SELECTION.items()
    ),
    (r"textual_emb_layer\.(.*)", r"text_local.\1"),
    (r"(classifier\..*|logit_scale)", r"\1"),
)


def convert_tag_clip(state: State) -> Converted:
    """Convert a released TAG-CLIP's state dict."""
    rest = require_released(state, "tag-clip")
    unused = drop_dead(rest, DEAD)
    return Converted({**_stack_experts(rest), **rename_keys(rest, RENAMES)}, unused)


def _stack_experts(rest: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stack the experts' tensors, block by block."""
    found: dict[str, dict[int, str]] = {}
    for key in rest:
        if match := re.fullmatch(rf"{BLOCK}\.experts\.(\d+)\.(c_fc|c_proj)\.(weight|bias)", key):
            block, expert, layer, leaf = match.groups()
            found.setdefault(f"{OURS}.{block}.experts.{layer}_{leaf}", {})[int(expert)] = key
    if not found:
        raise InputError("the checkpoint is incomplete: it has a view token, but no experts")
    for keys in found.values():
        if sorted(keys) != list(range(len(keys))):
            raise InputError(
                f"the checkpoint is incomplete: of {min(keys.values())} only experts {sorted(keys)} are there"
            )
    return {name: join_keys(rest, [keys[each] for each in sorted(keys)], torch.stack) for name, keys in found.items()}
