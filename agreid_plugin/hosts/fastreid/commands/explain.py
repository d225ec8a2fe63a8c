"""Explanation of a configuration: data, model, losses, optimizer, parameters and operations."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from fastreid.modeling.backbones import BACKBONE_REGISTRY
from fastreid.modeling.heads import REID_HEADS_REGISTRY
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from fastreid.utils.registry import Registry
from torch import Tensor, nn

from agreid_plugin.data.protocols import protocol, select
from agreid_plugin.engine.catalog import get_owner
from agreid_plugin.engine.model_rows import Row, built_in_loss_rows, count_operations, format_size, gigaflops, size_rows
from agreid_plugin.errors import InputError, first_line
from agreid_plugin.hosts.fastreid.config import checks
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data import loaders
from agreid_plugin.hosts.fastreid.data.attributes import NONE, with_attributes
from agreid_plugin.hosts.fastreid.data.datasets import dataset_root, get_dataset_name, get_source
from agreid_plugin.hosts.fastreid.data.text import select_items
from agreid_plugin.hosts.fastreid.data.transforms import build_transforms
from agreid_plugin.hosts.fastreid.engine.evaluator import test_sets
from agreid_plugin.hosts.fastreid.engine.solver import warmup_iterations, warmup_note
from agreid_plugin.hosts.fastreid.models.base import HostMethod, build_model
from agreid_plugin.hosts.fastreid.models.losses import HOST_KEYS, HOST_LOSSES, LOSSES
from agreid_plugin.nn.clip import ImageTower, TextTower
from agreid_plugin.nn.vit import SIZES, VisionTransformer
from agreid_plugin.types import View


def model_rows(cfg, model: nn.Module, classes: int) -> Iterator[Row]:
    """Describe the architecture, the backbone and its towers, and the heads."""
    yield "architecture", _format_name(META_ARCH_REGISTRY, cfg.MODEL.META_ARCHITECTURE)
    backbone = _format_name(BACKBONE_REGISTRY, cfg.MODEL.BACKBONE.NAME)
    towers = {"ViT": (VisionTransformer, _vit), "image tower": (ImageTower, _image), "text tower": (TextTower, _text)}
    found = {
        name: describe(cfg, module)
        for module in model.modules()
        for name, (kind, describe) in towers.items()
        if type(module) is kind
    }
    yield "backbone", backbone if found else f"{backbone}, depth {cfg.MODEL.BACKBONE.DEPTH}"
    yield from found.items()
    known = f"{classes:,} classes" if classes else "a class for each identity of the training sets, which are not there"
    yield "heads", f"{_format_name(REID_HEADS_REGISTRY, cfg.MODEL.HEADS.NAME)}, {known}"


def _format_name(registry: Registry, name: str) -> str:
    return f"{name} ({get_owner(registry.get(name))})"


def _vit(cfg, vit: VisionTransformer) -> str:
    heads, convolution = vit.blocks[0].attn.heads, vit.patch_embed.proj
    size = SIZES[cfg.MODEL.BACKBONE.DEPTH]
    known = (vit.width, vit.depth, heads) == (size.width, size.depth, size.heads)
    name = cfg.MODEL.BACKBONE.DEPTH if known else "of its own size"
    tokens = ["1 class", *([f"{vit.extra_tokens} view"] if vit.extra_tokens else []), f"{vit.num_patches} patches"]
    return (
        f"{name}: width {vit.width}, {vit.depth} blocks, {heads} heads; patch {convolution.kernel_size[0]}, "
        f"stride {format_size(convolution.stride)}, grid {format_size(vit.grid)} = {vit.num_patches} patches of "
        f"{format_size(vit.image_size)}; {1 + vit.extra_tokens + vit.num_patches} tokens ({' + '.join(tokens)})"
    )


def _image(cfg, tower: ImageTower) -> str:
    convolution, heads = tower.visual.conv1, tower.blocks[0].attn.num_heads
    return (
        f"{cfg.MODEL.CLIP.NAME}: width {tower.width}, {tower.depth} blocks, {heads} heads; patch "
        f"{convolution.kernel_size[0]}, stride {format_size(convolution.stride)}, grid {format_size(tower.grid)} = "
        f"{tower.num_patches} patches of {format_size(tower.image_size)}; projected to {tower.embed_dim}"
    )


def _text(cfg, tower: TextTower) -> str:
    learns = any(parameter.requires_grad for parameter in tower.parameters())
    heads = tower.blocks[0].attn.num_heads
    shape = f"width {tower.width}, {tower.depth} blocks, {heads} heads"
    return f"{cfg.MODEL.CLIP.NAME}: {shape}; up to {tower.length} tokens, {'learns' if learns else 'frozen'}"


def loss_rows(cfg, model: nn.Module) -> Iterator[Row]:
    """Describe the losses of `MODEL.LOSSES.NAME`; those of fast-reid in its architectures without keys that we add."""
    ours, added = isinstance(model, HostMethod), {key.path for key in HOST_KEYS}
    for name in cfg.MODEL.LOSSES.NAME:
        node, group = cfg.MODEL.LOSSES[LOSSES[name].node], f"MODEL.LOSSES.{LOSSES[name].node}"
        read = {key: node[key] for key in node if ours or name not in HOST_LOSSES or f"{group}.{key}" not in added}
        weight = read.pop("SCALE" if "SCALE" in read else "WEIGHT", 1.0)
        yield name, ", ".join([f"weight {weight:g}", *(f"{key} {value}" for key, value in read.items())])


@torch.no_grad()
def operations(model: nn.Module, image: Tensor) -> dict[str, float]:
    """Return the GFLOPs of one test image (1, 3, H, W), by module and in all."""
    label = torch.zeros(1, dtype=torch.long)
    inputs = {"images": image, "views": label, "platforms": label}
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    nn.ParameterList(learning).requires_grad_(False)  # the counter stumbles over views of those that learn
    with count_operations() as counter:
        model(inputs)
    nn.ParameterList(learning).requires_grad_(True)
    return gigaflops(counter)


def solver_text(cfg, iterations: int) -> str:
    """Describe how a configuration learns, in one line.

    Args:
        cfg: the configuration.
        iterations: of an epoch; 0 if not known, as without the training set.
    """
    solver = cfg.SOLVER
    extras = {"mixed precision": solver.AMP, "gradients clipped": solver.CLIP_GRADIENTS}
    parts = [
        f"{solver.MAX_EPOCH} epochs{f' of {iterations} iterations' if iterations else ''}",
        f"lr {solver.BASE_LR:g} to {_last_rate(cfg, iterations):g} ({_schedule(cfg)})",
        *(f"{factor:g} times that for {module}" for module, factor in solver.LR_FACTORS),
        _warmup(cfg, iterations),
        f"weight decay {solver.WEIGHT_DECAY:g}, {_other_decays(cfg)}",
        *(name for name, node in extras.items() if node.ENABLED),
    ]
    return ", ".join(parts)


def _schedule(cfg) -> str:
    solver = cfg.SOLVER
    when = f"at {', '.join(map(str, solver.STEPS))}" if solver.SCHED == "MultiStepLR" else f"by {solver.SCHED_STEP}"
    return f"{solver.SCHED} {when}"


def _warmup(cfg, iterations: int) -> str:
    solver, warmup, note = cfg.SOLVER, warmup_iterations(cfg, iterations), warmup_note(cfg, iterations)
    epochs = 0 if note else solver.WARMUP_EPOCHS
    long = f"{epochs} epoch{'s' * (epochs > 1)}" if epochs else f"{warmup} iterations"
    if not epochs and not warmup:
        return "no warm-up"
    return f"warm-up {long} from {solver.BASE_LR * solver.WARMUP_FACTOR:g}{note and f' ({note})'}"


def _other_decays(cfg) -> str:
    solver = cfg.SOLVER
    if not solver.DECAY_VECTORS:
        return "of matrices only"
    return f"of norms {solver.WEIGHT_DECAY_NORM:g}, of biases {solver.WEIGHT_DECAY_BIAS:g}"


def _last_rate(cfg, iterations: int) -> float:
    """Return the learning rate of the last iteration; where their number is not known warm-up takes one epoch."""
    solver, warmup = cfg.SOLVER, warmup_iterations(cfg, iterations)
    if solver.SCHED_STEP == "iteration":
        whole = max(solver.MAX_EPOCH * iterations - max(warmup, solver.DELAY_EPOCHS * iterations), 1)
        return _cosine(cfg, 1 - 1 / whole if iterations else 1.0)
    warm = math.ceil(warmup / iterations) if iterations else solver.WARMUP_EPOCHS or int(warmup > 0)  # epochs
    steps = max(solver.MAX_EPOCH - max(warm, solver.DELAY_EPOCHS + 1), 0)  # of the schedule before the last epoch
    if solver.SCHED == "MultiStepLR":
        return solver.BASE_LR * solver.GAMMA ** sum(step <= steps for step in solver.STEPS)
    return _cosine(cfg, steps / max(solver.MAX_EPOCH - max(warm, solver.DELAY_EPOCHS), 1))


def _cosine(cfg, passed: float) -> float:
    """Return the rate when a share of the cosine has passed."""
    least, share = cfg.SOLVER.ETA_MIN_LR, (1 + math.cos(math.pi * min(passed, 1))) / 2
    return least + share * (cfg.SOLVER.BASE_LR - least)


PLAIN_REPR = re.compile(r"<(?:\w+\.)*(\w+) object at 0x\w+>")


def explain(config: str | Path, overrides: Iterable[str] = ()) -> dict[str, list[Row]]:
    """Describe what a configuration builds.

    Args:
        config: the configuration file.
        overrides: `KEY VALUE ...` on top of it.

    Returns:
        Title -> rows of a name and its description. Datasets and weight files that are not there are named, too.

    Raises:
        InputError: the configuration cannot be read, names something unknown, or its model cannot be built.
    """
    cfg = load_config(config, overrides)
    pretrained = _describe_pretrained(cfg)
    cfg.MODEL.BACKBONE.PRETRAIN, cfg.MODEL.BACKBONE.PRETRAIN_PATH, cfg.MODEL.DEVICE = False, "", "cpu"
    checks.check_config(cfg)
    cfg, attributes = _with_attributes(cfg)
    training, items = _training_sets(cfg)
    learned, refused = _learned_items(cfg, items)
    classes = cfg.MODEL.HEADS.NUM_CLASSES or len({item[1] for item in learned})
    cfg.MODEL.HEADS.NUM_CLASSES = classes or 1
    model, gflops = _build(cfg)
    return {
        "model": [
            *model_rows(cfg, model, classes),
            *attributes,
            ("pretrained", pretrained),
            ("weights", _file(cfg.MODEL.WEIGHTS)),
        ],
        "losses": [*loss_rows(cfg, model), *built_in_loss_rows(model)],
        "training images": _transforms(cfg, is_train=True),
        "test images": _transforms(cfg, is_train=False),
        "training sets": [*training, ("sampler", _sampler(cfg)), *refused],
        "test sets": [*_test_sets(cfg), ("compared by", _comparison(cfg)), ("views", _views(model))],
        "optimizer": [(cfg.SOLVER.OPT, solver_text(cfg, len(learned) // cfg.SOLVER.IMS_PER_BATCH))],
        "parameters, and operations for one test image": size_rows(model, gflops, classes),
    }


def _describe_pretrained(cfg) -> str:
    backbone = cfg.MODEL.BACKBONE
    if not backbone.PRETRAIN:
        return "none"
    return _file(backbone.PRETRAIN_PATH) if backbone.PRETRAIN_PATH else "MODEL.BACKBONE.PRETRAIN_PATH names no file"


def _file(path: str) -> str:
    return f"{path} ({'is there' if os.path.isfile(path) else 'is not there'})" if path else "none"


def _with_attributes(cfg) -> tuple[Any, list[Row]]:
    """Return the configuration with the attributes that its model learns, and a row of them; none if it learns none."""
    try:
        resolved = with_attributes(cfg)
    except InputError as error:
        resolved = cfg.clone()
        resolved.MODEL.SVPR.ATTRIBUTES = NONE
        return resolved, [("attributes", f"not known, described without them: {error}")]
    rows = resolved.MODEL.SVPR.ATTRIBUTES
    if resolved is cfg or not rows:
        return resolved, []
    parts = "none" if rows == NONE else ", ".join(f"{name} ({len(values)} values)" for name, values in rows)
    return resolved, [("attributes", parts)]


def _build(cfg) -> tuple[nn.Module, dict[str, float]]:
    """Build the model and run it once; returns it with its operations."""
    try:
        model = build_model(cfg).eval()
        size = cfg.INPUT.CROP.SIZE if cfg.INPUT.CROP.ENABLED else cfg.INPUT.SIZE_TEST
        return model, operations(model, torch.zeros(1, 3, *size))
    except InputError:
        raise
    except (AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        # The host's builders fail in these ways on a size or an option that they do not know.
        raise InputError(f"the model cannot be built: {type(error).__name__}: {first_line(error)}") from error


def _transforms(cfg, is_train: bool) -> list[Row]:
    found = build_transforms(cfg, is_train).transforms
    return [(str(number), _format_value(transform)) for number, transform in enumerate(found, start=1)]


def _format_value(transform: object) -> str:
    """Return what an object prints, in one line; of one without a description, the class."""
    return PLAIN_REPR.sub(r"\1", " ".join(repr(transform).split()))


def _training_sets(cfg) -> tuple[list[Row], list[tuple]]:
    """Describe the datasets to train on, and return their images; none if one of them is not there."""
    rows, found, whole = [], [], True
    for name in cfg.DATASETS.NAMES:
        try:
            items = loaders.read_training_set(cfg, name).train
        except InputError as error:
            rows.append((name, _missing(cfg, name, error)))
            whole = False
            continue
        rows.append((name, _counts(items)))
        found += items
    return rows, found if whole else []


def _counts(items: Sequence[tuple]) -> str:
    people, cameras = len({item[1] for item in items}), len({item[2] for item in items})
    counts = [sum(loaders.get_view(item) == view for item in items) for view in View]
    views = ", ".join(f"{count:,} {view.word}" for view, count in zip(View, counts, strict=True) if count)
    return f"{len(items):,} images{views and f' ({views})'}, {people:,} identities, {cameras} cameras"


def _learned_items(cfg, items: list[tuple]) -> tuple[list[tuple], list[Row]]:
    """Describe an epoch, and why a training in one process would refuse to start, if it would."""
    if not items:
        return [], []
    try:
        items = select_items(cfg, items)
        checks.check_batches(cfg, len(items), len({item[1] for item in items}), world_size=1)
    except InputError as error:
        return items, [("refused", str(error))]
    return items, []


def _missing(cfg, name: str, error: InputError) -> str:
    synth, folder = cfg.DATASETS.AGSYNTH, Path(dataset_root(cfg)) / get_dataset_name(name)
    if folder.exists():
        return f"not usable: {error}"
    if synth.IDS:
        made = f"{synth.IDS} people, {synth.IMAGES_PER_ID} images each, {format_size(synth.SIZE)}, world {synth.WORLD}"
        return f"{folder} is not there; 'fastreid train' makes it, AG-Synth: {made}"
    return f"not there: {error}"


def _sampler(cfg) -> str:
    name, batch, each = cfg.DATALOADER.SAMPLER_TRAIN, cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_INSTANCE
    if "Identity" not in name:
        return f"{name}, {batch} images a batch"
    return f"{name}, {batch // each} identities x {each} images = {batch // each * each} a batch"


def _test_sets(cfg) -> Iterator[Row]:
    by_source: dict[str, list[str]] = {}
    for name in cfg.DATASETS.TESTS:
        by_source.setdefault(get_dataset_name(name), []).append(name)
    for source, names in by_source.items():
        for wanted in cfg.TEST.PROTOCOLS if get_source(names[0]) else ():
            protocol(source, wanted)  # an unknown one is refused, whether the dataset is there or not
        own = cfg.clone()
        own.DATASETS.TESTS = tuple(names)
        try:
            (test_set,) = test_sets(own)
        except InputError as error:
            yield ", ".join(names), _missing(cfg, names[0], error)
            continue
        for each in test_set.protocols.values():
            sides = select(each, test_set.dataset)
            yield str(each), f"{len(sides.query):,} queries, {len(sides.gallery):,} gallery images"


def _comparison(cfg) -> str:
    test = cfg.TEST
    extras = {"flipped images too": test.FLIP, "query expansion": test.AQE, "re-ranking": test.RERANK}
    return ", ".join([f"{test.METRIC} distance", *(name for name, node in extras.items() if node.ENABLED)])


def _views(model: nn.Module) -> str:
    parts = {"given": "given with every test image", "predicted": "predicted from the image"}
    source = getattr(model, "view_source", "")
    return parts.get(source, source) or "not needed at test time"
