"""ViSA against its equations as printed, with the same weights and inputs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from agreid_plugin.methods.visa import ViSA, ViSABackbone, build_backbone, reference
from agreid_plugin.nn.vit import build_vit
from agreid_plugin.types import Batch, View
from bench.rivals import TRAINING, Setting, Ways, compare, share, training_step

IDENTITIES, STRIDE, NEIGHBORS = 2500, 12, 64  # as on CARGO
RIVAL = "our plain form of the equations (methods/visa/reference.py), not the authors' code"
PLAIN = "as printed"


def bench_visa(setting: Setting, rounds: int) -> Iterator[str]:
    """Measure and yield lines to print, the table last."""
    return compare(TASKS, setting, rounds, RIVAL, images=setting.batch)


def _method(setting: Setting) -> ViSA:
    """Build the same method in every process, its view tokens different."""
    torch.manual_seed(0)
    vit = build_vit(setting.model, image_size=setting.size, stride=STRIDE, drop_path=0.0, extra_tokens=1)
    backbone = build_backbone(vit, variant="paper", neighbors=min(NEIGHBORS, vit.num_patches))
    nn.init.normal_(backbone.encoder.view_tokens, std=0.02)
    return ViSA(backbone, IDENTITIES, variant="paper")


def _methods(setting: Setting) -> dict[str, ViSA]:
    ours = _method(setting)
    plain = share(ours)
    plain.backbone = reference.ReferenceBackbone(plain.backbone)
    return {"ours": ours, PLAIN: plain}


def _batch(setting: Setting) -> Batch:
    numbers = torch.arange(setting.batch)
    images = torch.randn(setting.batch, 3, *setting.size, generator=torch.Generator().manual_seed(1))
    return Batch(images=images, pids=numbers // 4, views=numbers % len(View))


def _forward(setting: Setting) -> Ways:
    batch = _batch(setting)

    @torch.no_grad()
    def embed(method: ViSA) -> Tensor:
        return method.embed(method(batch))

    return {way: partial(embed, method.eval()) for way, method in _methods(setting).items()}


def _training_step(setting: Setting) -> Ways:
    batch = _batch(setting)
    return {way: partial(training_step, method.train(), batch) for way, method in _methods(setting).items()}


def _features(setting: Setting) -> tuple[ViSABackbone, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Build a backbone and draw what encoder and ETGM would give: identity, view, patches, queries, views."""
    backbone, batch = _method(setting).backbone.requires_grad_(False).eval(), setting.batch
    generator = torch.Generator().manual_seed(2)
    identity, view = torch.randn(2, batch, backbone.width, generator=generator)
    patches = torch.randn(batch, backbone.encoder.num_patches, backbone.width, generator=generator)
    queries = torch.randn(batch, backbone.queries.experts.tokens.shape[1], backbone.width, generator=generator)
    return backbone, identity, view, patches, queries, torch.arange(batch) % len(View)


def _graphs(setting: Setting) -> Ways:
    backbone, identity, view, patches, queries, _ = _features(setting)
    branches = ((backbone.fusion.invariant, identity), (backbone.fusion.specific, view))
    return {
        "ours": lambda: torch.cat([branch.move(queries, anchor, patches) for branch, anchor in branches]),
        PLAIN: lambda: torch.cat([reference.move_queries(one, queries, anchor, patches) for one, anchor in branches]),
    }


def _experts(setting: Setting) -> Ways:
    backbone, identity, view, _, _, views = _features(setting)
    ways = {"ours": backbone.queries, PLAIN: partial(reference.generate_queries, backbone.queries)}

    def run(way: str) -> Tensor:
        made = ways[way](identity, view, views)
        return torch.cat([made.invariant, made.specific])

    return {way: partial(run, way) for way in ways}


TASKS = {"forward": _forward, TRAINING: _training_step, "graphs": _graphs, "experts": _experts}
