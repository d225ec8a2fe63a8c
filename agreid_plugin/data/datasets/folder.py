"""People's own images in folders: identity, camera and view from the file name or the folder's."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from agreid_plugin.data.datasets import custom
from agreid_plugin.data.datasets.tree import Tree
from agreid_plugin.errors import InputError
from agreid_plugin.types import Record

MARKET = r"(?P<pid>-?\d+)_c(?P<camera>\d+)"
FOLDERS = {
    "train": ("train", "bounding_box_train"),
    "val": ("val",),
    "query": ("query",),
    "gallery": ("gallery", "bounding_box_test"),
}
PATTERN_KEYS = "--pattern, DATASETS.OWN.PATTERN or options=dict(pattern=...)"
WORDS = ("pid", "camera", "view", "platform")  # groups with a meaning of their own; others become tags


def parse(
    tree: Tree,
    pattern: str = MARKET,
    identity_folders: bool = False,
    aerial_cameras: Collection[int | str] = (),
    split: str = "train",
) -> list[Record]:
    """Read images under `train`, `val`, `query` and `gallery`, those that exist, or all images as one split.

    Args:
        tree: the folder.
        pattern: a regular expression for the beginning of a file's name, with named groups: `pid`, and if the names
            tell them `camera`, `view` (aerial or ground), `platform`; any other group becomes a tag.
        identity_folders: a folder an identity: the folder's name is the pid and the pattern may match nothing.
        aerial_cameras: the cameras in the air, when names tell the camera and not the view.
        split: the split of all images when there are no split folders.
    """
    grammar = _compile(pattern, identity_folders)
    rows: list[custom.Row] = []
    for name, folder in _splits(tree, split).items():
        paths = tree.images(name, folder)
        found = {path: _groups(path, folder, grammar, identity_folders) for path in paths}
        bad = [path for path in paths if found[path] is None]
        tree.refuse(name, bad, len(paths), f"pattern {pattern}", f"write one that fits ({PATTERN_KEYS}), rename them")
        rows += [_row(path, name, groups) for path, groups in found.items() if groups is not None]
    return tree.without_junk(custom.build(rows, aerial_cameras))


def _compile(pattern: str, identity_folders: bool) -> re.Pattern[str]:
    try:
        grammar = re.compile(pattern)
    except re.error as error:
        raise InputError(f"pattern {pattern!r} is not a regular expression: {error}") from error
    if "pid" not in grammar.groupindex and not identity_folders:
        groups = ", ".join(grammar.groupindex) or "none"
        raise InputError(f"pattern {pattern!r} has no group named pid, only {groups}: write (?P<pid>...)")
    return grammar


def _splits(tree: Tree, split: str) -> dict[str, Path]:
    found = {name: tree.find(*folders) for name, folders in FOLDERS.items()}
    folders = {name: folder for name, folder in found.items() if folder is not None}
    if not folders:
        tree.note(f"no folder {', '.join(FOLDERS)}: all images are of split {split}")
    return folders or {split: tree.root}


def _groups(path: Path, folder: Path, grammar: re.Pattern[str], identity_folders: bool) -> dict[str, str] | None:
    match = grammar.match(path.name)
    groups = {name: text for name, text in match.groupdict().items() if text} if match else None
    if not identity_folders:
        return groups if groups and "pid" in groups else None
    inside = path.relative_to(folder).parts
    return {**(groups or {}), "pid": inside[0]} if len(inside) > 1 else None


def _row(path: Path, split: str, groups: dict[str, str]) -> custom.Row:
    return custom.Row(
        where=path.name,
        path=str(path),
        pid=groups["pid"],
        split=split,
        camera=groups.get("camera", ""),
        view=groups.get("view", ""),
        platform=groups.get("platform", ""),
        tags={name: text for name, text in groups.items() if name not in WORDS},
    )
