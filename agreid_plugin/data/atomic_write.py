"""Atomic file writes, and one-line errors for files that cannot be read or written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from agreid_plugin.errors import InputError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path` to write to: it replaces `path` when the block ends without an error.

    The temporary file is synced to the disk before it takes the name, and so is the name before the block is left.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        _sync(draft)
        draft.replace(path)
        if os.name == "posix":  # elsewhere a folder cannot be opened
            _sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def write_error_context(path: str | Path) -> AbstractContextManager[None]:
    """Turn an OSError of writing a file into one line of input error."""
    return io_error_context(path, "written")


@contextmanager
def io_error_context(path: str | Path, deed: str) -> Iterator[None]:
    """Turn an OSError into one line of input error: which file cannot be `read`, `written` or handled otherwise."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be {deed}: {error.strerror or error}") from None


def remove_drafts(folder: Path, names: str) -> None:
    """Remove temporary files that killed processes left beside files whose names match a regular expression."""
    pattern = re.compile(rf"\.({names})\.\d+")
    for path in folder.glob(".*"):
        if pattern.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
