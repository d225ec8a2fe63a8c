"""Conversion of released SVPR-ReID checkpoints.

Attributes keep the file's order, which is that of the released lists: see `data.attributes`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from agreid_plugin.errors import InputError
from agreid_plugin.nn.key_mapping import Converted, State, drop_dead, join_keys, rename_keys, require_released, take_key

BLOCK = "CVPRNet.blocks.0."
TIED = r"CVPRNet\.blocks\.[1-9]\d*\..*"
DEAD = (
    (TIED, "further stages of the refinement: the first under other names"),
    (r"BACKBONE\.logit_scale", "scale of CLIP's similarities: nothing reads it"),
    (r"TextNet\.view_promptlearner\..*", "embeddings of words: copies of the text encoder's"),
    (r".*\.normy\..*", "norms inside the attentions: nothing reads them"),
    (r".*\.norm_layer\..*", "norms inside the MLPs: nothing reads them"),
    (r"CVPRNet\.ln_norm\..*", "norm of the refinement: nothing reads it"),
)
TEXT = r"(token_embedding\..*|positional_embedding|transformer\..*|ln_final\..*|text_projection)"
NECK = r"bottleneck\.(weight|bias|running_mean|running_var|num_batches_tracked)"
HEADS = {"header": "head", "header_cvpr": "cvpr_head", "header_local": "local_head", "header_view": "view_head"}
ATTENTIONS = {
    "TextNet.CA_text2prompt": "backbone.vdfe.token.attention",
    "ASMOE.cross_attention": "backbone.asmoe.attention",
    "CVPRNet.vt_fuse": "backbone.cvpr.entry",
    "CVPRNet.attn_masker": "backbone.cvpr.scores",
    f"{BLOCK}cross_attn": "backbone.cvpr.block.to_patches",
    f"{BLOCK}cross_attn2": "backbone.cvpr.block.to_query",
}
ATTRIBUTE = "ASMOE.attributsHeader."
LETTERS = {"q_": "query", "k_": "key", "v_": "value", "proj": "proj"}
MODULES = {
    "TextNet.view_fusion": "backbone.vdfe.token.fusion",
    "inverseNet_P2I.layers.0": "backbone.vdfe.token.inverse.0",
    "inverseNet_P2I.layers.1": "backbone.vdfe.token.inverse.3",
    "VBD.CA_view2cls": "backbone.vdfe.decoupling.of_view",
    "VBD.CA_cls2view": "backbone.vdfe.decoupling.of_cls",
    "VBD.norm": "backbone.vdfe.decoupling.after.0",
    "VBD.mlp.0": "backbone.vdfe.decoupling.after.1",
    "VBD.mlp.2": "backbone.vdfe.decoupling.after.3",
    "inverseNet_T2I.layers.0": "backbone.asmoe.inverse.0",
    "inverseNet_T2I.layers.1": "backbone.asmoe.inverse.3",
    "ASMOE.attributesMOE.gate": "backbone.asmoe.experts.gate",
    "ASMOE.attributesRouter.layers.0": "backbone.asmoe.fusion.score.0",
    "ASMOE.attributesRouter.layers.1": "backbone.asmoe.fusion.score.2",
    "CVPRNet.gate_fc.0": "backbone.cvpr.gate",
    f"{BLOCK}attn": "backbone.cvpr.block.attn",
    f"{BLOCK}mlp.layers.0": "backbone.cvpr.block.mlp.fc1",
    f"{BLOCK}mlp.layers.1": "backbone.cvpr.block.mlp.fc2",
    f"{BLOCK}norm1": "backbone.cvpr.block.norm1",
    f"{BLOCK}norm2": "backbone.cvpr.block.norm2",
    f"{BLOCK}norm4": "backbone.cvpr.block.norm3",
    f"{BLOCK}norm3": "backbone.cvpr.block.patch_norm",
}
RENAMES = (
    (r"BACKBONE\.visual\.(.*)", r"backbone.image.visual.\1"),
    (rf"BACKBONE\.{TEXT}", r"backbone.text.tower.text.\1"),
    (r"ASMOE\.attributesMOE\.experts\.(\d+)\.mlp\.(.*)", r"backbone.asmoe.experts.experts.\1.\2"),
    (r"VBD\.alpha", "backbone.vdfe.decoupling.scale"),
    ("local_weight", "backbone.cvpr.local_weight"),
    *(
        (rf"{re.escape(released)}\.{letter}\.(.*)", rf"{ours}.{name}.\1")
        for released, ours in ATTENTIONS.items()
        for letter, name in LETTERS.items()
    ),
    *((rf"{re.escape(released)}\.(.*)", rf"{ours}.\1") for released, ours in MODULES.items()),
    *((rf"{released}\.{NECK}", rf"{ours}.norm.\1") for released, ours in HEADS.items()),
    *((rf"{released}\.classifier\.(.*)", rf"{ours}.classifier.\1") for released, ours in HEADS.items()),
)
SQUEEZED = {
    "BACKBONE.visual.new_positional_embedding": "backbone.vdfe.token.position",
    "TextNet.view_prompt": "backbone.text.view_prompts",
    "TextNet.text_prompt": "backbone.text.attribute_prompts",
    "ASMOE.attributesPrompt": "backbone.asmoe.prompts",
}


def convert_svpr(state: State) -> Converted:
    """Convert a released SVPR-ReID's state dict, for `variant: released`."""
    rest = require_released(state, "svpr")
    _require_tied(rest)
    unused = drop_dead(rest, DEAD)
    made = {ours: take_key(rest, released).squeeze(0) for released, ours in SQUEEZED.items()}
    made["backbone.cvpr.token"] = take_key(rest, "use_cvpr_token").flatten()
    names = _attribute_names(rest)
    made |= _attribute_heads(rest, names)
    attributes = {
        name: len(made[f"backbone.asmoe.heads.classifiers.{place}.weight"]) for place, name in enumerate(names)
    }
    return Converted({**made, **rename_keys(rest, RENAMES)}, unused, attributes)


def _require_tied(rest: State) -> None:
    """Refuse stages of the refinement that differ: the released code makes them of one block."""
    for key in rest:
        if re.fullmatch(TIED, key):
            first = re.sub(r"blocks\.\d+", "blocks.0", key)
            if first not in rest or not torch.equal(rest[first], rest[key]):
                raise InputError(f"the checkpoint is damaged: {key} should equal {first}, as all stages are one block")


def _attribute_names(rest: State) -> list[str]:
    parts = (key.removeprefix(ATTRIBUTE) for key in rest if key.startswith(ATTRIBUTE))
    names = list(dict.fromkeys(re.sub(r"\.(bottleneck|classifier)\..*", "", part) for part in parts))
    if not names:
        raise InputError(f"the checkpoint is incomplete: {ATTRIBUTE}* is missing")
    return names


def _attribute_heads(rest: dict[str, Tensor], attributes: Sequence[str]) -> dict[str, Tensor]:
    """Join the norms of all attributes into one, and number the classifiers."""
    made, names = {}, [f"{ATTRIBUTE}{name}" for name in attributes]
    for leaf in ("weight", "bias", "running_mean", "running_var"):
        keys = [f"{name}.bottleneck.{leaf}" for name in names]
        made[f"backbone.asmoe.heads.norm.{leaf}"] = join_keys(rest, keys, torch.cat)
    counts = [f"{name}.bottleneck.num_batches_tracked" for name in names]
    made["backbone.asmoe.heads.norm.num_batches_tracked"] = join_keys(rest, counts, lambda values: values[0])
    for place, name in enumerate(names):
        weight = take_key(rest, f"{name}.classifier.weight")
        if weight.dim() != 2:
            raise InputError(f"the checkpoint is damaged: {name}.classifier.weight is {tuple(weight.shape)}")
        made[f"backbone.asmoe.heads.classifiers.{place}.weight"] = weight
    return made
