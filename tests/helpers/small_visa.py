"""A tiny ViSA for tests: width 16, 8 patches, three blocks, three experts a group, three identities."""

import torch
from torch import nn

from agreid_plugin.methods.visa import VARIANTS as SWITCHES
from agreid_plugin.methods.visa import ViSA, ViSABackbone, build_backbone
from agreid_plugin.nn.vit import VisionTransformer
from agreid_plugin.types import Batch, View

VARIANTS = list(SWITCHES)


def small_backbone(variant: str = "paper", vab: bool = True, **arguments) -> ViSABackbone:
    """Width 16, 8 patches, three experts a group; nothing random in training, and no view token at zero."""
    torch.manual_seed(0)
    vit = VisionTransformer((32, 16), 8, width=16, depth=3, heads=2, drop_path=0.0, extra_tokens=int(vab))
    defaults = {"experts": 3, "top_k": 2, "tokens": 4, "neighbors": 3}
    backbone = build_backbone(vit, variant=variant, vab=vab, **defaults | arguments)
    if vab:
        nn.init.normal_(backbone.encoder.view_tokens, std=0.5)
    return backbone


def small_visa(variant: str = "paper", modules: dict[str, bool] | None = None, **arguments) -> ViSA:
    """Of three identities."""
    return ViSA(small_backbone(variant, **modules or {}), 3, variant=variant, **arguments)


def batch(seed: int = 1) -> Batch:
    images = torch.randn(6, 3, 32, 16, generator=torch.Generator().manual_seed(seed))
    views = torch.tensor([View.AERIAL, View.GROUND, View.GROUND, View.AERIAL, View.GROUND, View.GROUND])
    return Batch(images=images, pids=torch.tensor([0, 0, 1, 1, 2, 2]), views=views)
