"""Tiny towers of CLIP for tests, and how what they do not take is refused."""

import pytest
import torch
from torch import nn

from agreid_plugin.errors import InputError
from agreid_plugin.nn.clip import CLIP
from agreid_plugin.nn.clip_build import build_clip

IMAGE_SHAPE = {"width": 16, "layers": 3, "heads": 2, "patch_size": 8}
TEXT_SHAPE = {"text_width": 12, "text_layers": 2, "text_heads": 3}
TINY = IMAGE_SHAPE | TEXT_SHAPE | {"embed_dim": 10}


def clip_of(seed: int = 0, **arguments) -> CLIP:
    """Images of 32x16 in patches of 8, a grid of 4x2, and sentences of 20 tokens. No parameter is zero."""
    torch.manual_seed(seed)
    clip = build_clip(**{"image_size": (32, 16), "text_length": 20, **TINY} | arguments)
    for parameter in (*clip.image.parameters(), *clip.text.parameters()):
        if parameter.dim() == 1:
            nn.init.normal_(parameter, std=0.5)
    return clip


def assert_refused(call, *words: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)
