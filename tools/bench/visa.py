"""ViSA as we run it against its equations as printed: time, peak memory, parameters and operations.

Both have the same weights and inputs, and each measurement a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from agreid_plugin.evaluation.processes import in_process
from agreid_plugin.hosts.fastreid.operations import counting
from agreid_plugin.methods.visa import ViSA, ViSABackbone, build_backbone, literal
from agreid_plugin.nn.vit import build_vit
from agreid_plugin.types import Batch, View
from bench.measuring import Measurement, VariantSetting, measure, table, training_step

IDENTITIES, STRIDE, NEIGHBORS = 2500, 12, 64  # as on CARGO
PUBLISHED = "the paper prints 37.53 GFLOPs and 271.77 M parameters"
ATTENTION = (torch.ops.aten.bmm, torch.ops.aten.baddbmm)  # what neither a linear layer nor a convolution runs


@dataclass(frozen=True)
class Part:
    """One module: its size, and its operations for one image."""

    name: str
    parameters: int
    ours: float  # GFLOPs
    literal: float  # GFLOPs
    layers: tuple[float, float] = (0.0, 0.0)  # GFLOPs of linear layers and convolutions alone, ours and literal


def bench_visa(
    model: str, variant: str = "paper", batch: int = 16, size: tuple[int, int] = (256, 128), repeats: int = 3
) -> Iterator[str]:
    """Measure and yield lines to print, the tables last.

    Args:
        model: size of the ViT by name.
        variant: `paper` or `released`.
        batch: images in a batch, two or more.
        size: rows and columns of an image.
        repeats: how often to run each; the fastest counts.
    """
    setting = VariantSetting(model, batch, size, repeats, torch.get_num_threads(), variant).checked()
    yield f"ViSA {model}, variant {variant}, {setting}"
    found = {}
    for name in TASKS:
        for literally in (False, True):
            entry = in_process(_measure, setting, name, literally)
            found[name, literally] = entry
            yield f"{name}, {'as printed' if literally else 'ours'}: {entry.seconds:.3f} s, {entry.peak:.0f} MB"
    yield _table_of_time(found)
    *parts, heads = in_process(_parts, setting)
    yield _table_of_parts(parts, heads)


def _measure(setting: VariantSetting, name: str, literally: bool) -> Measurement:
    torch.set_num_threads(setting.threads)
    return measure(TASKS[name](setting, literally), setting.repeats)


def _backbone(setting: VariantSetting) -> ViSABackbone:
    """Build the same backbone in every process; nothing in it is random, and its view tokens differ."""
    torch.manual_seed(0)
    vit = build_vit(setting.model, image_size=setting.size, stride=STRIDE, drop_path=0.0, extra_tokens=1)
    backbone = build_backbone(vit, variant=setting.variant, neighbors=min(NEIGHBORS, vit.num_patches))
    nn.init.normal_(backbone.encoder.view_tokens, std=0.02)
    return backbone


def _method(setting: VariantSetting, literally: bool) -> ViSA:
    backbone = _backbone(setting)
    return ViSA(literal.LiteralBackbone(backbone) if literally else backbone, IDENTITIES, setting.variant)


def _batch(setting: VariantSetting) -> Batch:
    numbers = torch.arange(setting.batch)
    images = torch.randn(setting.batch, 3, *setting.size, generator=torch.Generator().manual_seed(1))
    return Batch(images=images, pids=numbers // 4, views=numbers % len(View))


def _forward(setting: VariantSetting, literally: bool) -> Callable[[], Tensor]:
    method, batch = _method(setting, literally).eval(), _batch(setting)
    return torch.no_grad()(lambda: method.embed(method(batch)))


def _training_step(setting: VariantSetting, literally: bool) -> Callable[[], Tensor]:
    return partial(training_step, _method(setting, literally).train(), _batch(setting))


def _graphs(setting: VariantSetting, literally: bool) -> Callable[[], Tensor]:
    return _without_gradient(setting, _graph_layers, literally)


def _experts(setting: VariantSetting, literally: bool) -> Callable[[], Tensor]:
    return _without_gradient(setting, _queries, literally)


def _without_gradient(setting: VariantSetting, stage: Callable, literally: bool) -> Callable[[], Tensor]:
    """Run one stage alone, on random features, patches and queries."""
    backbone = _backbone(setting).eval()
    return torch.no_grad()(partial(stage, backbone, literally, *_features(backbone, setting.batch)))


def _features(backbone: ViSABackbone, batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Draw what the encoder and ETGM would give: identity, view, patches, queries, views."""
    generator = torch.Generator().manual_seed(2)
    identity, view = torch.randn(2, batch, backbone.width, generator=generator)
    patches = torch.randn(batch, backbone.encoder.num_patches, backbone.width, generator=generator)
    queries = torch.randn(batch, backbone.queries.experts.tokens.shape[1], backbone.width, generator=generator)
    return identity, view, patches, queries, torch.arange(batch) % len(View)


def _queries(backbone: ViSABackbone, literally: bool, identity: Tensor, view: Tensor, *others: Tensor) -> Tensor:
    make = partial(literal.generate_queries, backbone.queries) if literally else backbone.queries
    made = make(identity, view, others[-1])
    return torch.cat([made.invariant, made.specific])


def _graph_layers(
    backbone: ViSABackbone, literally: bool, identity: Tensor, view: Tensor, patches: Tensor, queries: Tensor, _: Tensor
) -> Tensor:
    branches = ((backbone.fusion.invariant, identity), (backbone.fusion.specific, view))
    return torch.cat(
        [
            literal.move_queries(branch, queries, feature, patches)
            if literally
            else branch.moved(queries, feature, patches)
            for branch, feature in branches
        ]
    )


def _fusion(backbone: ViSABackbone, literally: bool, queries: Tensor) -> Tensor:
    block, tokens = backbone.fusion.fusion, torch.cat([queries[:, :1], queries, queries], dim=1)
    return literal.post_norm_block(block, tokens) if literally else block(tokens)


def _encoder(backbone: ViSABackbone, literally: bool, images: Tensor, views: Tensor) -> Tensor:
    encode = partial(literal.encode, backbone.encoder) if literally else backbone.encoder
    return encode(images, views).identity


TASKS = {"forward": _forward, "training step": _training_step, "graphs alone": _graphs, "experts alone": _experts}


@torch.no_grad()
def _parts(setting: VariantSetting) -> list[Part]:
    """Count parameters and operations of every module, the latter for one image; the heads come last."""
    torch.set_num_threads(setting.threads)
    method = _method(setting, literally=False).eval()
    backbone, features = method.backbone, _features(method.backbone, batch=1)
    image, queries = torch.zeros(1, 3, *setting.size), features[3]
    graphs = [backbone.fusion.invariant, backbone.fusion.specific]
    heads = [method.head, method.local_head, method.view_head, method.view_predictor]
    token = 0 if backbone.fusion.token is None else backbone.fusion.token.numel()
    return [
        _part("encoder", [backbone.encoder], partial(_encoder, backbone, images=image, views=features[-1])),
        _part("experts and routers", [backbone.queries], lambda literally: _queries(backbone, literally, *features)),
        _part("graphs", graphs, lambda literally: _graph_layers(backbone, literally, *features), has_layers=False),
        _part("fusion", [backbone.fusion.fusion], partial(_fusion, backbone, queries=queries), more=token),
        Part("heads", _size(heads), 0.0, 0.0),
    ]


def _part(
    name: str, modules: list[nn.Module], run: Callable[..., Tensor], has_layers: bool = True, more: int = 0
) -> Part:
    ours, literal_ = (_operations(partial(run, literally=literally)) for literally in (False, True))
    layers = (ours[1], literal_[1]) if has_layers else (0.0, 0.0)
    return Part(name, _size(modules) + more, ours[0], literal_[0], layers)


def _operations(run: Callable[[], Tensor]) -> tuple[float, float]:
    """Return the GFLOPs of a run, and of these the ones outside attention."""
    with counting() as counter:
        run()
    total = counter.get_total_flops()
    attention = sum(counter.get_flop_counts()["Global"].get(operation, 0) for operation in ATTENTION)
    return total / 1e9, (total - attention) / 1e9


def _size(modules: list[nn.Module]) -> int:
    return sum(parameter.numel() for parameter in nn.ModuleList(modules).parameters())  # shared ones once


def _table_of_time(found: dict[tuple[str, bool], Measurement]) -> str:
    rows = []
    for name in TASKS:
        ours, printed = found[name, False], found[name, True]
        times = [f"{ours.seconds:.3f}", f"{printed.seconds:.3f}", f"{printed.seconds / ours.seconds:.1f}x"]
        cpu_times = [f"{ours.cpu:.3f}", f"{printed.cpu:.3f}", f"{printed.cpu / ours.cpu:.1f}x"]
        peaks = [f"{ours.peak:.0f}", f"{printed.peak:.0f}"]
        rows.append([name, *times, *cpu_times, *peaks, f"{ours.difference(printed):.1e}"])
    head = ["", "ours s", "as printed s", "", "ours CPU s", "as printed CPU s", "", "ours MB", "as printed MB"]
    head.append("largest difference")
    return (
        f"{table(rows, head)}\nMB: peak beyond model and inputs; difference: of the outputs, in training of losses "
        "and norms of all gradients"
    )


def _table_of_parts(parts: list[Part], heads: Part) -> str:
    backbone = _sum("backbone", parts)
    listed = [*parts, backbone, heads, _sum("total", [backbone, heads])]
    rows = [
        [part.name, f"{part.parameters:,}", *(f"{x:.3f}" for x in (part.ours, part.literal, *part.layers))]
        for part in listed
    ]
    head = ["", "parameters", "GFLOPs ours", "as printed", "linear + conv ours", "as printed"]
    return (
        f"{table(rows, head)}\nfor one image, 2 FLOPs a multiply-add; linear + conv: without attention and graphs, "
        f"which some counters leave out. Of the backbone of base {PUBLISHED}"
    )


def _sum(name: str, parts: list[Part]) -> Part:
    layers = (sum(part.layers[0] for part in parts), sum(part.layers[1] for part in parts))
    total = [sum(getattr(part, column) for part in parts) for column in ("parameters", "ours", "literal")]
    return Part(name, *total, layers)
