"""Conversion of released checkpoints into files that a configuration of ours loads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from fastreid.modeling import build_model
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from torch import Tensor

from agreid_plugin.data.atomic_write import atomic_write
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.hosts.fastreid.config import checks
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.models.released import ReleasedModelSpec
from agreid_plugin.inference.weights import PREDICTOR, read_state
from agreid_plugin.methods.svpr.convert import convert_svpr
from agreid_plugin.methods.tag_clip.convert import convert_tag_clip
from agreid_plugin.methods.visa.convert import convert_vdt, convert_visa
from agreid_plugin.nn.key_mapping import Converted, State

CONVERTERS: dict[str, Callable[[State], Converted]] = {
    "vdt": convert_vdt,
    "visa": convert_visa,
    "svpr": convert_svpr,
    "tag-clip": convert_tag_clip,
}
"""Method -> converter of its released checkpoints."""
SUFFIXES = (".pth", ".pt")
CLASSIFIER = re.compile(r"(\w*head\.classifier\.weight|classifier\.(weight|bias))")
"""Names of classifiers: `head`, `local_head` and `view_head` have one, and TAG-CLIP itself."""
COUNTED = ("head.classifier.weight", "classifier.weight")
"""Those that have a row for each identity."""

PIXELS = ("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD")
"""What features of every model depend on and no file of weights has."""
SIZE = "MODEL.BACKBONE.DEPTH, or the keys of MODEL.VIT and MODEL.CLIP"


@dataclass(frozen=True)
class Fit:
    """A released state dict as the configured model takes it."""

    state: dict[str, Tensor]
    initial: dict[str, Tensor]  # of the model, and not in the file


def convert(method: str, released: str | Path, config: str | Path, out: str | Path) -> list[str]:
    """Write a released checkpoint as one that `fastreid eval --weights` takes with the configuration.

    Args:
        method: one of `CONVERTERS`.
        released: the file that the released code wrote.
        config: a configuration of the same model.
        out: the file to write; it must not exist.

    Returns:
        Lines about what was converted, dropped and left at its initial value.

    Raises:
        InputError: a file is missing, damaged or of another model, or `out` cannot be written.
    """
    released, out = Path(released), Path(out)
    _check_out(out)
    architecture, model = _find_released(method)
    cfg = _load_config(config, method, {"MODEL.META_ARCHITECTURE": architecture, **model.settings})
    source = read_state(released)
    try:
        converted = CONVERTERS[method](source)
    except InputError as error:
        raise InputError(f"{released}: {error}") from None
    if converted.attributes and not cfg.MODEL.SVPR.ATTRIBUTES:
        cfg.MODEL.SVPR.ATTRIBUTES = [
            [name, [str(label) for label in range(count)]] for name, count in converted.attributes.items()
        ]
    try:
        fit = _fit(converted.state, _read_shapes(cfg, converted.state), model.shapes)
    except InputError as error:
        raise InputError(f"{released} and {config}: {error}") from None
    unstored = [f"{key} {attrgetter(key)(cfg)}" for key in (*model.unstored, *PIXELS)]
    _write(out, {"model": fit.state, "source": {"file": released.name, "method": method}})
    return [
        f"{out}: {_format_count(fit.state)}, made of {len(source) - len(converted.dropped)} of the {len(source)} "
        f"tensors in {released.name}",
        *_describe_attributes(converted),
        *_describe_unused(converted, source),
        *_describe_initial(fit.initial),
        f"not in the file, so as {config} has it: {', '.join(unstored)}",
    ]


def _check_out(out: Path) -> None:
    if out.suffix not in SUFFIXES:
        raise InputError(f"--out {out} should end in {' or '.join(SUFFIXES)}")
    if out.exists():
        raise InputError(f"--out {out} exists already; choose another name")
    if not out.absolute().parent.is_dir():
        raise InputError(f"--out {out}: its folder does not exist")


def _find_released(method: str) -> tuple[str, ReleasedModelSpec]:
    """Return the name of a method's meta-architecture, and its description of the released model."""
    for name, architecture in META_ARCH_REGISTRY._obj_map.items():
        released = getattr(architecture, "released", None)
        if released is not None and released.name == method:
            return name, released
    raise unknown("method", method, CONVERTERS)


def _load_config(config: str | Path, method: str, settings: Mapping[str, Any]):
    """Read the configuration, and refuse one that is not of the released model."""
    cfg = load_config(config)
    for key, value in settings.items():
        found = attrgetter(key)(cfg)
        if found != value:
            raise InputError(f"{config}: {key} is {found}, which is not the released {method}: set {key} {value}")
    cfg.MODEL.BACKBONE.PRETRAIN = False
    checks.check_config(cfg)
    return cfg


def _read_shapes(cfg, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of the configured model for as many identities, on the meta device: nothing is computed."""
    stored = [len(state[name]) for name in COUNTED if name in state and state[name].dim()]
    cfg.MODEL.HEADS.NUM_CLASSES = (stored or [cfg.MODEL.HEADS.NUM_CLASSES or 1])[0]
    cfg.MODEL.DEVICE = "meta"
    with torch.device("meta"):
        return build_model(cfg).state_dict()


def _fit(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], shapes: Mapping[str, str]) -> Fit:
    """Fit converted tensors into the model's, all but the optional ones."""
    without_place = [name for name in state if name not in wanted]
    if without_place:
        raise InputError(
            f"{len(without_place)} tensors have no place in the configured model, such as {without_place[0]}: "
            f"check {SIZE}"
        )
    fitting = {}
    for name, value in state.items():
        if value.shape == wanted[name].shape:
            fitting[name] = value
        elif not _is_classifier(name, value, wanted[name]):
            raise InputError(
                f"{name} is {tuple(value.shape)} in the file, but {tuple(wanted[name].shape)} in the configured model: "
                f"check {_cause(name, value, wanted[name], shapes)}"
            )
    initial = {name: value for name, value in wanted.items() if name not in fitting}
    missing = [name for name in initial if not CLASSIFIER.fullmatch(name) and not name.startswith(PREDICTOR)]
    if missing:
        raise InputError(
            f"nothing fills {len(missing)} of the configured model's {len(wanted)} tensors, such as {missing[0]}: "
            f"the file is incomplete, or check {SIZE}"
        )
    return Fit(fitting, initial)


def _is_classifier(name: str, value: Tensor, wanted: Tensor) -> bool:
    """Return whether two tensors are classifiers of one width, for other numbers of classes."""
    return bool(CLASSIFIER.fullmatch(name)) and value.shape[1:] == wanted.shape[1:]


def _cause(name: str, value: Tensor, wanted: Tensor, shapes: Mapping[str, str]) -> str:
    """Name the configuration keys that a tensor's shape most likely comes from."""
    if value.shape[-1:] != wanted.shape[-1:] and "patch_embed" not in name:
        return SIZE
    return next((keys for part, keys in shapes.items() if part in name), SIZE)


def _write(out: Path, content: dict) -> None:
    """Write the file under a name of its own beside `out`, and rename it when it is complete."""
    # A tensor read from a file may be a view of one large storage, which would be written with it.
    content = {**content, "model": {name: value.clone() for name, value in content["model"].items()}}
    try:
        with atomic_write(out) as draft:
            torch.save(content, draft)
    except (OSError, RuntimeError) as error:  # torch's writer raises the latter on a full disk
        raise InputError(f"--out {out} cannot be written: {error}".splitlines()[0]) from None


def _format_count(tensors: Mapping[str, Tensor]) -> str:
    noun = "tensor" if len(tensors) == 1 else "tensors"
    return f"{len(tensors)} {noun}, {_parameters(tensors):,} parameters"


def _parameters(tensors: Mapping[str, Tensor]) -> int:
    """Count parameters: what two names share once, and running statistics not at all."""
    statistics = (".running_mean", ".running_var", ".num_batches_tracked")
    counted = {id(value): value.numel() for name, value in tensors.items() if not name.endswith(statistics)}
    return sum(counted.values())


def _describe_attributes(converted: Converted) -> Iterator[str]:
    if converted.attributes:
        counted = ", ".join(f"{name} {count}" for name, count in converted.attributes.items())
        yield f"attributes and how many values each has: {counted}"


def _describe_unused(converted: Converted, source: Mapping[str, Tensor]) -> Iterator[str]:
    if not converted.unused:
        return
    yield f"dropped, as it reaches no output: {_format_count(_name_some(source, converted.dropped))}"
    for what, keys in converted.unused.items():
        yield f"  {what} ({_format_count(_name_some(source, keys))})"


def _describe_initial(left: Mapping[str, Tensor]) -> Iterator[str]:
    """Describe what the file does not fill."""
    predictor = _name_some(left, (name for name in left if name.startswith(PREDICTOR)))
    classifiers = _name_some(left, (name for name in left if CLASSIFIER.fullmatch(name)))
    if predictor:
        yield (
            f"left at its initial value: the view predictor ({_format_count(predictor)}), which released files never "
            "had; use MODEL.VIEW given"
        )
    if classifiers:
        names = ", ".join(classifiers)
        yield f"left at their initial values: {names} ({_format_count(classifiers)}); only training reads them"


def _name_some(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    return {name: tensors[name] for name in names}
