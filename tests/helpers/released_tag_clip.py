"""A tiny TAG-CLIP, and its state dict in the names of the released code."""

import re

import torch
from torch import Tensor

from agreid_plugin.methods.tag_clip import TAGCLIP
from agreid_plugin.nn.clip_build import build_clip

SELECTION = {"fc1": "mlp.layers.0", "norm": "mlp.bns.0", "fc2": "mlp.layers.1"}


def tiny_tag_clip(layers: int = 3, at=(1, 2), experts: int = 3) -> TAGCLIP:
    torch.manual_seed(0)
    shape = {"patch_size": 8, "width": 8, "heads": 2, "layers": layers, "embed_dim": 4}
    text = {"text_width": 4, "text_heads": 2, "text_layers": layers, "text_length": 8}
    clip = build_clip("ViT-B-16", image_size=(16, 16), **shape, **text)
    model = TAGCLIP(clip, 5, at=at, experts=experts, top_k=2, tse_width=6)
    for value in model.state_dict().values():
        if value.is_floating_point():
            value += 0.1 * torch.rand(value.shape)
    return model.eval()


def released_tag_clip(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Name the weights as the released code does, with the layers that it does not use."""
    found = {}
    for name, value in state.items():
        if match := re.fullmatch(r"image\.tower\.(.*)\.experts\.(c_fc|c_proj)_(\w+)", name):
            for number, own in enumerate(value):
                found[f"{match[1]}.experts.{number}.{match[2]}.{match[3]}"] = own
        else:
            found[released_name(name)] = value
    for block in sorted({key.rsplit(".", 2)[0] for key in found if "img_router" in key}):
        found[f"{block}.router.weight"], found[f"{block}.router.bias"] = torch.zeros(2, 8), torch.zeros(2)
    for leaf in ("weight", "bias"):
        found[f"visual_emb_layer.linear.{leaf}"] = torch.zeros(6)
    for side in ("visual", "textual"):
        for leaf in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            found[f"{side}_emb_layer.mlp.bns.1.{leaf}"] = torch.zeros(6)
    return found


def released_name(name: str) -> str:
    if match := re.fullmatch(r"(image|text)_local\.(\w+)\.(\w+)", name):
        side, part = {"image": "visual", "text": "textual"}[match[1]], match[2]
        part = SELECTION.get(part, "fc" if match[1] == "image" else "linear")
        return f"{side}_emb_layer.{part}.{match[3]}"
    name = name.replace("image.view_token", "visual.view_token").replace("image.tower.", "")
    name = name.replace("text.text.", "encode_text.")
    return name.replace(".image_router.", ".img_router.").replace(".feature_router.", ".fea_router.")
