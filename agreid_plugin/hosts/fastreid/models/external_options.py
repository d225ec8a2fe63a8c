"""What a configuration says of other libraries' networks, and what of it they cannot take."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from fastreid.config import defaults

from agreid_plugin.engine.overrides import literal
from agreid_plugin.errors import InputError, first_line, unknown
from agreid_plugin.hosts.fastreid.config.loading import Key, declare

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


def library(module: str, extra: str) -> ModuleType:
    """Import a library that a user of the host may do without."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mmcv-lite tells of operators that it has not
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise InputError(
                f"this backbone needs {module.partition('.')[0]}, which does not import ({first_line(error)}): "
                f'pip install "agreid-plugin[{extra}]"'
            ) from error


@contextmanager
def said_of_library(owner: str, name: str) -> Iterator[None]:
    """Say in one line what a library's constructor has against its arguments."""
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
            raise InputError(f"{NODE}.OPTIONS has {key}: weights come from MODEL.BACKBONE.PRETRAIN_PATH alone")
    return options


def output_of(cfg) -> str:
    """Return what a network gives a head: `token` or `map`."""
    if cfg.MODEL.BACKBONE.EXTERNAL.OUTPUT not in OUTPUTS:
        raise unknown(f"{NODE}.OUTPUT", cfg.MODEL.BACKBONE.EXTERNAL.OUTPUT, OUTPUTS)
    return cfg.MODEL.BACKBONE.EXTERNAL.OUTPUT


def grid_of(cfg, patch: tuple[int, int]) -> tuple[int, int]:
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
