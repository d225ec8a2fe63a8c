"""Images that are to go into an index: those of a folder, of a table, or of a dataset."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from agreid_plugin.data.bad_images import SKIP_HINT, describe_images
from agreid_plugin.data.datasets import load
from agreid_plugin.data.datasets.custom import parse_platform, parse_view
from agreid_plugin.data.files import list_images, read_csv, refuse_outside, require_existing, shorten
from agreid_plugin.errors import InputError, error_context
from agreid_plugin.retrieval.index.entries import Entry, is_valid_path, parse_time
from agreid_plugin.types import UNKNOWN, Record

COLUMNS = ("path", "view", "camera", "pid", "platform", "time")
"""Columns of a table with a fixed meaning; the first has to be there."""
GALLERY_SPLITS = ("gallery", "test")
"""Splits of datasets that tests search in; that of text sets is the second."""
CAPTION = "caption"  # prefix of columns that an index does not keep
BAD_NAMES = "cannot be kept by a name with control characters or bytes that are not UTF-8"
Item = TypeVar("Item")


def list_gallery(
    images: str | Path, dataset: str = "", splits: Sequence[str] = (), skip_bad_images: bool = False
) -> tuple[list[Entry], list[str]]:
    """Return the images of a gallery, each path once, and the paths of those that are left out.

    Args:
        images: a folder, whose images at any depth count; or a CSV file with the column `path` and, as known, `view`,
            `camera`, `pid`, `platform` and `time`. Its other columns become tags, but for captions.
        dataset: read the folder as this dataset, whose names hold identity, camera and view.
        splits: of the dataset; by default those that its tests search in.
        skip_bad_images: leave out images whose paths no index can keep, instead of refusing them; see `separate`.

    Raises:
        InputError: there is none, the table is not right, or a path cannot be kept.
    """
    place = require_existing(images)
    if dataset:
        records = _load_records(dataset, place, splits)
        kept, bad = separate(((record.path, record) for record in records), skip_bad_images)
        return [_record_entry(record) for record in kept], bad
    if place.is_file():
        return _list_table(place, skip_bad_images)
    found = [str(path) for path in list_images(place)]
    if not found:
        raise InputError(f"{place} has no images in it: name one of images")
    paths, bad = separate(zip(found, found, strict=True), skip_bad_images)
    return [Entry(path) for path in paths], bad


def separate(found: Iterable[tuple[str, Item]], skip_bad_images: bool) -> tuple[list[Item], list[str]]:
    """Separate what has a path that an index can keep from the paths that it cannot.

    Args:
        found: paths, and what is known by them.
        skip_bad_images: whether there may be such paths; else they are refused.
    """
    good: list[Item] = []
    bad: list[str] = []
    for path, named in found:
        if is_valid_path(path):
            good.append(named)
        else:
            bad.append(path)
    if bad and not skip_bad_images:
        raise InputError(f"{describe_images(bad, BAD_NAMES)}: rename, or {SKIP_HINT}")
    return good, bad


def _load_records(dataset: str, root: Path, splits: Sequence[str]) -> list[Record]:
    found = load(dataset, root)
    records = found.split(*(splits or GALLERY_SPLITS))
    if not records:
        named, known = " or ".join(splits or GALLERY_SPLITS), ", ".join(found.splits)
        raise InputError(f"{root}: no image of split {named}; {found.name} has {known}: name some with --splits")
    return records


def _record_entry(record: Record) -> Entry:
    entry = Entry.from_record(record)
    return replace(entry, tags={**entry.tags, "split": record.split})


def _list_table(table: Path, skip_bad_images: bool) -> tuple[list[Entry], list[str]]:
    if table.suffix.lower() != ".csv":
        raise InputError(f"{table} is neither a folder nor a CSV table")
    rows = [(f"{table}: line {line}", values) for line, values in read_csv(table, COLUMNS[:1])]
    if not rows:
        raise InputError(f"{table}: no rows below the header")
    timed = _has_times(values.get("time", "") for _, values in rows)
    kept, bad = separate(((str(table.parent / row[1]["path"]), row) for row in rows), skip_bad_images)
    entries = [_row_entry(where, table.parent, values, timed) for where, values in kept]
    missing = [entry.path for entry in entries if not os.path.isfile(entry.path)]
    if missing:
        raise InputError(f"{table}: {len(missing)} of its {len(rows)} images do not exist, first {shorten(missing[0])}")
    return list({entry.path: entry for entry in entries}.values()), bad


def _has_times(texts: Iterable[str]) -> bool:
    """Whether a column has times and not words, as `day` and `night`, of which none is a time."""
    return any(_is_time(text) for text in texts if text)


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
    except InputError:
        return False
    return True


def _row_entry(where: str, folder: Path, values: dict[str, str], timed: bool) -> Entry:
    texts = {name: values.get(name, "") for name in COLUMNS}
    path, view = texts["path"], texts["view"]
    if not os.path.isabs(path):
        refuse_outside(where, [path], "write such a path in full")
    others = {name: text for name, text in values.items() if text and not name.startswith(CAPTION)}
    columns = COLUMNS if timed else COLUMNS[:-1]
    with error_context(where):
        return Entry(
            path=str(folder / path),
            view=parse_view(view) if view else None,
            camera=_parse_number(texts["camera"], "camera"),
            pid=_parse_number(texts["pid"], "pid"),
            platform=texts["platform"] or parse_platform(view),
            time=parse_time(texts["time"]) if timed and texts["time"] else None,
            tags={name: text for name, text in others.items() if name not in columns},
        )


def _parse_number(text: str, column: str) -> int:
    if not text:
        return UNKNOWN
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise InputError(f"{column} {shorten(text)!r} is no number: keep names in another column, as a tag")
    return int(text)
