"""A tiny SVPR-ReID for tests: width 16, 8 patches, three blocks, three attributes of two or three values."""

import torch
from torch import Tensor

from agreid_plugin.data.attributes import AttributeSchema
from agreid_plugin.methods import svpr
from agreid_plugin.nn.clip import CLIP
from agreid_plugin.nn.clip_build import build_clip, freeze
from agreid_plugin.types import PLATFORMS, Batch, View

WIDTH, TEXT_WIDTH, PATCHES = 16, 8, 8
SCHEMA = AttributeSchema({"hair": ("long", "short"), "bag": ("none", "hand", "back"), "hat": ("yes", "no")})
VARIANTS = list(svpr.VARIANTS)
THREE_WORDS = {"cctv": "ground", "wearable": "aerial", "uav": "<end_of_text>"}  # of the released labels 0, 1, 2


def small_clip(text_length: int = 48, layers: int = 3, text_layers: int = 2) -> CLIP:
    """Towers whose text side is frozen; the two projected to width 8."""
    torch.manual_seed(0)
    clip = build_clip(
        image_size=(32, 16),
        patch_size=8,
        width=WIDTH,
        layers=layers,
        heads=2,
        text_width=24,
        text_layers=text_layers,
        text_heads=2,
        embed_dim=TEXT_WIDTH,
        text_length=text_length,
    )
    freeze(clip.text, "all")
    return clip


def small_svpr(variant: str = "paper", schema: AttributeSchema | None = SCHEMA, **arguments) -> svpr.SVPR:
    """Of three identities; every parameter is drawn wide enough to matter."""
    clip = small_clip()
    method = svpr.SVPR(clip.image, clip.text, 3, schema=schema, variant=variant, **arguments)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in method.named_parameters():
            if not name.startswith(("backbone.image.", "backbone.text.tower.")) and parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)
    return method


def without_dropout(method: torch.nn.Module) -> torch.nn.Module:
    for module in method.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return method


def batch() -> Batch:
    """Six images of three identities, aerial and ground, with attributes of which some are unknown."""
    return Batch(
        images=torch.randn(6, 3, 32, 16, generator=torch.Generator().manual_seed(1)),
        pids=torch.tensor([0, 0, 1, 1, 2, 2]),
        views=torch.tensor([View.AERIAL, View.GROUND, View.GROUND] * 2),
        platforms=torch.tensor([PLATFORMS.index(each) for each in ("uav", "cctv", "wearable") * 2]),
        attributes=torch.tensor([[0, 2, 1], [0, 2, 1], [1, -1, 0], [1, -1, 0], [-1, -1, -1], [0, 1, 1]]),
    )


def features(method: svpr.SVPR, data: Batch) -> Tensor:
    """What images are compared by."""
    with torch.no_grad():
        return method.embed(method(data.only(method.inference_inputs)))


def step(method: svpr.SVPR, data: Batch) -> dict[str, Tensor]:
    """Compute the gradients of a batch, and return its terms."""
    terms = method.losses(method(data), data)
    sum(terms.values()).backward()
    return terms
