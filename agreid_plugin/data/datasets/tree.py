"""Folder of a dataset while it is parsed: finding its parts, reading names of images, notes about this copy."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agreid_plugin.data.files import (
    IMAGE_ENDINGS,
    list_images,
    name_few,
    read_lines,
    refuse_outside,
    require_existing,
    shorten,
)
from agreid_plugin.errors import InputError
from agreid_plugin.types import Record, View

MAX_NAMED = 6  # parts of a folder that an error names


@dataclass(frozen=True)
class Grammar:
    """Pattern of a dataset's file names.

    Attributes:
        pattern: matches the whole file name without its ending; folders never take part.
        example: a good name, for errors about bad ones.
        fields: from a match to keyword arguments of `Record`.

    Example:
        >>> from agreid_plugin.data.datasets.cargo import GRAMMAR
        >>> match = GRAMMAR.pattern.fullmatch("Cam3_night_17_2")
        >>> GRAMMAR.fields(match)
        {'pid': 17, 'camera': 3, 'view': <View.AERIAL: 0>, 'platform': 'uav', 'tags': {'time': 'night'}}
    """

    pattern: re.Pattern[str]
    example: str
    fields: Callable[[re.Match[str]], dict[str, Any]]


@dataclass(frozen=True)
class QueryGallery:
    """Query and gallery of a protocol as one of the dataset's list files names them."""

    query: tuple[Record, ...]
    gallery: tuple[Record, ...]


def camera_fields(camera: int, aerial: bool) -> dict[str, Any]:
    """Return the fields of a record from a camera that hangs in the air or, a fixed one, on the ground."""
    view, platform = (View.AERIAL, "uav") if aerial else (View.GROUND, "cctv")
    return {"camera": camera, "view": view, "platform": platform}


def normalize_name(name: str) -> str:
    """Return a name without case and punctuation, so that `AG_ReID_v2` and `AG-ReID.v2` are one."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


class Tree:
    """Folder of one dataset, with what its parser collects: notes, skipped names, lists, attribute groups.

    Args:
        name: the dataset, for messages.
        root: the dataset's folder or the folder that contains it; a CSV dataset may name its file.
        folders: common names of the dataset's folder, in any case and punctuation.
        skip_bad_names: leave out images whose names are not the dataset's, instead of refusing.
    """

    def __init__(self, name: str, root: str | Path, folders: Iterable[str] = (), skip_bad_names: bool = False):
        path = require_existing(root)
        self.name = name
        self.file = path if path.is_file() else None
        self.root = path.parent if path.is_file() else path
        self.skip_bad_names = skip_bad_names
        self.notes: list[str] = []
        self.skipped: list[str] = []
        self.lists: dict[str, QueryGallery] = {}
        self.groups: Mapping[str, tuple[str, ...]] = {}
        self.attribute_file = ""
        self.undescribed: tuple[int, ...] = ()
        self._folders = {normalize_name(folder) for folder in folders}
        self._roots = self._find_roots()

    def note(self, text: str) -> None:
        """Add a note about this copy of the dataset, once."""
        if text not in self.notes:
            self.notes.append(text)

    def note_undescribed(self, file: Path, records: Iterable[Record], described: Collection[int]) -> None:
        """Keep the attribute file and the identities that it lacks."""
        self.attribute_file = str(file)
        self.undescribed = tuple(sorted({record.pid for record in records} - set(described)))
        if self.undescribed:
            self.note(f"{file.name} says nothing of {len(self.undescribed)} identities, first {self.undescribed[0]}")

    def find(self, *names: str) -> Path | None:
        """Return the first of `names` that exists in the dataset's folder, None without one."""
        for place in self._roots:
            for name in names:
                if (place / name).exists():
                    if place != self.root:
                        self.note(f"read from {os.path.relpath(place, self.root)}")
                    return place / name
        return None

    def need(self, *names: str) -> Path:
        """Return the first of `names` that exists; an error says that the layout is not the dataset's."""
        found = self.find(*names)
        if found is None:
            holds = ", ".join(map(shorten, sorted(os.listdir(self.root))[:MAX_NAMED])) or "nothing"
            raise InputError(f"{self.name}: no {' or '.join(names)} under {self.root}, which holds {holds}")
        return found

    def folders(self, *names: str) -> list[Path]:
        """Return every folder called one of `names`, then the folders that may hold the dataset itself."""
        named = [place / name for place in self._roots for name in names]
        return [folder for folder in (*named, *self._roots) if folder.is_dir()]

    def images(self, split: str, folder: Path) -> list[Path]:
        """Return a split's images, sorted; an empty split is refused."""
        paths = list_images(folder)
        if not paths:
            raise InputError(f"{self.name}: {split} is empty, no {' '.join(IMAGE_ENDINGS)} under {folder}")
        return paths

    def records(self, split: str, paths: Iterable[Path], grammar: Grammar) -> list[Record]:
        """Parse the images' names; those that are not the dataset's are refused, or skipped when asked to."""
        matches = [(path, grammar.pattern.fullmatch(path.stem)) for path in paths]
        self.refuse(split, [path for path, match in matches if not match], len(matches), grammar.example)
        return [Record(path=str(p), split=split, **grammar.fields(match)) for p, match in matches if match]

    def refuse(self, split: str, bad: list[Path], total: int, example: str, mend: str = "rename them") -> None:
        """Raise an error about badly named images with a remedy, or count them as skipped."""
        if bad and not self.skip_bad_names:
            first = name_few(shorten(path.name) for path in bad)
            raise InputError(
                f"{self.name}: {len(bad)} of {total} names in {split} are not like {example}: {first}; "
                f"{mend}, or leave them out: --skip-bad-names, DATASETS.SKIP_BAD_NAMES or skip_bad_names=True"
            )
        self.skipped += map(str, bad)

    def without_junk(self, records: list[Record]) -> list[Record]:
        """Leave out images of identity -1, which show no person, and note how many."""
        kept = [record for record in records if record.pid != -1]
        if len(kept) < len(records):
            self.note(f"{len(records) - len(kept)} images of identity -1 left out")
        return kept

    def read_list(self, file: Path) -> list[str]:
        """Return the paths in a list file, relative to the dataset's folder; one that leads out of it is refused."""
        lines = [self._inside(line) for line in read_lines(file)]
        refuse_outside(file, lines)
        return [posixpath.normpath(line) for line in lines]

    def sides(self, file: Path, records: Mapping[str, Record]) -> QueryGallery:
        """Return a list file's query and gallery, sorted, given the records by relative path."""
        lines = self.read_list(file)
        skipped = {Path(path).name for path in self.skipped}
        missing = [line for line in lines if line not in records and Path(line).name not in skipped]
        self.refuse_missing(file, missing, len(lines))
        chosen = [records[line] for line in sorted(lines) if line in records]
        return QueryGallery(
            query=tuple(record for record in chosen if record.split == "query"),
            gallery=tuple(record for record in chosen if record.split == "gallery"),
        )

    def refuse_missing(self, file: Path, missing: list[str], total: int) -> None:
        """Raise an error about images that a file names and the folder lacks."""
        if missing:
            raise InputError(f"{file}: {len(missing)} of its {total} images do not exist, first {shorten(missing[0])}")

    def _inside(self, line: str) -> str:
        first, _, rest = line.partition("/")
        while rest and normalize_name(first) in self._folders:
            line = rest
            first, _, rest = line.partition("/")
        return line

    def _find_roots(self) -> list[Path]:
        inner = self._find_folders(self.root)
        # Archives unpacked into a folder of their own name hold the dataset one level deeper, its lists one higher.
        deeper = [folder for place in inner for folder in self._find_folders(place)]
        names = {normalize_name(folder.name) for folder in (self.root, self.root.parent)}
        outer = [self.root.parent] if names <= self._folders else []
        return [*deeper, *inner, self.root, *outer]

    def _find_folders(self, folder: Path) -> list[Path]:
        return sorted(path for path in folder.iterdir() if normalize_name(path.name) in self._folders and path.is_dir())
