"""Other people's files: whether weight files may run code, and archives that claim to hold too much.

Archives are read by name and never unpacked.
"""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from pathlib import Path

from agreid_plugin.errors import InputError

OPTION = "--trust-checkpoint"
_trusted = False
SMALL_ARCHIVE = 2**30
"""Bytes that an archive may hold, however small it is itself."""
MAX_RATIO = 20
"""How much more than its own size a file may hold beyond that: weights and features hardly shrink."""
ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, OSError, ValueError, EOFError, NotImplementedError, RuntimeError)
"""What Python's reader of zip files raises on one that is damaged or encrypted."""


def trust(files: bool) -> None:
    """Let weight files run code in this process from now on, or forbid it again, which is the default."""
    global _trusted
    _trusted = files


def trusted() -> bool:
    """Return whether weight files may run code."""
    return _trusted


def archive_names(path: str | Path) -> list[str]:
    """Return the names in a zip file; none if it cannot be read as one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except ARCHIVE_ERRORS:
        return []


def refuse_bomb(path: str | Path) -> None:
    """Refuse a zip file that would fill the memory: small itself, huge once it is unpacked.

    Raises:
        InputError: it is one. A file that is no zip file passes.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            inside = sum(entry.file_size for entry in archive.infolist())
    except ARCHIVE_ERRORS:
        return
    size = Path(path).stat().st_size
    if inside > max(SMALL_ARCHIVE, MAX_RATIO * size):
        raise InputError(f"{path} was not read: a file of {size:,} bytes that claims to hold {inside:,}")


def is_tar(path: str | Path) -> bool:
    """Return whether a file is a tar archive."""
    try:
        return tarfile.is_tarfile(path)
    except (OSError, ValueError, EOFError):
        return False
