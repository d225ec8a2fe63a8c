"""Backbones of timm, mmpretrain and open_clip in the host's registry.

Nothing is ever downloaded: a network starts from random weights or from `MODEL.BACKBONE.PRETRAIN_PATH`.

Shapes: B images, N patches, D width.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from fastreid.config import defaults
from fastreid.modeling.backbones import BACKBONE_REGISTRY
from torch import Tensor, nn

from agreid_plugin.engine.configuration import literal
from agreid_plugin.errors import InputError, first_line, unknown
from agreid_plugin.hosts.fastreid.compat.files import misfit_reason
from agreid_plugin.hosts.fastreid.config.loading import Key, declare
from agreid_plugin.nn.checkpoints import read_tensors
from agreid_plugin.nn.vit_weights import MIN_FILLED, Fit

_logger = logging.getLogger("fastreid.backbone")

NODE = "MODEL.BACKBONE.EXTERNAL"
OUTPUTS = ("token", "map")
FETCHING = (
    *("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "init_cfg"),
    *("timm_model_pretrained", "load_weights"),
)
"""Options that would fetch weights from somewhere else than `PRETRAIN_PATH`."""
KEYS = (
    Key(f"{NODE}.NAME", "", "External backbones: the model by the library's own name, as convnext_tiny."),
    Key(f"{NODE}.OPTIONS", [], "External backbones: options of the constructor, each `key=value` or {key: value}."),
    Key(f"{NODE}.OUTPUT", "token", "External backbones: `token`, one vector an image, or `map`, which a head pools."),
)
declare(KEYS)
PREFIXES = ("", "module.", "backbone.", "backbone.core.", "core.", "visual.", "module.visual.", "model.", "base.")
"""Prefixes that wrappers put before the names of a network's tensors."""
COUNTERS = "num_batches_tracked"
"""How names of tensors end that old files do not have and nothing reads."""

Read = Callable[[nn.Module, Tensor], Any]
"""Takes the network and images, returns features: (B, D) or (B, D, rows, cols)."""


class ExternalBackbone(nn.Module):
    """A network of another library as the host's meta-architectures call a backbone."""

    def __init__(self, core: nn.Module, name: str, output: str, read: Read):
        super().__init__()
        self.core, self.name, self.output, self.read = core, name, output, read

    def forward(self, images: Tensor) -> Tensor:
        """Return features for a head: (B, 3, rows, cols) -> (B, D, 1, 1) as `token`, (B, D, rows, cols) as `map`."""
        features = self.read(self.core, images)
        dimensions = features.dim() if isinstance(features, Tensor) else 0
        if self.output == "map" and dimensions == 4:
            return features
        if self.output == "token" and dimensions == 4:
            return features.mean(dim=(2, 3), keepdim=True)
        if self.output == "token" and dimensions == 2:
            return features[..., None, None]
        what = f"features of shape {tuple(features.shape)}" if dimensions else f"a {type(features).__name__}"
        raise InputError(f"{NODE}.OUTPUT is {self.output}, but {self.name} gives {what}: try another OUTPUT or OPTIONS")


@BACKBONE_REGISTRY.register()
def build_timm_backbone(cfg) -> ExternalBackbone:
    """Build a model of timm; its plain ViTs take any stride."""
    timm = import_library("timm", "clip")
    core = _build_timm(cfg, timm)
    if isinstance(core, timm.models.VisionTransformer) and type(core.patch_embed) is timm.layers.PatchEmbed:
        embed, grid = core.patch_embed, count_grid(cfg, core.patch_embed.patch_size)
        core.pos_embed = _fit_positions(core.pos_embed, embed.num_patches, grid)
        embed.proj.stride = tuple(cfg.MODEL.BACKBONE.STRIDE_SIZE)
        embed.grid_size, embed.num_patches = grid, grid[0] * grid[1]
    else:
        refuse_stride(cfg)

    def adapt(state: dict[str, Tensor]) -> dict[str, Tensor]:
        known = getattr(sys.modules[type(core).__module__], "checkpoint_filter_fn", None)
        return known(state, core) if known else state

    return _finish(cfg, core, _read_timm_map if read_output(cfg) == "map" else _call, adapt)


def _build_timm(cfg, timm: ModuleType) -> nn.Module:
    name, pool = cfg.MODEL.BACKBONE.EXTERNAL.NAME, {"global_pool": ""} if read_output(cfg) == "map" else {}
    if not timm.is_model(name):
        raise unknown(f"{NODE}.NAME of timm", name, timm.list_models())
    given = read_options(cfg)
    options = {"num_classes": 0, **pool, **given}
    with library_error_context("timm", name):
        try:
            core = timm.create_model(name, **{"img_size": tuple(cfg.INPUT.SIZE_TRAIN)} | options)
        except TypeError as error:
            if "img_size" in given or "img_size" not in str(error):
                raise
            return timm.create_model(name, **options)  # it takes images of any size
    require_one_size(cfg)
    return core


@BACKBONE_REGISTRY.register()
def build_mmpretrain_backbone(cfg) -> ExternalBackbone:
    """Build a backbone of mmpretrain; those whose patches are an option of theirs take any stride."""
    import_library("mmpretrain.models", "mmengine")
    models, name = importlib.import_module("mmpretrain.registry").MODELS, cfg.MODEL.BACKBONE.EXTERNAL.NAME
    folder = "mmpretrain.models.backbones."
    known = {each: kind for each, kind in models.module_dict.items() if kind.__module__.startswith(folder)}
    if name not in known:
        raise unknown(f"{NODE}.NAME of mmpretrain", name, known)
    options = _collect_options(cfg, inspect.signature(known[name]).parameters)
    with library_error_context("mmpretrain", name), _quiet_mmengine():
        core = models.build({"type": name, **options})
        core.init_weights()
    return _finish(cfg, core, _take_last, dict)


def _collect_options(cfg, taken: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Return the options of a backbone: those of the configuration, and what follows from its other keys."""
    given, stride = read_options(cfg), tuple(cfg.MODEL.BACKBONE.STRIDE_SIZE)
    ours: dict[str, Any] = {"img_size": tuple(cfg.INPUT.SIZE_TRAIN), "pad_small_map": True}
    if "patch_cfg" in taken and "out_type" in taken:  # a ViT
        side = given.get("patch_size", taken["patch_size"].default)
        patch = tuple(side) if isinstance(side, list | tuple) else (side, side)
        count_grid(cfg, patch)
        ours["out_type"] = "featmap" if read_output(cfg) == "map" else "cls_token"
        if stride != patch:
            ours["patch_cfg"] = {"stride": stride, "padding": 0}
    else:
        refuse_stride(cfg)
    return {key: value for key, value in ours.items() if key in taken} | given


@BACKBONE_REGISTRY.register()
def build_open_clip_backbone(cfg) -> ExternalBackbone:
    """Build the image tower of a model of open_clip; its own ViTs take any stride and give maps."""
    core, name, output = _build_open_clip_tower(cfg), cfg.MODEL.BACKBONE.EXTERNAL.NAME, read_output(cfg)
    if type(core).__name__ != "VisionTransformer":
        refuse_stride(cfg)
        if hasattr(getattr(core, "trunk", None), "set_input_size"):  # a ViT of timm
            core.trunk.set_input_size(tuple(cfg.INPUT.SIZE_TRAIN))
        if output == "map":
            raise InputError(f"{NODE}.OUTPUT is map, but {name} of open_clip is no ViT of its own: set OUTPUT token")
        return _finish(cfg, core, _call, dict)
    grid = count_grid(cfg, core.patch_size)
    core.positional_embedding = _fit_positions(core.positional_embedding, core.grid_size[0] * core.grid_size[1], grid)
    core.conv1.stride, core.grid_size = tuple(cfg.MODEL.BACKBONE.STRIDE_SIZE), grid
    if output == "map":
        core.output_tokens, core.proj = True, None  # patches are not projected

    def adapt(state: dict[str, Tensor]) -> dict[str, Tensor]:
        positions = state.get("positional_embedding")
        if positions is None or positions.shape == core.positional_embedding.shape:
            return state
        resample = importlib.import_module("timm.layers").resample_abs_pos_embed
        return state | {"positional_embedding": resample(positions[None], list(grid), num_prefix_tokens=1)[0]}

    return _finish(cfg, core, _read_open_clip_map if output == "map" else _call, adapt)


def _build_open_clip_tower(cfg) -> nn.Module:
    """Build only the image tower: a text tower may want files from a hub."""
    open_clip, options = import_library("open_clip", "clip"), read_options(cfg)
    model = importlib.import_module("open_clip.model")
    name, size = cfg.MODEL.BACKBONE.EXTERNAL.NAME, cfg.INPUT.SIZE_TRAIN
    if name not in open_clip.list_models():
        raise unknown(f"{NODE}.NAME of open_clip", name, open_clip.list_models())
    plan = open_clip.get_model_config(name)
    quick_gelu = options.pop("quick_gelu", plan.get("quick_gelu", False))
    width = options.pop("embed_dim", plan["embed_dim"])
    names = [field.name for field in fields(model.CLIPVisionCfg)]
    for option in options:
        if option not in names:
            raise unknown(f"{NODE}.OPTIONS of open_clip", option, [*names, "embed_dim", "quick_gelu"])
    require_one_size(cfg)
    square = size[0] == size[1]
    vision = {**plan["vision_cfg"], "image_size": size[0] if square else tuple(size), **options}
    if isinstance(vision.get("layers"), list) and not square:
        raise InputError(f"{name} of open_clip takes square images only, INPUT.SIZE_TRAIN is {list(size)}: use a ViT")
    with library_error_context("open_clip", name):
        return model._build_vision_tower(width, {**vision, "timm_model_pretrained": False}, quick_gelu)


def _take_last(core: nn.Module, images: Tensor) -> Any:
    return core(images)[-1]


def _call(core: nn.Module, images: Tensor) -> Tensor:
    return core(images)


def _read_timm_map(core: nn.Module, images: Tensor) -> Tensor:
    features = core(images)
    if features.dim() == 4:
        return features.permute(0, 3, 1, 2) if getattr(core, "output_fmt", "NCHW") == "NHWC" else features
    grid = getattr(getattr(core, "patch_embed", None), "grid_size", None)
    patches = features[:, getattr(core, "num_prefix_tokens", 0) :]  # (B, N, D)
    return patches.mT.unflatten(2, tuple(grid)) if grid and patches.shape[1] == grid[0] * grid[1] else features


def _read_open_clip_map(core: nn.Module, images: Tensor) -> Tensor:
    return core(images)[1].mT.unflatten(2, core.grid_size)  # (B, N, D) -> (B, D, rows, cols)


def _finish(cfg, core: nn.Module, read: Read, adapt: Callable[[dict[str, Tensor]], dict]) -> ExternalBackbone:
    """Load the weights that the configuration names, and wrap the network for the host."""
    backbone, output = cfg.MODEL.BACKBONE, read_output(cfg)
    if output == "map" and cfg.MODEL.HEADS.POOL_LAYER == "Identity":
        raise InputError(f"{NODE}.OUTPUT is map, but MODEL.HEADS.POOL_LAYER Identity pools none: use GlobalAvgPool")
    if backbone.PRETRAIN:
        fit = load_external(core, backbone.PRETRAIN_PATH, adapt)
        _logger.info("pretrained %s: %s", backbone.EXTERNAL.NAME, fit)
    return ExternalBackbone(core, backbone.EXTERNAL.NAME, output, read)


@contextmanager
def _quiet_mmengine() -> Iterator[None]:
    """Keep mmengine from printing three lines for every tensor that it initializes."""
    logger = importlib.import_module("mmengine.logging").MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _fit_positions(old: Tensor | None, patches: int, grid: tuple[int, int]) -> Tensor | None:
    """Return the position embedding for a grid: a new one if the patches are not as many; other tokens keep a row."""
    if old is None or patches == grid[0] * grid[1]:
        return old
    shape = (*old.shape[:-2], old.shape[-2] - patches + grid[0] * grid[1], old.shape[-1])
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=0.02))


def import_library(module: str, extra: str) -> ModuleType:
    """Import a library that a user of the host may do without."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mmcv-lite warns of operators that it lacks
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise InputError(
                f"this backbone needs {module.partition('.')[0]}, which does not import ({first_line(error)}): "
                f'pip install "agreid-plugin[{extra}]"'
            ) from error


@contextmanager
def library_error_context(owner: str, name: str) -> Iterator[None]:
    """Put a library's complaint about the constructor's arguments into one line."""
    try:
        yield
    except InputError:
        raise
    except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        what = first_line(error)
        raise InputError(f"{owner} cannot build {name} with the OPTIONS of {NODE}: {what}") from error


def read_options(cfg) -> dict[str, Any]:
    """Return the options of the constructor; text after `=` is a Python value, or stays text if it is none."""
    options: dict[str, Any] = {}
    for entry in cfg.MODEL.BACKBONE.EXTERNAL.OPTIONS:
        if isinstance(entry, Mapping):
            options |= {str(key): value for key, value in entry.items()}
            continue
        key, equals, text = str(entry).partition("=")
        if not equals or not key.strip().isidentifier():
            raise InputError(f"{NODE}.OPTIONS takes key=value or {{key: value}}, got {entry!r}")
        options[key.strip()] = literal(text.strip())
    for key in FETCHING:
        if key in options:
            raise InputError(f"{NODE}.OPTIONS has {key}: weights come from MODEL.BACKBONE.PRETRAIN_PATH only")
    return options


def read_output(cfg) -> str:
    """Return what a network gives a head: `token` or `map`."""
    if cfg.MODEL.BACKBONE.EXTERNAL.OUTPUT not in OUTPUTS:
        raise unknown(f"{NODE}.OUTPUT", cfg.MODEL.BACKBONE.EXTERNAL.OUTPUT, OUTPUTS)
    return cfg.MODEL.BACKBONE.EXTERNAL.OUTPUT


def count_grid(cfg, patch: tuple[int, int]) -> tuple[int, int]:
    """Count the rows and columns of patches within an image."""
    stride, size = tuple(cfg.MODEL.BACKBONE.STRIDE_SIZE), tuple(cfg.INPUT.SIZE_TRAIN)
    if any(not 1 <= step <= side for step, side in zip(stride, patch, strict=True)):
        raise InputError(
            f"MODEL.BACKBONE.STRIDE_SIZE is {list(stride)}, but {cfg.MODEL.BACKBONE.EXTERNAL.NAME} has patches of "
            f"{patch[0]}x{patch[1]}: a stride is from 1 to their side"
        )
    rows, cols = ((image - side) // step + 1 for image, side, step in zip(size, patch, stride, strict=True))
    return rows, cols


def refuse_stride(cfg) -> None:
    """Refuse a stride that was set for a network without patches that it could move."""
    stride, usual = tuple(cfg.MODEL.BACKBONE.STRIDE_SIZE), tuple(defaults._C.MODEL.BACKBONE.STRIDE_SIZE)
    if stride != usual:
        raise InputError(
            f"MODEL.BACKBONE.STRIDE_SIZE is {list(stride)}, but {cfg.MODEL.BACKBONE.EXTERNAL.NAME} cannot take a "
            f"stride: leave it at {list(usual)}"
        )


def require_one_size(cfg) -> None:
    """Refuse test images of another size than the network is built for."""
    train, test = list(cfg.INPUT.SIZE_TRAIN), list(cfg.INPUT.SIZE_TEST)
    if train != test:
        raise InputError(
            f"{cfg.MODEL.BACKBONE.EXTERNAL.NAME} needs one image size: INPUT.SIZE_TRAIN is {train}, "
            f"INPUT.SIZE_TEST {test}"
        )


def load_external(core: nn.Module, path: str | Path, adapt: Callable[[dict[str, Tensor]], dict]) -> Fit:
    """Load a file into a network of another library and return how it fitted.

    Args:
        core: the network.
        path: a state dict by torch or safetensors, bare or in a checkpoint, or a TorchScript archive as OpenAI's CLIP.
        adapt: turns a file's tensors into those of the network: names and the size of position embeddings.

    Raises:
        InputError: the file is missing, cannot be read, or is for another model.
    """
    wanted = [name for name in core.state_dict() if not name.endswith(COUNTERS)]
    stored = {name: _widen(value) for name, value in read_tensors(path).items()}
    prefix = max(PREFIXES, key=lambda each: sum(each + name in stored for name in wanted))
    own = {name.removeprefix(prefix): value for name, value in stored.items() if name.startswith(prefix)}
    try:
        adapted = adapt(own)
        found = {name: adapted[name] for name in core.state_dict() if name in adapted}
        missing = tuple(name for name in wanted if name not in found)
        if len(missing) > (1 - MIN_FILLED) * len(wanted):
            raise InputError(
                f"{path} fits {len(wanted) - len(missing)} of the model's {len(wanted)} tensors (not "
                f"{', '.join(missing[:3])}, ...): it is for another model"
            )
        core.load_state_dict(found, strict=False)
    except InputError:
        raise
    except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{path} is for another model: {misfit_reason(error)}") from error
    unused = tuple(name for name in adapted if name not in found)
    return Fit(str(path), len(wanted) - len(missing), len(wanted), missing, unused)


def _widen(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() else value  # files of CLIP are half precision
