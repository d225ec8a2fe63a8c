"""Files that are there in full or not at all, whatever happens to the process or the machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from agreid_plugin.errors import InputError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a draft beside `path` to write to: it becomes `path` when the block ends, and is gone if that fails.

    The draft is on the disk before it takes the name, and so is the name before the block is left.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        _to_disk(draft)
        draft.replace(path)
        if os.name == "posix":  # elsewhere a folder cannot be opened
            _to_disk(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def told_unwritten(path: str | Path) -> AbstractContextManager[None]:
    """Say in one line why a file cannot be written."""
    return told_undone(path, "written")


@contextmanager
def told_undone(path: str | Path, deed: str) -> Iterator[None]:
    """Say in one line why a file cannot be `read`, or whatever is done to it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be {deed}: {error.strerror or error}") from None


def remove_drafts(folder: Path, names: str) -> None:
    """Remove the drafts that killed processes have left of files whose names match a regular expression."""
    pattern = re.compile(rf"\.({names})\.\d+")
    for path in folder.glob(".*"):
        if pattern.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
