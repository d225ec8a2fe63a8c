"""Checkpoints of the released codes, written as files that a configuration of ours loads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from fastreid.modeling import build_model
from torch import Tensor

from agreid_plugin.data.whole_files import whole_file
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid import checks
from agreid_plugin.hosts.fastreid.config import load_config
from agreid_plugin.hosts.fastreid.heads import OURS
from agreid_plugin.hosts.weights import read_state
from agreid_plugin.methods.conversion import CONVERTERS, Converted

SUFFIXES = (".pth", ".pt")
CLASSIFIER = re.compile(r"(\w*head\.classifier\.weight|classifier\.(weight|bias))")
"""Names of classifiers: `head`, `local_head` and `view_head` have one, and TAG-CLIP itself."""
COUNTED = ("head.classifier.weight", "classifier.weight")
"""Those that tell the number of identities."""
PREDICTOR = "view_predictor."

NEEDED = {
    "vdt": {"MODEL.META_ARCHITECTURE": "VDT", "MODEL.HEADS.NAME": OURS},
    "visa": {
        "MODEL.META_ARCHITECTURE": "ViSA",
        "MODEL.VISA.VARIANT": "released",
        "MODEL.VISA.VAB": True,
        "MODEL.VISA.ETGM": True,
        "MODEL.VISA.DLFM": True,
        "MODEL.HEADS.NAME": OURS,
    },
    "svpr": {
        "MODEL.META_ARCHITECTURE": "SVPR",
        "MODEL.SVPR.VARIANT": "released",
        "MODEL.SVPR.VDFE": True,
        "MODEL.SVPR.ASMOE": True,
        "MODEL.SVPR.CVPR": True,
        "MODEL.HEADS.NAME": OURS,
    },
    "tag-clip": {
        "MODEL.META_ARCHITECTURE": "TAGCLIP",
        "MODEL.TAG_CLIP.BLOCK": "hr_moe",
        "MODEL.TAG_CLIP.TSE": True,
        "MODEL.TAG_CLIP.ID_LOSS": True,
        "MODEL.TAG_CLIP.OBJECTIVE": "itc",
    },
}
"""What a configuration must say to be of the released model."""

PIXELS = ("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD")
UNSTORED = {
    "vdt": PIXELS,
    "visa": ("MODEL.VISA.TOP_K", "MODEL.VISA.NEIGHBORS", *PIXELS),
    "svpr": (
        *("MODEL.CLIP.NAME", "MODEL.CLIP.QUICK_GELU", "MODEL.SVPR.STAGES", "MODEL.SVPR.KEEP"),
        *("MODEL.SVPR.ATTRIBUTE_RATIO", "MODEL.SVPR.VIEW_WORDS.CCTV", "MODEL.SVPR.VIEW_WORDS.WEARABLE"),
        *("MODEL.SVPR.VIEW_WORDS.UAV", *PIXELS),
    ),
    "tag-clip": (
        *("MODEL.CLIP.NAME", "MODEL.CLIP.QUICK_GELU", "MODEL.TAG_CLIP.TOP_K", "MODEL.TAG_CLIP.EXCLUSIVE"),
        *("MODEL.TAG_CLIP.TSE_SHARE", *PIXELS),
    ),
}
"""What features depend on and no file of weights tells."""

SIZE = "MODEL.BACKBONE.DEPTH, or the keys of MODEL.VIT and MODEL.CLIP"
CLIP_GRID = "MODEL.BACKBONE.STRIDE_SIZE, MODEL.CLIP.PATCH_SIZE or INPUT.SIZE_TRAIN"
CAUSES = (
    ("visual.positional_embedding", CLIP_GRID),
    ("cvpr.local_weight", CLIP_GRID),
    ("text.positional_embedding", "MODEL.CLIP.TEXT_LENGTH"),
    ("experts.c_", "MODEL.TAG_CLIP.EXPERTS"),
    ("feature_router.", "MODEL.TAG_CLIP.EXPERTS"),
    ("image_local.", "MODEL.TAG_CLIP.TSE_WIDTH"),
    ("vit.pos_embed", "MODEL.BACKBONE.STRIDE_SIZE, MODEL.VIT.PATCH_SIZE or INPUT.SIZE_TRAIN"),
    ("vit.patch_embed", "MODEL.VIT.PATCH_SIZE"),
    ("queries.experts.tokens", "MODEL.VISA.TOKENS or MODEL.VISA.EXPERTS"),
    ("queries.", "MODEL.VISA.EXPERTS"),
)
"""Part of a tensor's name, and the keys that its shape comes from where its width is right."""


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
        Lines that tell what was converted, dropped and left at its initial value.

    Raises:
        InputError: a file is missing, damaged or of another model, or `out` cannot be written.
    """
    released, out = Path(released), Path(out)
    _check_out(out)
    cfg = _configured(method, config)
    source = read_state(released)
    try:
        converted = CONVERTERS[method](source)
    except InputError as error:
        raise InputError(f"{released}: {error}") from None
    try:
        fit = _fitted(converted.state, _wanted(cfg, converted.state))
    except InputError as error:
        raise InputError(f"{released} and {config}: {error}") from None
    _write(out, {"model": fit.state, "source": {"file": released.name, "method": method}})
    return [
        f"{out}: {_counted(fit.state)}, made of {len(source) - len(converted.dropped)} of the {len(source)} tensors "
        f"in {released.name}",
        *_dropped(converted, source),
        *_initial(fit.initial),
        f"not in the file, so as {config} has it: {', '.join(f'{key} {_value(cfg, key)}' for key in UNSTORED[method])}",
    ]


def _check_out(out: Path) -> None:
    if out.suffix not in SUFFIXES:
        raise InputError(f"--out {out} should end in {' or '.join(SUFFIXES)}")
    if out.exists():
        raise InputError(f"--out {out} exists already; choose another name")
    if not out.absolute().parent.is_dir():
        raise InputError(f"--out {out}: its folder does not exist")


def _configured(method: str, config: str | Path):
    """Read the configuration, and refuse one that is not of the released model."""
    cfg = load_config(config)
    for key, value in NEEDED[method].items():
        found = _value(cfg, key)
        if found != value:
            raise InputError(f"{config}: {key} is {found}, which is not the released {method}: set {key} {value}")
    cfg.MODEL.BACKBONE.PRETRAIN = False
    checks.check_config(cfg)
    return cfg


def _value(cfg, key: str) -> Any:
    return reduce(getitem, key.split("."), cfg)


def _wanted(cfg, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of the configured model for as many identities, its shapes alone: nothing is computed."""
    stored = [len(state[name]) for name in COUNTED if name in state and state[name].dim()]
    cfg.MODEL.HEADS.NUM_CLASSES = (stored or [cfg.MODEL.HEADS.NUM_CLASSES or 1])[0]
    cfg.MODEL.DEVICE = "meta"
    with torch.device("meta"):
        return build_model(cfg).state_dict()


def _fitted(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Fit:
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
                f"check {_cause(name, value, wanted[name])}"
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
    """Tell whether two tensors are classifiers of one width, for other numbers of classes."""
    return bool(CLASSIFIER.fullmatch(name)) and value.shape[1:] == wanted.shape[1:]


def _cause(name: str, value: Tensor, wanted: Tensor) -> str:
    """Name the configuration keys that a tensor's shape most likely comes from."""
    if value.shape[-1:] == wanted.shape[-1:] or "patch_embed" in name:
        for part, keys in CAUSES:
            if part in name:
                return keys
    return SIZE


def _write(out: Path, content: dict) -> None:
    """Write the file under a name of its own beside `out`, and rename it when it is complete."""
    # A tensor read from a file may be a view of one large storage, which would be written with it.
    content = {**content, "model": {name: value.clone() for name, value in content["model"].items()}}
    try:
        with whole_file(out) as draft:
            torch.save(content, draft)
    except (OSError, RuntimeError) as error:  # torch's writer raises the latter on a full disk
        raise InputError(f"--out {out} cannot be written: {error}".splitlines()[0]) from None


def _counted(tensors: Mapping[str, Tensor]) -> str:
    noun = "tensor" if len(tensors) == 1 else "tensors"
    return f"{len(tensors)} {noun}, {_parameters(tensors):,} parameters"


def _parameters(tensors: Mapping[str, Tensor]) -> int:
    """Count parameters: what two names share once, and running statistics not at all."""
    statistics = (".running_mean", ".running_var", ".num_batches_tracked")
    counted = {id(value): value.numel() for name, value in tensors.items() if not name.endswith(statistics)}
    return sum(counted.values())


def _dropped(converted: Converted, source: Mapping[str, Tensor]) -> Iterator[str]:
    if not converted.unused:
        return
    yield f"dropped, as it reaches no output: {_counted(_some(source, converted.dropped))}"
    for what, keys in converted.unused.items():
        yield f"  {what} ({_counted(_some(source, keys))})"


def _initial(left: Mapping[str, Tensor]) -> Iterator[str]:
    """Tell what the file does not fill."""
    predictor = _some(left, (name for name in left if name.startswith(PREDICTOR)))
    classifiers = _some(left, (name for name in left if CLASSIFIER.fullmatch(name)))
    if predictor:
        yield (
            f"left at its initial value: the view predictor ({_counted(predictor)}), which released files never had; "
            "use MODEL.VIEW given"
        )
    if classifiers:
        names = ", ".join(classifiers)
        yield f"left at their initial values: {names} ({_counted(classifiers)}); only training reads them"


def _some(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    return {name: tensors[name] for name in names}
