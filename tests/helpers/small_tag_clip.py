"""A tiny TAG-CLIP for tests: four blocks of width 16, experts in two of them, three identities."""

import copy

import torch
from torch import Tensor

from agreid_plugin.methods.tag_clip import TAGCLIP
from agreid_plugin.nn.clip import CLIP, EOT, SOT
from agreid_plugin.nn.clip_build import build_clip
from agreid_plugin.types import UNKNOWN, Batch, View

SHAPE = {"patch_size": 8, "width": 16, "heads": 2, "layers": 4, "embed_dim": 8}
TEXT = {"text_width": 8, "text_heads": 2, "text_layers": 2, "text_length": 12}
PIDS = torch.tensor([0, 0, 1, 2, 2, 2])
VIEWS = torch.tensor([View.AERIAL, View.GROUND, UNKNOWN, View.AERIAL, View.GROUND, View.GROUND])
NO_DECOUPLING = {"view_loss": False, "ortho_loss": False}
TABLE_4 = {
    "1 ViT": {"block": "vit", **NO_DECOUPLING},
    "2 MoE": {"block": "moe", **NO_DECOUPLING},
    "3 HR-MoE": NO_DECOUPLING,
    "4 with L_view": {"ortho_loss": False},
    "5 with L_ortho": {"view_loss": False},
    "6 all": {},
}
TBPS = {"block": "vit", **NO_DECOUPLING, "tse": False, "id_loss": False}


def small_clip() -> CLIP:
    """Towers of width 16 and 8, both projected to 8, for images of 8 patches and sentences of 10 words."""
    torch.manual_seed(0)
    return build_clip("ViT-B-16", image_size=(32, 16), **SHAPE, **TEXT)


def small(clip: CLIP, **arguments) -> TAGCLIP:
    """Of three identities, with towers of its own and routers that have something to decide by."""
    torch.manual_seed(0)
    defaults = {"at": (1, 2), "tse_width": 10}
    model = TAGCLIP(copy.deepcopy(clip), 3, **defaults | arguments)
    for name, parameter in model.named_parameters():
        if "router" in name or ".experts." in name:
            parameter.data += 0.3 * torch.randn(parameter.shape)
    return model


def sentences(*lengths: int) -> Tensor:
    """Sentences of so many words."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.zeros(len(lengths), 12, dtype=torch.long)
    for row, length in zip(rows, lengths, strict=True):
        words = torch.randint(1, SOT, (length,), generator=generator).tolist()
        row[: length + 2] = torch.tensor([SOT, *words, EOT])
    return rows


def batch(**values) -> Batch:
    images = torch.randn(6, 3, 32, 16, generator=torch.Generator().manual_seed(1))
    tokens = sentences(10, 3, 1, 7, 2, 5)
    return Batch(images=images, pids=PIDS, views=VIEWS, tokens=tokens).with_(**values)
