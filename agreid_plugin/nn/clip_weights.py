"""Pretrained weights of CLIP: OpenAI's archives and the files of open_clip and Hugging Face.

Tensors are first renamed as in open_clip, with the prefix `visual.` or `text.` of their tower.

Shapes: P patches, C width of the image tower; L tokens, D width of the text tower.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from math import isqrt
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from agreid_plugin.errors import InputError, first_line, require_known
from agreid_plugin.nn.checkpoints import is_torchscript, read_tensors, require_file
from agreid_plugin.nn.clip import CLIP, ImageTower, TextTower
from agreid_plugin.nn.vit_weights import ONLY_SQUARE, Fit, format_names, resize_grid

ACTIVATIONS = ("auto", "yes", "no")
"""Values of the choice of the quick GELU."""

MODES = ("bilinear", "bicubic")
IMAGE, TEXT = "visual.", "text."
IMAGE_POSITIONS, TEXT_POSITIONS = f"{IMAGE}positional_embedding", f"{TEXT}positional_embedding"
TOWERS = {IMAGE: "image tower", TEXT: "text tower"}

Towers = CLIP | ImageTower | TextTower | Iterable[ImageTower | TextTower]


def load_clip(towers: Towers, path: str | Path, mode: str = "bilinear") -> Fit:
    """Load a weight file into one or both towers of CLIP, and return how it fitted.

    Reads OpenAI's TorchScript archives (`.pt`), and the state dicts of open_clip and Hugging Face (`.safetensors`,
    `.bin`, `.pt`). Position embeddings are resized to the image tower's grid and the text tower's length. Weights of
    half precision become those of the towers, float32.

    Args:
        towers: a CLIP or towers of one; other parts of the file are ignored.
        path: the file.
        mode: how the positions of patches are interpolated, `bilinear` or `bicubic`.

    Raises:
        InputError: the file is missing, cannot be read or is for another model. The towers are then as they were.
    """
    require_known("mode of resizing positions", mode, MODES)
    modules, stored = _split_towers(towers), _read(path)
    wanted = {
        part + name: value for part, tower in modules.items() for name, value in _get_core(tower).state_dict().items()
    }
    kept = {name: value.float() for name, value in stored.items() if name.startswith(tuple(modules))}
    _resize_positions(kept, modules, mode)
    if problem := _explain_absent(kept, stored, modules) or _explain_other_model(kept, wanted):
        fitting = sum(name in kept and kept[name].shape == value.shape for name, value in wanted.items())
        raise InputError(f"{path} fits {fitting} of the model's {len(wanted)} tensors: {problem}")
    for part, tower in modules.items():
        _get_core(tower).load_state_dict(
            {name.removeprefix(part): kept[name] for name in wanted if name.startswith(part)}
        )
    passed_over = tuple(TOWERS.keys() - modules.keys())
    unused = tuple(name for name in stored if name not in wanted and not name.startswith(passed_over))
    return Fit(str(path), len(wanted), len(wanted), (), unused)


def detect_quick_gelu(path: str | Path) -> bool | None:
    """Return whether the weights of a file were trained with the quick GELU, for `build_clip`.

    Those of OpenAI's archives were. For other files `open_clip_config.json` or `config.json` beside it says so.

    Returns:
        None where no such file is there.
    """
    require_file(path)
    if is_torchscript(path):
        return True
    model = _read_settings(Path(path).with_name("open_clip_config.json")).get("model_cfg")
    if isinstance(model, Mapping):
        return bool(model.get("quick_gelu", False))
    settings = _read_settings(Path(path).with_name("config.json"))
    if not str(settings.get("model_type", "")).startswith("clip"):
        return None
    # Hugging Face leaves defaults out of the file, and the quick GELU is the default.
    parts = [settings[part] for part in ("vision_config", "text_config") if settings.get(part)] or [settings]
    return all(part.get("hidden_act", "quick_gelu") == "quick_gelu" for part in parts)


def needs_quick_gelu(asked: str, path: str | Path | None, key: str = "quick_gelu") -> bool:
    """Return whether towers need the quick GELU for the weight file that fills them, or that they were trained from.

    Args:
        asked: `yes` or `no`; `auto` goes by the file, and is `no` without one.
        path: the file, if there is one.
        key: the user's name for `asked`, in messages.
    """
    if require_known(key, asked, ACTIVATIONS) != "auto" or not path:
        return asked == "yes"
    detected = detect_quick_gelu(path) if os.path.isfile(path) else None
    if detected is None:
        why = "does not tell" if os.path.isfile(path) else "is not there to tell"
        raise InputError(
            f"{key} is auto, but {path} {why} which activation it was trained with: set it to yes (OpenAI's weights) "
            "or no"
        )
    return detected


def _read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON file; empty if there is none."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {first_line(error)}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}, not settings by name")
    return content


def _split_towers(towers: Towers) -> dict[str, ImageTower | TextTower]:
    if isinstance(towers, CLIP):
        towers = [towers.image, towers.text]
    given = [towers] if isinstance(towers, ImageTower | TextTower) else list(towers)
    parts = {IMAGE if isinstance(each, ImageTower) else TEXT: each for each in given}
    if len(parts) < len(given):
        raise InputError("towers should be one image tower, one text tower or both: load others one by one")
    return parts


def _get_core(tower: ImageTower | TextTower) -> torch.nn.Module:
    return tower.visual if isinstance(tower, ImageTower) else tower.text


def _explain_absent(kept: Mapping[str, Tensor], stored: Iterable[str], parts: Iterable[str]) -> str:
    """Say which tower is missing in a file; empty if it has all of `parts`."""
    absent = [part for part in parts if not any(name.startswith(part) for name in kept)]
    if not absent:
        return ""
    if not any(name.startswith(tuple(TOWERS)) for name in stored):
        return f"it holds no CLIP; its tensors: {format_names(stored)}"
    return f"it has no {TOWERS[absent[0]]}: take a file of the whole CLIP"


def _explain_other_model(kept: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """Explain how a file is for another model; empty if it is for this one."""
    for name, value in wanted.items():
        if name in kept and kept[name].shape != value.shape:
            only = f"; {ONLY_SQUARE}" if name == IMAGE_POSITIONS else ""
            shapes = f"{name} is {tuple(kept[name].shape)}, but the model's is {tuple(value.shape)}"
            return f"{shapes}{only}: build the model that the file is for, or take another file"
    for part, tower in TOWERS.items():
        theirs, ours = _count_blocks(kept, part), _count_blocks(wanted, part)
        if ours and theirs != ours:
            return f"{theirs} blocks in the {tower}, the model has {ours}: set their number or take another file"
    missing = [name for name in wanted if name not in kept]
    return f"not {format_names(missing)}; it is incomplete or for another model" if missing else ""


def _count_blocks(names: Iterable[str], part: str) -> int:
    pattern = re.compile(re.escape(part) + r"transformer\.resblocks\.(\d+)\.")
    return len({match[1] for match in map(pattern.match, names) if match})


def _resize_positions(kept: dict[str, Tensor], modules: Mapping[str, ImageTower | TextTower], mode: str) -> None:
    """Resize the position embeddings of a file where they can be, in place."""
    for tower in modules.values():
        if isinstance(tower, ImageTower) and IMAGE_POSITIONS in kept:
            kept[IMAGE_POSITIONS] = _resize_image_positions(kept[IMAGE_POSITIONS], tower.grid, mode)
        if isinstance(tower, TextTower) and TEXT_POSITIONS in kept:
            kept[TEXT_POSITIONS] = _resize_text_positions(kept[TEXT_POSITIONS], tower.length)


def _resize_image_positions(stored: Tensor, grid: tuple[int, int], mode: str) -> Tensor:
    """Keep the row of CLS and resize a square grid of the others to ours: (1+n, C) -> (1+P, C)."""
    patches = len(stored) - 1 if stored.dim() == 2 else 0
    side = isqrt(max(patches, 0))
    if side < 1 or side * side != patches or (side, side) == grid:
        return stored
    return torch.cat([stored[:1], resize_grid(stored[None, 1:], (side, side), grid, mode)[0]])


def _resize_text_positions(stored: Tensor, length: int) -> Tensor:
    """Keep the first and the last row and stretch those between, or cut them: (n, D) -> (L, D)."""
    if stored.dim() != 2 or len(stored) < 3:
        return stored
    if length <= len(stored):
        return stored[:length]
    between = F.interpolate(stored[1:-1].T[None], size=length - 2, mode="linear", align_corners=False)[0].T
    return torch.cat([stored[:1], between, stored[-1:]])


_NO_WEIGHTS = ("input_resolution", "context_length", "vocab_size")  # entries of OpenAI's archives
_TEXT_MODULES = ("token_embedding.", "positional_embedding", "transformer.", "ln_final.", "text_projection")
_HUGGING_FACE_PARTS = {"vision_model.": IMAGE, "text_model.": TEXT}
_HUGGING_FACE = {
    "embeddings.class_embedding": "class_embedding",
    "embeddings.patch_embedding": "conv1",
    "embeddings.position_embedding.weight": "positional_embedding",
    "embeddings.token_embedding": "token_embedding",
    "pre_layrnorm": "ln_pre",  # spelled so
    "post_layernorm": "ln_post",
    "final_layer_norm": "ln_final",
    "encoder.layers": "transformer.resblocks",
    "self_attn.out_proj": "attn.out_proj",
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
_PROJECTIONS = {"visual_projection.weight": f"{IMAGE}proj", "text_projection.weight": f"{TEXT}text_projection"}


def _read(path: str | Path) -> dict[str, Tensor]:
    stored = read_tensors(path)
    try:
        return _to_our_names(stored)
    except RuntimeError as error:
        raise InputError(f"{path} holds tensors of other shapes than a CLIP's: {first_line(error)}") from None


def _to_our_names(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a file as in open_clip, with the prefix of their tower; others keep their names."""
    wrapped = all(name.startswith("module.") for name in stored)
    plain = {name.removeprefix("module.") if wrapped else name: value for name, value in stored.items()}
    kept = {
        name: value for name, value in plain.items() if name not in _NO_WEIGHTS and not name.endswith(".position_ids")
    }
    if any(name.startswith(tuple(_HUGGING_FACE_PARTS)) for name in kept):
        return _convert_hugging_face(kept)
    return {TEXT + name if name.startswith(_TEXT_MODULES) else name: value for name, value in kept.items()}


def _convert_hugging_face(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    renamed = {_to_our_name(name): value.T if name in _PROJECTIONS else value for name, value in stored.items()}
    for name in [name for name in renamed if ".self_attn.q_proj." in name]:
        parts = [name.replace(".q_proj.", f".{part}_proj.") for part in "qkv"]
        if all(part in renamed for part in parts):
            joined = name.replace(".self_attn.q_proj.", ".attn.in_proj_")
            renamed[joined] = torch.cat([renamed.pop(part) for part in parts])
    return renamed


def _to_our_name(name: str) -> str:
    for theirs, ours in _HUGGING_FACE_PARTS.items():
        if name.startswith(theirs):
            name = ours + name.removeprefix(theirs)
            for there, here in _HUGGING_FACE.items():
                name = name.replace(f".{there}", f".{here}", 1)
            return name
    return _PROJECTIONS.get(name, name)
