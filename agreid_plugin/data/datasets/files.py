"""Reading the files a dataset comes with: images, lists, JSON and CSV, each complaint one line naming the file."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from agreid_plugin.errors import InputError, did_you_mean

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp")


def existing(path: str | Path) -> Path:
    """Return the path, or say which part of it does not exist and which neighbor was probably meant."""
    path = Path(path).expanduser()
    if path.exists():
        return path
    missing = next(p for p in (*reversed(path.parents), path) if not p.exists())
    neighbors = os.listdir(missing.parent) if missing.parent.is_dir() else []
    near = did_you_mean(missing.name, neighbors)
    raise InputError(f"{path} does not exist: no {missing.name!r} in {missing.parent.absolute()}{near}")


def list_images(folder: Path) -> list[Path]:
    """Return the images below `folder`, sorted; endings in any case, hidden files are none."""
    found = []
    for where, _, names in os.walk(folder, followlinks=True):
        found += [
            Path(where, name) for name in names if name.lower().endswith(IMAGE_ENDINGS) and not name.startswith(".")
        ]
    return sorted(found, key=Path.as_posix)


def read_text(path: Path) -> str:
    """Return a text file's content, a byte order mark removed."""
    try:
        return existing(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from error


def read_lines(path: Path) -> list[str]:
    """Return the paths a list file names, one a line, blank lines left out, separators made forward slashes."""
    lines = [line.strip().replace("\\", "/").removeprefix("./") for line in read_text(path).splitlines()]
    return [line for line in lines if line]


def read_json(path: Path, kind: type) -> Any:
    """Return a JSON file's content, which has to be a list or a dict as `kind` says."""
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    if not isinstance(content, kind):
        raise InputError(f"{path}: expected a {kind.__name__}, found a {type(content).__name__}")
    return content


def read_entries(path: Path, keys: Collection[str | tuple[str, ...]]) -> list[dict[str, Any]]:
    """Return a JSON list of dicts in which every entry has the `keys`; a tuple of keys asks for one of them."""
    wanted = [key if isinstance(key, tuple) else (key,) for key in keys]
    entries = read_json(path, list)
    for number, entry in enumerate(entries, start=1):
        found = entry.keys() if isinstance(entry, dict) else set()
        if not all(found & set(either) for either in wanted):
            expected = ", ".join(" or ".join(either) for either in wanted)
            raise InputError(f"{path}: entry {number} has {_listed(found)}; expected {expected}")
    return entries


def read_csv(path: Path, columns: Collection[str], delimiter: str = ",") -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, column -> text) for each row of a CSV file that has at least these `columns`."""
    reader = csv.reader(read_text(path).splitlines(keepends=True), delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        missing = [name for name in columns if name not in header]
        if missing:
            raise InputError(f"{path}: no column {', '.join(missing)}; found {_listed(header)}")
        for row in reader:
            if row and len(row) != len(header):
                raise InputError(f"{path}: line {reader.line_num} has {len(row)} values for {len(header)} columns")
            if row:
                yield reader.line_num, dict(zip(header, (value.strip() for value in row), strict=True))
    except csv.Error as error:
        raise InputError(f"{path}: not CSV: {error} at line {reader.line_num}") from error


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
