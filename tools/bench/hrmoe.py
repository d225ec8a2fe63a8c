"""HR-MoE with experts computed for the images of their views only, against every expert on every token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from agreid_plugin.methods.tag_clip import TAGCLIP, HRMoEBlock
from agreid_plugin.nn.clip import EOT, SOT
from agreid_plugin.nn.clip_build import build_clip
from agreid_plugin.nn.experts import make_traceable
from agreid_plugin.types import Batch, View
from bench.rivals import CLIP_MODELS, DRAWS, TRAINING, Setting, Ways, compare, share, training_step

IDENTITIES, TEXT_LENGTH = 4840, 77  # as on TAG-PEDES
WORDS = 40  # of a caption, in tokens
BLOCKS = {"tiny": (0, 1)}  # that have experts; of the others 6 to 8
SPREAD = 0.02  # of the experts, which start as copies: if equal, any routing would give the same
RIVAL = "our own model with every expert on every token, as the released code does it"


def bench_hrmoe(setting: Setting, rounds: int) -> Iterator[str]:
    """Measure and yield lines to print, the table last."""
    return compare(TASKS, setting, rounds, RIVAL, images=setting.batch)


def _methods(setting: Setting) -> dict[str, TAGCLIP]:
    """Build the same method in every process, its experts different from each other."""
    torch.manual_seed(0)
    clip = build_clip("ViT-B-16", image_size=setting.size, text_length=TEXT_LENGTH, **CLIP_MODELS[setting.model])
    at = BLOCKS.get(setting.model, (6, 7, 8))
    ours = TAGCLIP(clip, IDENTITIES, at=at, text_dropout=0.0)
    for number in at:
        for parameter in ours.image.tower.blocks[number].experts.parameters():
            parameter.data += SPREAD * torch.randn_like(parameter)
    dense = share(ours)
    make_traceable(dense)
    return {"ours": ours, "all experts": dense}


def _batch(setting: Setting) -> Batch:
    generator, numbers = torch.Generator().manual_seed(1), torch.arange(setting.batch)
    images = torch.randn(setting.batch, 3, *setting.size, generator=generator)
    tokens = torch.zeros(setting.batch, TEXT_LENGTH, dtype=torch.long)
    tokens[:, 1 : 1 + WORDS] = torch.randint(1, SOT, (setting.batch, WORDS), generator=generator)
    tokens[:, 0], tokens[:, 1 + WORDS] = SOT, EOT
    return Batch(images=images, tokens=tokens, pids=numbers // 4, views=numbers % len(View))


def _experts(setting: Setting) -> Ways:
    """Run the experts of one block, on tokens that are routed half and half."""
    ways: Ways = {}
    for way, method in _methods(setting).items():
        block = next(each for each in method.requires_grad_(False).modules() if isinstance(each, HRMoEBlock))
        shape = (setting.batch, method.image.tower.num_patches + 2, block.width)  # with class and view token
        hidden = torch.randn(shape, generator=torch.Generator().manual_seed(2))
        torch.manual_seed(DRAWS)  # of the router's noise
        ways[way] = partial(block.mix, hidden, block.route(hidden))
    return ways


def _image_tower(setting: Setting) -> Ways:
    """Encode images as in training, where views are drawn: all might have the same from an untrained router."""
    images = _batch(setting).images

    def encode(method: TAGCLIP) -> Tensor:
        torch.manual_seed(DRAWS)
        return method.image(images).tokens

    return {way: partial(encode, method.requires_grad_(False)) for way, method in _methods(setting).items()}


def _training_step(setting: Setting) -> Ways:
    batch = _batch(setting)
    return {way: partial(training_step, method, batch) for way, method in _methods(setting).items()}


TASKS = {"experts": _experts, "image tower": _image_tower, TRAINING: _training_step}
