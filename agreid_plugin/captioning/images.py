"""Images to caption, with identities, views and attributes from a dataset or a file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image

from agreid_plugin.data.attributes import is_known
from agreid_plugin.data.datasets import load
from agreid_plugin.data.files import read_csv, read_json, require_existing, shorten
from agreid_plugin.data.images import find_broken_images
from agreid_plugin.errors import InputError, did_you_mean
from agreid_plugin.types import Record, View

PATH_COLUMNS = ("path", "file_path")
PERSON_COLUMNS = ("id", "pid", "identity")
SURROGATE = re.compile("[\ud800-\udfff]")  # stands for a byte of a name that is not UTF-8


@dataclass(frozen=True)
class Subject:
    """One image to describe.

    Attributes:
        file_path: its path below the folder of images, with forward slashes, as annotations have it.
        path: where it is.
        pid: the identity's number.
        name: the identity's name, where that is no number.
        view: aerial or ground, None if unknown.
        attributes: name -> value.
    """

    file_path: str
    path: str
    pid: int
    name: str = ""
    view: View | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


def load_subjects(
    dataset: str, root: str | Path, splits: Sequence[str] = (), skip_bad_names: bool = False, **options: Any
) -> list[Subject]:
    """Read a dataset's images; `folder` is for custom images.

    Args:
        dataset: its name.
        root: its folder, which `file_path` starts from.
        splits: the splits to describe, all if none is named.
        skip_bad_names: leave out images whose names do not fit.
        options: further arguments of the dataset's reader.
    """
    found = load(dataset, root, skip_bad_names=skip_bad_names, **options)
    records = found.split(*(splits or found.splits))
    if not records:
        raise InputError(f"{root}: no image of split {', '.join(splits)}; {found.name} has {', '.join(found.splits)}")
    base = Path(root).expanduser()
    base = base.parent if base.is_file() else base
    by_path = {record.path: record for record in records}  # query and gallery may share an image
    return [_subject(record, base) for record in by_path.values()]


def _subject(record: Record, base: Path) -> Subject:
    return Subject(
        file_path=Path(os.path.relpath(record.path, base)).as_posix(),
        path=record.path,
        pid=record.pid,
        name=record.tags.get("identity", ""),
        view=record.view,
        attributes={name: value for name, value in record.attributes.items() if is_known(value)},
    )


def choose_evenly(subjects: Sequence[Subject], limit: int) -> list[Subject]:
    """Return `limit` subjects evenly spread over all, to try things on."""
    if limit < 1:
        raise InputError(f"limit is {limit}; it has to be 1 or more")
    limit = min(limit, len(subjects))
    return [subjects[place * len(subjects) // limit] for place in range(limit)]


def drop_small(subjects: Iterable[Subject], min_pixels: int) -> list[Subject]:
    """Leave out images of `min_pixels` pixels or fewer; TAG-PEDES does so at 1,000."""
    kept = []
    for subject in subjects:
        with Image.open(subject.path) as image:
            if image.width * image.height > min_pixels:
                kept.append(subject)
    return kept


def find_unreadable(subjects: Iterable[Subject], progress: bool = False) -> dict[str, str]:
    """Decode every image and return `file_path` -> why, for those that cannot be, or whose names cannot be written."""
    names = {subject.path: subject.file_path for subject in subjects}
    faults = {names[path]: fault for path, fault in find_broken_images(names, progress).items()}
    return {**dict.fromkeys(filter(SURROGATE.search, names.values()), "its name is not UTF-8"), **faults}


def add_attributes(subjects: Sequence[Subject], file: str | Path) -> list[Subject]:
    """Add the attributes of a file: those of an image go before those of its identity."""
    file = require_existing(file)
    entries = _read_table(file) if file.suffix.lower() == ".csv" else _read_json(file)
    people = {_normalize_identity(key): key for key in entries}
    used: set[str] = set()
    described = []
    for subject in subjects:
        person = people.get(subject.name or str(subject.pid))
        keys = [key for key in (person, subject.file_path) if key is not None and key in entries]
        used.update(keys)
        more = {name: value for key in keys for name, value in entries[key].items()}
        described.append(replace(subject, attributes={**subject.attributes, **more}))
    if not used:
        first = next(iter(entries), "nothing")
        near = did_you_mean(first, [subject.file_path for subject in subjects])
        raise InputError(
            f"{file}: none of its {len(entries)} keys, first {shorten(first)!r}, is a path or an identity of the "
            f"images, first {subjects[0].file_path!r} of identity {subjects[0].name or subjects[0].pid}{near}"
        )
    return described


def _normalize_identity(key: str) -> str:
    """Return an identity's key, 7 for 0007."""
    return str(int(key)) if re.fullmatch("[0-9]{1,18}", key) else key


def _read_table(file: Path) -> dict[str, dict[str, str]]:
    entries: dict[str, dict[str, str]] = {}
    for line, row in read_csv(file, ()):
        column = next((name for name in (*PATH_COLUMNS, *PERSON_COLUMNS) if row.get(name)), None)
        if column is None:
            columns = ", ".join((*PATH_COLUMNS, *PERSON_COLUMNS))
            raise InputError(
                f"{file}: line {line} names no image and no identity; it needs one of the columns {columns}"
            )
        _add_values(entries, f"{file}: line {line}", row[column], row)
    return _require_attributes(file, entries)


def _read_json(file: Path) -> dict[str, dict[str, str]]:
    entries: dict[str, dict[str, str]] = {}
    for key, values in read_json(file, dict).items():
        if not isinstance(values, dict):
            raise InputError(f"{file}: {shorten(key)!r} is a {type(values).__name__}, expected attribute -> value")
        for name, value in values.items():
            if not isinstance(value, str | int | float | bool | None):
                where = f"{file}: {shorten(key)!r}: {shorten(name)!r}"
                raise InputError(f"{where} is a {type(value).__name__}, expected a text or a number")
        _add_values(entries, f"{file}", key, {name: _format_value(value) for name, value in values.items()})
    return _require_attributes(file, entries)


def _add_values(entries: dict[str, dict[str, str]], where: str, key: str, values: Mapping[str, str]) -> None:
    key = key.replace("\\", "/").removeprefix("./")
    if key in entries:
        raise InputError(f"{where}: {shorten(key)!r} is there twice; keep one of them")
    reserved = (*PATH_COLUMNS, *PERSON_COLUMNS)
    entries[key] = {name: value for name, value in values.items() if name not in reserved and is_known(value)}


def _require_attributes(file: Path, entries: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    if not any(entries.values()):
        raise InputError(f"{file}: no attribute of any identity; see 'fastreid data caption --help' for the format")
    return entries


def _format_value(value: str | float | bool | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
