"""What a configuration's model is made of: towers and heads, losses, parameters and operations."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from fastreid.modeling.backbones import BACKBONE_REGISTRY
from fastreid.modeling.heads import REID_HEADS_REGISTRY
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from fastreid.utils.registry import Registry
from torch import Tensor, nn

from agreid_plugin.engine.catalog import owner_of
from agreid_plugin.engine.model_rows import Row, counting, gigaflops, times
from agreid_plugin.hosts.fastreid.models.base import HostMethod
from agreid_plugin.hosts.fastreid.models.losses import HOST_LOSSES, KEYS, LOSSES
from agreid_plugin.nn.clip import ImageTower, TextTower
from agreid_plugin.nn.vit import SIZES, VisionTransformer


def model_rows(cfg, model: nn.Module, classes: int) -> Iterator[Row]:
    """Tell the architecture, the backbone and its towers, and the heads."""
    yield "architecture", _named(META_ARCH_REGISTRY, cfg.MODEL.META_ARCHITECTURE)
    backbone = _named(BACKBONE_REGISTRY, cfg.MODEL.BACKBONE.NAME)
    towers = {"ViT": (VisionTransformer, _vit), "image tower": (ImageTower, _image), "text tower": (TextTower, _text)}
    found = {
        name: describe(cfg, module)
        for module in model.modules()
        for name, (kind, describe) in towers.items()
        if isinstance(module, kind)
    }
    yield "backbone", backbone if found else f"{backbone}, depth {cfg.MODEL.BACKBONE.DEPTH}"
    yield from found.items()
    known = f"{classes:,} classes" if classes else "a class for each identity of the training sets, which are not there"
    yield "heads", f"{_named(REID_HEADS_REGISTRY, cfg.MODEL.HEADS.NAME)}, {known}"


def _named(registry: Registry, name: str) -> str:
    return f"{name} ({owner_of(registry.get(name))})"


def _vit(cfg, vit: VisionTransformer) -> str:
    heads, convolution = vit.blocks[0].attn.heads, vit.patch_embed.proj
    size = SIZES[cfg.MODEL.BACKBONE.DEPTH]
    known = (vit.width, vit.depth, heads) == (size.width, size.depth, size.heads)
    name = cfg.MODEL.BACKBONE.DEPTH if known else "of its own size"
    tokens = ["1 class", *([f"{vit.extra_tokens} view"] if vit.extra_tokens else []), f"{vit.num_patches} patches"]
    return (
        f"{name}: width {vit.width}, {vit.depth} blocks, {heads} heads; patch {convolution.kernel_size[0]}, "
        f"stride {times(convolution.stride)}, grid {times(vit.grid)} = {vit.num_patches} patches of "
        f"{times(vit.image_size)}; {1 + vit.extra_tokens + vit.num_patches} tokens ({' + '.join(tokens)})"
    )


def _image(cfg, tower: ImageTower) -> str:
    convolution, heads = tower.visual.conv1, tower.blocks[0].attn.num_heads
    return (
        f"{cfg.MODEL.CLIP.NAME}: width {tower.width}, {tower.depth} blocks, {heads} heads; patch "
        f"{convolution.kernel_size[0]}, stride {times(convolution.stride)}, grid {times(tower.grid)} = "
        f"{tower.num_patches} patches of {times(tower.image_size)}; projected to {tower.embed_dim}"
    )


def _text(cfg, tower: TextTower) -> str:
    learns = any(parameter.requires_grad for parameter in tower.parameters())
    heads = tower.blocks[0].attn.num_heads
    shape = f"width {tower.width}, {tower.depth} blocks, {heads} heads"
    return f"{cfg.MODEL.CLIP.NAME}: {shape}; up to {tower.length} tokens, {'learns' if learns else 'frozen'}"


def loss_rows(cfg, model: nn.Module) -> Iterator[Row]:
    """Tell the losses of `MODEL.LOSSES.NAME`; of the host's own in its architectures not the keys that we add."""
    ours, added = isinstance(model, HostMethod), {key.path for key in KEYS}
    for name in cfg.MODEL.LOSSES.NAME:
        node, group = cfg.MODEL.LOSSES[LOSSES[name].node], f"MODEL.LOSSES.{LOSSES[name].node}"
        read = {key: node[key] for key in node if ours or name not in HOST_LOSSES or f"{group}.{key}" not in added}
        weight = read.pop("SCALE", 1.0)
        yield name, ", ".join([f"weight {weight:g}", *(f"{key} {value}" for key, value in read.items())])


@torch.no_grad()
def operations(model: nn.Module, image: Tensor) -> dict[str, float]:
    """Return the GFLOPs of one test image (1, 3, H, W), by module and in all."""
    label = torch.zeros(1, dtype=torch.long)
    inputs = {"images": image, "views": label, "platforms": label}
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    nn.ParameterList(learning).requires_grad_(False)  # the counter stumbles over views of those that learn
    with counting() as counter:
        model(inputs)
    nn.ParameterList(learning).requires_grad_(True)
    return gigaflops(counter)
