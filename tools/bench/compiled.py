"""Training steps with the network compiled by torch.compile against the same ones without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from agreid_plugin.data.attributes import QUT_GROUPS, AttributeSchema
from agreid_plugin.engine.compilation import resolve_options
from agreid_plugin.methods.svpr import SVPR
from agreid_plugin.methods.vdt import VDT
from agreid_plugin.methods.vif import VIF
from agreid_plugin.methods.visa import ViSA, build_backbone
from agreid_plugin.nn.clip_build import build_clip
from agreid_plugin.nn.view_token_vit import DecoupledEncoder, PlainEncoder
from agreid_plugin.nn.vit import VisionTransformer, build_vit
from agreid_plugin.types import Batch, ReIDMethod, View
from bench.rivals import CLIP_MODELS, Setting, Ways, compare, share, training_step

IDENTITIES, NEIGHBORS, STRIDE = 199, 64, 16
RIVAL = (
    "itself compiled: the network from images to outputs, not the losses; the first call, which compiles, is not timed"
)


def bench_compiled(setting: Setting, rounds: int, backend: str) -> Iterator[str]:
    """Measure and yield lines to print, the table last."""
    tasks = {name: partial(_training_step, make, backend) for name, make in METHODS.items()}
    return compare(tasks, setting, rounds, RIVAL)


def _vit(setting: Setting, extra_tokens: int) -> VisionTransformer:
    return build_vit(setting.model, image_size=setting.size, stride=STRIDE, extra_tokens=extra_tokens)


def _vif(setting: Setting) -> VIF:
    return VIF(PlainEncoder(_vit(setting, 0)), IDENTITIES)


def _vdt(setting: Setting) -> VDT:
    return VDT(DecoupledEncoder(_vit(setting, 1)), IDENTITIES)


def _visa(setting: Setting) -> ViSA:
    vit = _vit(setting, 1)
    return ViSA(build_backbone(vit, neighbors=min(NEIGHBORS, vit.num_patches)), IDENTITIES)


def _svpr(setting: Setting) -> SVPR:
    clip = build_clip("ViT-B-16", image_size=setting.size, text_length=100, **CLIP_MODELS[setting.model])
    return SVPR(clip.image, clip.text, IDENTITIES, schema=AttributeSchema(QUT_GROUPS))


METHODS: dict[str, Callable[[Setting], ReIDMethod]] = {
    "VIF-AGReID": _vif,
    "VDT": _vdt,
    "ViSA": _visa,
    "SVPR-ReID": _svpr,
}


def _training_step(make: Callable[[Setting], ReIDMethod], backend: str, setting: Setting) -> Ways:
    torch.manual_seed(0)
    plain = make(setting).train()
    compiled = share(plain)
    compiled.compile(**resolve_options("--backend", torch.device("cpu"), backend=backend))
    numbers = torch.arange(setting.batch)
    images = torch.randn(setting.batch, 3, *setting.size, generator=torch.Generator().manual_seed(1))
    attributes = torch.zeros(setting.batch, len(QUT_GROUPS), dtype=torch.long)
    batch = Batch(images=images, pids=numbers // 4, views=numbers % len(View), attributes=attributes)
    return {way: partial(training_step, one, batch) for way, one in (("eager", plain), (backend, compiled))}
