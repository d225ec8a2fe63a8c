"""Building CLIP's towers by open_clip's name, with other image sizes, strides, text lengths and shapes; freezing parts.

Nothing is downloaded: towers start from random weights, `clip_weights.load_clip` fills them from a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from agreid_plugin.errors import InputError, error_context, require_int, require_known, unknown
from agreid_plugin.nn.clip import CLIP, ImageTower, TextTower, import_open_clip
from agreid_plugin.nn.module_types import Visual
from agreid_plugin.nn.vit import count_patches, to_pair

VOCABULARY = 49408
VISION_KEYS = {"image_size", "layers", "width", "head_width", "patch_size", "mlp_ratio"}
TEXT_KEYS = {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"}
"""Settings that the towers here know; open_clip's models with further ones work differently."""
SHAPE = ("width", "layers", "heads", "patch_size", "text_width", "text_layers", "text_heads", "embed_dim")


def build_clip(
    name: str = "ViT-B-16",
    *,
    image_size: Sequence[int] = (256, 128),
    stride: int | Sequence[int] | None = None,
    text_length: int = 77,
    quick_gelu: bool = False,
    **shape: int,
) -> CLIP:
    """Build the towers of a CLIP with random weights, in float32.

    Args:
        name: a ViT by open_clip's name.
        image_size: (rows, columns) of the images.
        stride: step between patches, one number or (rows, columns); the patch size without one.
        text_length: maximum number of tokens of a sentence.
        quick_gelu: the activation of OpenAI's weights; `clip_weights.detect_quick_gelu` says which a file needs. A name
            that ends with `-quickgelu` always has it.
        shape: numbers in the place of the named model's: `width`, `layers`, `heads`, `patch_size`, `text_width`,
            `text_layers`, `text_heads`, `embed_dim`.

    Raises:
        InputError: open_clip is not installed, has no such ViT, or the numbers do not go together.
    """
    plan = _read_plan(name)
    for key, value in shape.items():
        require_int(require_known("shape of a CLIP", key, SHAPE), value)
    vision, text = _plan_vision(plan["vision_cfg"], shape, image_size), _plan_text(plan["text_cfg"], shape, text_length)
    patch, embed_dim = vision["patch_size"], shape.get("embed_dim", plan["embed_dim"])
    steps = to_pair("stride", patch if stride is None else stride)
    count_patches(vision["image_size"], patch, steps)
    if max(steps) > patch:
        raise InputError(f"stride={stride!r} should be from 1 to the side of a patch, {patch}")
    quick_gelu = quick_gelu or plan.get("quick_gelu", False)
    model = import_open_clip("open_clip.model").CustomTextCLIP(embed_dim, vision, text, quick_gelu=quick_gelu)
    _set_stride(model.visual, steps)
    return CLIP(ImageTower(model.visual), TextTower(model.text))


def _read_plan(name: str) -> dict[str, Any]:
    """Return open_clip's configuration of a model, which must be one that the towers work for."""
    library = import_open_clip("open_clip")
    plan = library.get_model_config(name) if name in library.list_models() else None
    if plan is None or not _is_plain(plan):
        known = [each for each in library.list_models() if _is_plain(library.get_model_config(each))]
        raise unknown("CLIP with a ViT of open_clip", name, known)
    return plan


def _is_plain(plan: Mapping[str, Any]) -> bool:
    vision, text = plan["vision_cfg"], plan["text_cfg"]
    plain = vision.keys() <= VISION_KEYS and text.keys() <= TEXT_KEYS and isinstance(vision.get("layers"), int)
    return plain and text.get("vocab_size") == VOCABULARY


def _plan_vision(plan: dict[str, Any], shape: Mapping[str, int], image_size: Sequence[int]) -> dict[str, Any]:
    size = to_pair("image_size", image_size)
    width, patch = shape.get("width", plan["width"]), shape.get("patch_size", plan["patch_size"])
    heads = shape.get("heads", width // plan.get("head_width", 64))
    _require_heads("heads", heads, "width", width)
    changes = {"width": width, "layers": shape.get("layers", plan["layers"]), "head_width": width // heads}
    return plan | changes | {"patch_size": patch, "image_size": size}


def _plan_text(plan: dict[str, Any], shape: Mapping[str, int], length: int) -> dict[str, Any]:
    changes = {key: shape.get(f"text_{key}", plan[key]) for key in ("width", "layers", "heads")}
    _require_heads("text_heads", changes["heads"], "text_width", changes["width"])
    return plan | changes | {"context_length": require_int("text_length", length, least=2)}


def _set_stride(visual: Visual, stride: tuple[int, int]) -> None:
    """Set the stride of patches, for which open_clip has no setting; positions are new if their number changes."""
    visual.conv1.stride = stride
    visual.grid_size = count_patches(visual.image_size, visual.patch_size[0], stride)
    old = visual.positional_embedding
    rows = 1 + visual.grid_size[0] * visual.grid_size[1]
    if len(old) != rows:
        visual.positional_embedding = nn.Parameter(old.shape[1] ** -0.5 * torch.randn(rows, old.shape[1]))


def _require_heads(name: str, heads: int, width_name: str, width: int) -> None:
    if heads < 1 or width % heads:
        raise InputError(f"{name}={heads} should divide {width_name}={width}: set {name}")


def freeze(module: ImageTower | TextTower, parts: str | Sequence[str]) -> None:
    """Switch off the gradients of parts of a tower.

    Args:
        module: the tower.
        parts: one or several of `all` and, for the image tower, `stem` (what comes before the first block) and
            `blocks:A-B` (the blocks A to B, both included, counted from 0).
    """
    for part in [parts] if isinstance(parts, str) else parts:
        for frozen in _find_part(module, part):
            frozen.requires_grad_(False)


def freeze_named(clip: CLIP, names: Sequence[str], key: str = "freeze") -> None:
    """Switch off the gradients of parts of both towers.

    Args:
        clip: the towers.
        names: `text`, `image`, or a part of a tower as `image.stem`; see `freeze`.
        key: the user's name for `names`, in messages.
    """
    towers: dict[str, ImageTower | TextTower] = {"image": clip.image, "text": clip.text}
    for name in names:
        tower, _, part = str(name).partition(".")
        if tower not in towers:
            raise unknown(key, name, ["image", "image.stem", "image.blocks:A-B", "text"])
        with error_context(key):
            freeze(towers[tower], part or "all")


def _find_part(tower: ImageTower | TextTower, part: str) -> Sequence[nn.Module | nn.Parameter]:
    blocks = re.fullmatch(r"blocks:(\d+)-(\d+)", part)
    if part == "all":
        return [tower]
    if isinstance(tower, TextTower):
        raise unknown("part of a text tower", part, ["all"])
    if part == "stem":
        visual = tower.visual
        return [visual.conv1, visual.class_embedding, visual.positional_embedding, visual.ln_pre]
    if not blocks:
        raise unknown("part of an image tower", part, ["all", "stem", f"blocks:0-{tower.depth - 1}"])
    first, last = map(int, blocks.groups())
    if not first <= last < tower.depth:
        raise InputError(f"part {part!r} should be within the tower's blocks, 0-{tower.depth - 1}")
    return list(tower.blocks[first : last + 1])
