"""What a file of features has of each image, and how images are made of it again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from agreid_plugin.data.datasets.custom_records import VIEW_WORDS
from agreid_plugin.data.datasets.files import shown
from agreid_plugin.errors import InputError, first_line
from agreid_plugin.retrieval.index.entries import Entry
from agreid_plugin.types import UNKNOWN, view_word

KIND = "agreid_plugin features"
CHUNK = 4096  # images read together
COLUMNS: dict[str, Callable[[Entry], Any]] = {
    "path": lambda entry: entry.path,
    "view": lambda entry: view_word(entry.view),
    "camera": lambda entry: entry.camera,
    "pid": lambda entry: entry.pid,
    "platform": lambda entry: entry.platform,
    "time": lambda entry: np.nan if entry.time is None else entry.time,
    "tags": lambda entry: entry.tags_text,
}
"""Column -> what it has of an image."""
NUMBERS = {"camera": np.int64, "pid": np.int64, "time": np.float64}
"""Columns that are no text."""


def entry_of(row: Mapping[str, Any]) -> Entry:
    """Return the image of a row; what is None nobody knows."""
    view, time = row["view"], row["time"]
    return Entry(
        row["path"],
        VIEW_WORDS[view] if view else None,
        UNKNOWN if row["camera"] is None else row["camera"],
        UNKNOWN if row["pid"] is None else row["pid"],
        row["platform"] or "",
        None if time is None or np.isnan(time) else time,
        json.loads(row["tags"] or "{}"),
    )


def maker_in(path: Path, about: Any) -> str:
    """Return what made the features of a file, by what the file tells of them."""
    if not isinstance(about, dict) or about.get("kind") != KIND or not isinstance(about.get("maker"), str):
        raise InputError(f"{path} has no features that 'fastreid extract' wrote")
    return about["maker"]


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Say in one line what is wrong with a file, however deep in a library that is found out."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # zip, zlib, numpy and arrow raise a dozen kinds, depending on where it is broken
        raise InputError(f"{path}: not features of 'fastreid extract': {shown(first_line(error))}") from error
