"""Custom datasets: images in folders or in a CSV table, with labels from file names, folder names or columns."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agreid_plugin.data.attributes import is_known
from agreid_plugin.data.datasets.tree import Tree
from agreid_plugin.data.files import read_csv, refuse_outside, require_existing
from agreid_plugin.errors import InputError, require_known, unknown
from agreid_plugin.types import PLATFORMS, UNKNOWN, Record, View

SPLITS = ("train", "val", "query", "gallery", "test")
VIEW_WORDS = {
    **dict.fromkeys(("aerial", "a", "uav", "drone"), View.AERIAL),
    **dict.fromkeys(("ground", "g", "cctv", "wearable"), View.GROUND),
}
MARKET_PATTERN = r"(?P<pid>-?\d+)_c(?P<camera>\d+)"
FOLDERS = {
    "train": ("train", "bounding_box_train"),
    "val": ("val",),
    "query": ("query",),
    "gallery": ("gallery", "bounding_box_test"),
}
PATTERN_KEYS = "--pattern, DATASETS.OWN.PATTERN or options=dict(pattern=...)"
WORDS = ("pid", "camera", "view", "platform")  # groups with a meaning; others become tags
COLUMNS = ("path", "pid", "split", "camera", "view", "platform")  # the first two are required
TAGS = ("time", "scene", "altitude")


@dataclass(frozen=True)
class Row:
    """Labels of one image as texts, empty where not given.

    Attributes:
        where: their place, for error messages.
    """

    where: str
    path: str
    pid: str
    split: str
    camera: str = ""
    view: str = ""
    platform: str = ""
    captions: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


def parse_view(word: str, what: str = "view") -> View:
    """Return the view of one of `VIEW_WORDS` in any case; `what` names the input in the error about another word."""
    if word.lower() not in VIEW_WORDS:
        raise unknown(what, word, VIEW_WORDS)
    return VIEW_WORDS[word.lower()]


def parse_platform(word: str) -> str:
    """Return the platform that a word for a view implies, such as cctv or wearable; empty if none."""
    return word.lower() if word.lower() in PLATFORMS else ""


def build_records(rows: Iterable[Row], aerial_cameras: Collection[int | str] = ()) -> list[Record]:
    """Build records from labels as texts.

    Args:
        rows: one an image. Identities and cameras that are not all numbers are numbered in sorted order, and
            identities' names are kept in the tag `identity`.
        aerial_cameras: the cameras in the air, for rows without a view.
    """
    rows = list(rows)
    for row in rows:
        _check(row)
    pids = _number_names(row.pid for row in rows)
    named = not all(map(_is_number, pids))
    cameras = {"": UNKNOWN, **_number_names(row.camera for row in rows if row.camera)}
    return [
        Record(
            path=row.path,
            pid=pids[row.pid],
            camera=cameras[row.camera],
            view=_get_view(row, aerial_cameras),
            platform=row.platform or parse_platform(row.view),
            split=row.split,
            attributes=row.attributes,
            captions=row.captions,
            tags={**row.tags, **({"identity": row.pid} if named else {})},
        )
        for row in rows
    ]


def _check(row: Row) -> None:
    require_known(f"{row.where}: split", row.split, SPLITS)
    if not row.pid:
        raise InputError(f"{row.where}: no pid: say who is in the image, or leave it out")


def _number_names(names: Iterable[str]) -> dict[str, int]:
    names = sorted(set(names))
    if all(map(_is_number, names)):
        return {name: int(name) for name in names}
    return {name: number for number, name in enumerate(names)}


def _is_number(name: str) -> bool:
    # More digits than a label can hold make a name.
    return re.fullmatch(r"-?[0-9]{1,18}", name) is not None


def _strip_zeros(camera: str) -> str:
    return camera.lstrip("0") or "0"


def _get_view(row: Row, aerial: Collection[int | str]) -> View | None:
    if row.view:
        return parse_view(row.view, f"{row.where}: view")
    return get_camera_view(row.camera, aerial)


def get_camera_view(camera: int | str, aerial_cameras: Collection[int | str]) -> View | None:
    """Return the view of a camera by the list of aerial cameras; None without a list or a camera."""
    if not aerial_cameras or camera == "":
        return None
    aerial = {_strip_zeros(str(each)) for each in aerial_cameras}
    return View.AERIAL if _strip_zeros(str(camera)) in aerial else View.GROUND


def parse_folder(
    tree: Tree,
    pattern: str = MARKET_PATTERN,
    identity_folders: bool = False,
    aerial_cameras: Collection[int | str] = (),
    split: str = "train",
) -> list[Record]:
    """Read images under `train`, `val`, `query` and `gallery`, those that exist, or all images as one split.

    Args:
        tree: the folder.
        pattern: a regular expression for the beginning of a file's name, with named groups: `pid`, and if the names
            have them `camera`, `view` (aerial or ground), `platform`; any other group becomes a tag.
        identity_folders: a folder an identity: the folder's name is the pid and the pattern may match nothing.
        aerial_cameras: the cameras in the air, when names have the camera and not the view.
        split: the split of all images when there are no split folders.
    """
    grammar = _compile(pattern, identity_folders)
    rows: list[Row] = []
    for name, folder in _splits(tree, split).items():
        paths = tree.images(name, folder)
        found = {path: _groups(path, folder, grammar, identity_folders) for path in paths}
        bad = [path for path in paths if found[path] is None]
        tree.refuse(name, bad, len(paths), f"pattern {pattern}", f"write one that fits ({PATTERN_KEYS}), rename them")
        rows += [_file_row(path, name, groups) for path, groups in found.items() if groups is not None]
    return tree.without_junk(build_records(rows, aerial_cameras))


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


def _file_row(path: Path, split: str, groups: dict[str, str]) -> Row:
    return Row(
        where=path.name,
        path=str(path),
        pid=groups["pid"],
        split=split,
        camera=groups.get("camera", ""),
        view=groups.get("view", ""),
        platform=groups.get("platform", ""),
        tags={name: text for name, text in groups.items() if name not in WORDS},
    )


def parse_table(
    tree: Tree,
    images: str = "",
    aerial_cameras: Collection[int | str] = (),
    split: str = "train",
    delimiter: str = ",",
) -> list[Record]:
    """Read a table with the columns `path` and `pid`, and as known `split`, `camera`, `view`, `platform`.

    A relative path leads to an image inside the folder of images; an absolute one leads anywhere.

    Columns starting with `caption` are captions, `time`, `scene` and `altitude` are tags, all others attributes of the
    image. An attribute's value that is empty or `unknown` is left out.

    Args:
        tree: the CSV file, or a folder with one CSV file in it.
        images: the folder that relative paths start from, and may not leave; by default the table's.
        aerial_cameras: the cameras in the air, for rows without a view.
        split: the split of rows that name none.
        delimiter: what separates the columns.
    """
    table = tree.file or _only_table(tree)
    folder = require_existing(images) if images else table.parent
    rows = [
        _table_row(f"{table}: line {line}", folder, split, values)
        for line, values in read_csv(table, COLUMNS[:2], delimiter)
    ]
    if not rows:
        raise InputError(f"{table}: no rows below the header")
    tree.refuse_missing(table, [row.path for row in rows if not os.path.isfile(row.path)], len(rows))
    return tree.without_junk(build_records(rows, aerial_cameras))


def _only_table(tree: Tree) -> Path:
    tables = sorted(tree.root.glob("*.csv"))
    if len(tables) != 1:
        raise InputError(f"{tree.root}: {len(tables)} CSV files, expected one; name the file itself")
    return tables[0]


def _table_row(where: str, folder: Path, split: str, values: dict[str, str]) -> Row:
    known = {name: values.get(name, "") for name in COLUMNS}
    others = {name: text for name, text in values.items() if name not in COLUMNS and text}
    captions = [name for name in others if name.startswith("caption")]
    if not os.path.isabs(known["path"]):
        refuse_outside(where, [known["path"]], "name the folder of images with the option images")
    return Row(
        where=where,
        **{**known, "path": str(folder / known["path"]), "split": known["split"] or split},
        captions=tuple(others[name] for name in captions),
        tags={name: others[name] for name in TAGS if name in others},
        attributes={n: text for n, text in others.items() if n not in (*TAGS, *captions) and is_known(text)},
    )
