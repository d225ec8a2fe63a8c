"""What a configuration builds, told before anything is trained: nothing is written, nothing is downloaded."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from fastreid.modeling import build_model
from fastreid.modeling.backbones import BACKBONE_REGISTRY
from fastreid.modeling.heads import REID_HEADS_REGISTRY
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from fastreid.utils.registry import Registry
from torch import Tensor, nn

from agreid_plugin.data.protocols import protocol, select
from agreid_plugin.errors import InputError, first_line
from agreid_plugin.hosts.fastreid import checks, data
from agreid_plugin.hosts.fastreid.attributes import NONE
from agreid_plugin.hosts.fastreid.catalog import owner_of
from agreid_plugin.hosts.fastreid.config import load_config
from agreid_plugin.hosts.fastreid.evaluator import test_sets
from agreid_plugin.hosts.fastreid.losses import HOST_LOSSES, KEYS, LOSSES
from agreid_plugin.hosts.fastreid.methods import HostMethod
from agreid_plugin.hosts.fastreid.operations import counting
from agreid_plugin.hosts.fastreid.svpr import with_attributes
from agreid_plugin.hosts.fastreid.transforms import build_transforms
from agreid_plugin.nn.clip import ImageTower, TextTower
from agreid_plugin.nn.vit import SIZES, VisionTransformer
from agreid_plugin.types import View

Row = tuple[str, str]
PLAIN_REPR = re.compile(r"<(?:\w+\.)*(\w+) object at 0x\w+>")
PART_OF_TERM = {
    "view_loss": "view_head",
    "orthogonal_loss": "view_head",
    "predictor_loss": "view_predictor",
    "balance_loss": "backbone.queries.experts",
    "attribute_loss": "backbone.asmoe",
}
"""The module without which a method's own loss is not computed."""


def explain(config: str | Path, overrides: Iterable[str] = ()) -> dict[str, list[Row]]:
    """Tell what a configuration builds.

    Args:
        config: the configuration file.
        overrides: `KEY VALUE ...` on top of it.

    Returns:
        Title -> rows of what is told and how it is. Datasets and weight files that are not there are told, too.

    Raises:
        InputError: the configuration cannot be read, names something unknown, or its model cannot be built.
    """
    cfg = load_config(config, overrides)
    pretrained = _pretrained(cfg)
    cfg.MODEL.BACKBONE.PRETRAIN, cfg.MODEL.DEVICE = False, "cpu"
    checks.check_config(cfg)
    cfg, attributes = _with_attributes(cfg)
    training, items = _training_sets(cfg)
    classes = cfg.MODEL.HEADS.NUM_CLASSES or len({item[1] for item in items})
    cfg.MODEL.HEADS.NUM_CLASSES = classes or 1
    model, operations = _built(cfg)
    return {
        "model": [
            *_parts(cfg, model, classes),
            *attributes,
            ("pretrained", pretrained),
            ("weights", _file(cfg.MODEL.WEIGHTS)),
        ],
        "losses": [*_losses(cfg, model), *_own_terms(model)],
        "training images": _transforms(cfg, is_train=True),
        "test images": _transforms(cfg, is_train=False),
        "training sets": [*training, ("sampler", _sampler(cfg)), *_refused(cfg, items)],
        "test sets": [*_test_sets(cfg), ("compared by", _comparison(cfg)), ("views", _views(model))],
        "optimizer": [(cfg.SOLVER.OPT, _schedule(cfg, len(items) // cfg.SOLVER.IMS_PER_BATCH))],
        "parameters, and operations for one test image": _sizes(model, operations, classes),
    }


def _pretrained(cfg) -> str:
    backbone = cfg.MODEL.BACKBONE
    if not backbone.PRETRAIN:
        return "none"
    return _file(backbone.PRETRAIN_PATH) if backbone.PRETRAIN_PATH else "MODEL.BACKBONE.PRETRAIN_PATH names no file"


def _file(path: str) -> str:
    return f"{path} ({'is there' if Path(path).is_file() else 'is not there'})" if path else "none"


def _with_attributes(cfg) -> tuple[Any, list[Row]]:
    """Return the configuration with the attributes that its model learns, and tell them; nothing if it learns none."""
    try:
        resolved = with_attributes(cfg)
    except InputError as error:
        resolved = cfg.clone()
        resolved.MODEL.SVPR.ATTRIBUTES = NONE
        return resolved, [("attributes", f"not known, told without them: {error}")]
    rows = resolved.MODEL.SVPR.ATTRIBUTES
    if resolved is cfg or not rows:
        return resolved, []
    told = "none" if rows == NONE else ", ".join(f"{name} ({len(values)} values)" for name, values in rows)
    return resolved, [("attributes", told)]


def _built(cfg) -> tuple[nn.Module, dict[str, float]]:
    """Build the model and run it once; returns it with its operations."""
    try:
        cfg = checks.with_feature_width(cfg)
        model = build_model(cfg).eval()
        checks.check_feature_width(cfg, model)
        size = cfg.INPUT.CROP.SIZE if cfg.INPUT.CROP.ENABLED else cfg.INPUT.SIZE_TEST
        return model, _operations(model, torch.zeros(1, 3, *size))
    except InputError:
        raise
    except (AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        # The host's own builders fail in these ways on a size or an option that they do not know.
        raise InputError(f"the model cannot be built: {type(error).__name__}: {first_line(error)}") from error


def _parts(cfg, model: nn.Module, classes: int) -> Iterator[Row]:
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
    heads, (rows, columns), convolution = vit.blocks[0].attn.heads, vit.grid, vit.patch_embed.proj
    size = SIZES[cfg.MODEL.BACKBONE.DEPTH]
    known = (vit.width, vit.depth, heads) == (size.width, size.depth, size.heads)
    name = cfg.MODEL.BACKBONE.DEPTH if known else "of its own size"
    tokens = ["1 class", *([f"{vit.extra_tokens} view"] if vit.extra_tokens else []), f"{vit.num_patches} patches"]
    return (
        f"{name}: width {vit.width}, {vit.depth} blocks, {heads} heads; patch {convolution.kernel_size[0]}, "
        f"stride {_times(convolution.stride)}, grid {rows}x{columns} = {vit.num_patches} patches of "
        f"{_times(vit.image_size)}; {1 + vit.extra_tokens + vit.num_patches} tokens ({' + '.join(tokens)})"
    )


def _image(cfg, tower: ImageTower) -> str:
    convolution, heads = tower.visual.conv1, tower.blocks[0].attn.num_heads
    return (
        f"{cfg.MODEL.CLIP.NAME}: width {tower.width}, {tower.depth} blocks, {heads} heads; patch "
        f"{convolution.kernel_size[0]}, stride {_times(convolution.stride)}, grid {_times(tower.grid)} = "
        f"{tower.num_patches} patches of {_times(tower.image_size)}; projected to {tower.embed_dim}"
    )


def _text(cfg, tower: TextTower) -> str:
    frozen = "learns" if any(parameter.requires_grad for parameter in tower.parameters()) else "frozen"
    heads = tower.blocks[0].attn.num_heads
    return (
        f"{cfg.MODEL.CLIP.NAME}: width {tower.width}, {tower.depth} blocks, {heads} heads; up to {tower.length} tokens, "
        f"{frozen}"
    )


def _times(pair: Iterable[int]) -> str:
    return "x".join(map(str, pair))


def _losses(cfg, model: nn.Module) -> Iterator[Row]:
    """Tell the losses of `MODEL.LOSSES.NAME`; of the host's own in its architectures not the keys that we add."""
    ours, added = isinstance(model, HostMethod), {key.path for key in KEYS}
    for name in cfg.MODEL.LOSSES.NAME:
        node, group = cfg.MODEL.LOSSES[LOSSES[name].node], f"MODEL.LOSSES.{LOSSES[name].node}"
        read = {key: node[key] for key in node if ours or name not in HOST_LOSSES or f"{group}.{key}" not in added}
        weight = read.pop("SCALE", 1.0)
        yield name, ", ".join([f"weight {weight:g}", *(f"{key} {value}" for key, value in read.items())])


def _own_terms(model: nn.Module) -> Iterator[Row]:
    """Tell the losses that a method brings along, which its keys weigh."""
    for name, module in model.named_children():
        weight = getattr(module, "weight", None)
        if name.endswith("_loss") and isinstance(weight, int | float) and _has(model, PART_OF_TERM.get(name, name)):
            yield name, f"weight {weight:g}, of {type(model).__name__} itself"


def _has(model: nn.Module, path: str) -> bool:
    try:
        return attrgetter(path)(model) is not None
    except AttributeError:
        return False


def _transforms(cfg, is_train: bool) -> list[Row]:
    found = build_transforms(cfg, is_train).transforms
    return [(str(number), _shown(transform)) for number, transform in enumerate(found, start=1)]


def _shown(transform: object) -> str:
    """Return what an object prints, in one line; of one that does not say what it is, the class."""
    return PLAIN_REPR.sub(r"\1", " ".join(repr(transform).split()))


def _training_sets(cfg) -> tuple[list[Row], list[tuple]]:
    """Tell the datasets to train on, and return their images; none if one of them is not there."""
    rows, found, read = [], [], []
    for name in cfg.DATASETS.NAMES:
        options = {"combineall": cfg.DATASETS.COMBINEALL, **data.options_of(cfg, name)}
        try:
            items = data.load_dataset(name, data.dataset_root(cfg), ["train"], **options).train
        except InputError as error:
            rows.append((name, _missing(cfg, name, error)))
            continue
        people, cameras = len({item[1] for item in items}), len({item[2] for item in items})
        counts = [sum(data.view_of(item) == view for item in items) for view in View]
        views = ", ".join(f"{count:,} {view.name.lower()}" for view, count in zip(View, counts, strict=True) if count)
        rows.append((name, f"{len(items):,} images{views and f' ({views})'}, {people:,} identities, {cameras} cameras"))
        found += items
        read.append(name)
    return rows, found if len(read) == len(rows) else []


def _missing(cfg, name: str, error: InputError) -> str:
    synth, folder = cfg.DATASETS.AGSYNTH, Path(data.dataset_root(cfg)) / (data.source_of(name) or name)
    if folder.exists():
        return f"not usable: {error}"
    if synth.IDS:
        made = f"{synth.IDS} people, {synth.IMAGES_PER_ID} images each, {_times(synth.SIZE)}"
        return f"{folder} is not there; 'fastreid train' makes it, AG-Synth: {made}"
    return f"not there: {error}"


def _sampler(cfg) -> str:
    name, batch, each = cfg.DATALOADER.SAMPLER_TRAIN, cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_INSTANCE
    if "Identity" not in name:
        return f"{name}, {batch} images a batch"
    return f"{name}, {batch // each} identities x {each} images = {batch // each * each} a batch"


def _refused(cfg, items: list[tuple]) -> Iterator[Row]:
    """Tell why a training in one process would refuse to start, if it would."""
    if not items:
        return
    try:
        checks.check_batches(cfg, data.ReIDDataset(items, build_transforms(cfg, is_train=True), relabel=True), 1)
    except InputError as error:
        yield "refused", str(error)


def _test_sets(cfg) -> Iterator[Row]:
    by_source: dict[str, list[str]] = {}
    for name in cfg.DATASETS.TESTS:
        by_source.setdefault(data.source_of(name) or name, []).append(name)
    for source, names in by_source.items():
        for wanted in cfg.TEST.PROTOCOLS if data.source_of(names[0]) else ():
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
    told = {"given": "given with every test image", "predicted": "predicted from the image"}
    source = getattr(model, "view_source", "")
    return told.get(source, source) or "not needed at test time"


def _schedule(cfg, iterations: int) -> str:
    solver, warmup = cfg.SOLVER, checks.warmup_iterations(cfg, iterations)
    steps = f" at {', '.join(map(str, solver.STEPS))}" if solver.SCHED == "MultiStepLR" else ""
    epochs = solver.WARMUP_EPOCHS
    long = f"{epochs} epoch{'s' * (epochs > 1)}" if epochs else f"{warmup} iterations"
    extras = {"mixed precision": solver.AMP, "gradients clipped": solver.CLIP_GRADIENTS}
    told = [
        f"{solver.MAX_EPOCH} epochs{f' of {iterations} iterations' if iterations else ''}",
        f"lr {solver.BASE_LR:g} to {_last_rate(cfg, iterations):g} ({solver.SCHED}{steps})",
        f"warm-up {long} from {solver.BASE_LR * solver.WARMUP_FACTOR:g}" if warmup else "no warm-up",
        f"weight decay {solver.WEIGHT_DECAY:g}, of norms {solver.WEIGHT_DECAY_NORM:g}",
        f"of biases {solver.WEIGHT_DECAY_BIAS:g}",
        *(name for name, node in extras.items() if node.ENABLED),
    ]
    return ", ".join(told)


def _last_rate(cfg, iterations: int) -> float:
    """Return the learning rate of the last epoch; without a known number of iterations warm-up takes one epoch."""
    solver, warmup = cfg.SOLVER, checks.warmup_iterations(cfg, iterations)
    warm = solver.WARMUP_EPOCHS or math.ceil(warmup / (iterations or warmup or 1))  # epochs
    steps = solver.MAX_EPOCH - max(warm, solver.DELAY_EPOCHS + 1)  # that the schedule takes before the last epoch
    if solver.SCHED == "MultiStepLR":
        return solver.BASE_LR * solver.GAMMA ** sum(step <= steps for step in solver.STEPS)
    whole = max(solver.MAX_EPOCH - max(warm, solver.DELAY_EPOCHS), 1)
    share = (1 + math.cos(math.pi * min(steps / whole, 1))) / 2
    return solver.ETA_MIN_LR + share * (solver.BASE_LR - solver.ETA_MIN_LR)


def _sizes(model: nn.Module, operations: dict[str, float], classes: int) -> list[Row]:
    parameters = {name: _count(module.parameters()) for name, module in model.named_children()}
    parameters["total"] = _count(model.parameters())
    learning = _count(parameter for parameter in model.parameters() if parameter.requires_grad)
    rows = [(name, f"{size:>13,}  {operations.get(name, 0):9.3f} GFLOPs") for name, size in parameters.items() if size]
    alone = "" if classes else "; counted with one class"
    return [*rows, ("trainable", f"{learning:>13,}  GFLOPs: 2 operations a multiply-add{alone}")]


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


@torch.no_grad()
def _operations(model: nn.Module, image: Tensor) -> dict[str, float]:
    """Return the GFLOPs of one test image (1, 3, H, W), by module and in all."""
    inputs = {"images": image, "views": torch.zeros(1, dtype=torch.long)}
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    nn.ParameterList(learning).requires_grad_(False)  # the counter stumbles over views of those that learn
    with counting() as counter:
        model(inputs)
    nn.ParameterList(learning).requires_grad_(True)
    counts = {name.partition(".")[2]: sum(found.values()) / 1e9 for name, found in counter.get_flop_counts().items()}
    return counts | {"total": counter.get_total_flops() / 1e9}
