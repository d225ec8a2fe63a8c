"""Pipelines of transforms by name and in any order, those of the host included.

The host has a fixed list in a fixed order. `INPUT.PIPELINE` names transforms instead, each by its name or as
`{NAME: {option: value}}`; `host` stands for what the host's own keys switch on, in the host's order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fastreid.data.transforms import build_transforms as build_host_transforms
from PIL import Image
from torchvision import transforms
from torchvision.transforms import Compose, InterpolationMode

from agreid_plugin.data.transforms import PLRM, PatchShuffle, RandomRotation
from agreid_plugin.data.transforms.pool import AugmentationPool
from agreid_plugin.errors import InputError, first_line, unknown

Transform = Callable[[Any], Any]
HOST = "host"

TRANSFORMS: dict[str, Callable[..., list[Transform]]] = {}
"""Name -> builder from the configuration and the entry's options."""

HOST_SWITCHES = {
    "AutoAugment": "AUTOAUG",
    "RandomResizedCrop": "CROP",
    "PadCrop": "PADDING",
    "HorizontalFlip": "FLIP",
    "ColorJitter": "CJ",
    "Affine": "AFFINE",
    "AugMix": "AUGMIX",
    "RandomErasing": "REA",
    "RandomPatch": "RPT",
}
"""The host's transforms by our names, with the node of `INPUT` that holds their settings."""


@dataclass(frozen=True)
class RegisteredTransform:
    """A registered transform, which depends only on its options."""

    make: Callable[..., Transform]

    def __call__(self, cfg, **options: Any) -> list[Transform]:  # noqa: ARG002 - the host's need it
        """Build it with the options of its entry."""
        return [self.make(**options)]


def register(name: str) -> Callable[[Callable[..., Transform]], Callable[..., Transform]]:
    """Add a transform under `name`: a class or function called with the options of its entry."""

    def add(make: Callable[..., Transform]) -> Callable[..., Transform]:
        TRANSFORMS[name] = RegisteredTransform(make)
        return make

    return add


def build_transforms(cfg, is_train: bool) -> Compose:
    """Build the transforms of a training or test image."""
    if not is_train or not cfg.INPUT.PIPELINE:
        return build_host_transforms(cfg, is_train)
    pipeline = [transform for entry in cfg.INPUT.PIPELINE for transform in _build(cfg, entry)]
    _try_pipeline(pipeline)
    return Compose(pipeline)


def _try_pipeline(pipeline: list[Transform]) -> None:
    """Run the transforms once: some take images, some tensors, and the order must suit them."""
    value: Any = Image.new("RGB", (64, 128))
    for transform in pipeline:
        before = type(value).__name__
        try:
            value = transform(value)
        except Exception as error:
            name = type(transform).__name__
            raise InputError(f"INPUT.PIPELINE: {name} cannot take a {before} ({first_line(error)})") from error
    if not torch.is_tensor(value):
        raise InputError("INPUT.PIPELINE never makes a tensor: add ToTensor")


def check_pipeline(entries: Sequence[Any]) -> None:
    """Refuse unknown names before anything is built."""
    for name in list_names(entries):
        if name not in TRANSFORMS:
            raise unknown("INPUT.PIPELINE", name, TRANSFORMS)


def list_names(entries: Sequence[Any]) -> list[str]:
    """Return the names of the transforms of `INPUT.PIPELINE`."""
    return [_parse(entry)[0] for entry in entries]


def _parse(entry: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, dict) and len(entry) == 1:
        name, options = next(iter(entry.items()))
        if isinstance(options, dict | None):
            return str(name), options or {}
    raise InputError(f"INPUT.PIPELINE takes names or {{NAME: {{option: value}}}}, got {entry!r}")


def _build(cfg, entry: Any) -> list[Transform]:
    name, options = _parse(entry)
    check_pipeline([entry])
    try:
        return TRANSFORMS[name](cfg, **options)
    except TypeError as error:
        raise InputError(f"INPUT.PIPELINE {name}: {error}") from None


def _switch_on(cfg, *switches: str):
    """Return the configuration with only these of the host's transforms switched on."""
    cfg = cfg.clone()
    cfg.defrost()
    for switch in HOST_SWITCHES.values():
        cfg.INPUT[switch].ENABLED = switch in switches
    return cfg


def _host_transform(switch: str) -> Callable[..., list[Transform]]:
    def build(cfg) -> list[Transform]:
        base = build_host_transforms(_switch_on(cfg), is_train=True).transforms
        with_it = build_host_transforms(_switch_on(cfg, switch), is_train=True).transforms
        kinds = [type(transform) for transform in base]
        return [transform for transform in with_it if type(transform) not in kinds]

    return build


def _always_on(kind: str) -> Callable[..., list[Transform]]:
    def build(cfg) -> list[Transform]:
        transforms = build_host_transforms(_switch_on(cfg), is_train=True).transforms
        return [transform for transform in transforms if type(transform).__name__ == kind]

    return build


TRANSFORMS[HOST] = lambda cfg: build_host_transforms(cfg, is_train=True).transforms
TRANSFORMS.update({name: _host_transform(switch) for name, switch in HOST_SWITCHES.items()})
TRANSFORMS.update({kind: _always_on(kind) for kind in ("Resize", "ToTensor")})
TRANSFORMS["BilinearResize"] = lambda cfg: [
    transforms.Resize(list(cfg.INPUT.SIZE_TRAIN), InterpolationMode.BILINEAR)  # the host's is bicubic
]
for _kind in (PLRM, RandomRotation, PatchShuffle, AugmentationPool):
    register(_kind.__name__)(_kind)
