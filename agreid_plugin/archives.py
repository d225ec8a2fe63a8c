"""Zip files that are read by name, and never unpacked: which of them claim more than they can be meant to hold."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from pathlib import Path

from agreid_plugin.errors import InputError

ALWAYS_FINE = 2**30
"""Bytes that a small file may hold, compressed."""
MOST_TIMES = 20
"""How much more than its own size a file may hold beyond that: weights and features hardly shrink."""
BROKEN = (zipfile.BadZipFile, zlib.error, OSError, ValueError, EOFError, NotImplementedError, RuntimeError)
"""What Python's reader of zip files raises on one that is damaged or encrypted."""


def names_in(path: str | Path) -> list[str]:
    """Return the names in a zip file; none if it cannot be read as one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except BROKEN:
        return []


def refuse_bomb(path: str | Path) -> None:
    """Refuse a zip file that would fill the memory: small itself, huge once it is unpacked.

    Raises:
        InputError: it is one. A file that is no zip file passes.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            inside = sum(entry.file_size for entry in archive.infolist())
    except BROKEN:
        return
    size = Path(path).stat().st_size
    if inside > max(ALWAYS_FINE, MOST_TIMES * size):
        raise InputError(f"{path} was not read: a file of {size:,} bytes that claims to hold {inside:,}")


def is_tar(path: str | Path) -> bool:
    """Tell a tar archive."""
    try:
        return tarfile.is_tarfile(path)
    except (OSError, ValueError, EOFError):
        return False
