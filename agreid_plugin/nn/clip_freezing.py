"""Parts of CLIP's towers that are not trained, by name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import nn

from agreid_plugin.errors import InputError, said_of, unknown
from agreid_plugin.nn.clip import CLIP, ImageTower, TextTower


def freeze(module: ImageTower | TextTower, parts: str | Sequence[str]) -> None:
    """Switch off the gradients of parts of a tower.

    Args:
        module: the tower.
        parts: one or several of `all` and, for the image tower, `stem` (what comes before the first block) and
            `blocks:A-B` (the blocks A to B, both included, counted from 0).
    """
    for part in [parts] if isinstance(parts, str) else parts:
        for frozen in _part(module, part):
            frozen.requires_grad_(False)


def freeze_named(clip: CLIP, names: Sequence[str], key: str = "freeze") -> None:
    """Switch off the gradients of parts of both towers.

    Args:
        clip: the towers.
        names: `text`, `image`, or a part of a tower as `image.stem`; see `freeze`.
        key: what the user calls the names, for complaints.
    """
    towers: dict[str, ImageTower | TextTower] = {"image": clip.image, "text": clip.text}
    for name in names:
        tower, _, part = str(name).partition(".")
        if tower not in towers:
            raise unknown(key, name, ["image", "image.stem", "image.blocks:A-B", "text"])
        with said_of(key):
            freeze(towers[tower], part or "all")


def _part(tower: ImageTower | TextTower, part: str) -> Sequence[nn.Module | nn.Parameter]:
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
