"""The files of an index in a folder: vectors one after another, checksums, and a lock for who writes.

Shapes: N vectors, D width.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from agreid_plugin.data.atomic_write import io_error_context, write_error_context
from agreid_plugin.errors import InputError

TABLE, LOCK = "gallery.sqlite", "writer.lock"
BYTES = 4  # of a float32
BLOCK = 16 * 2**20  # bytes read together
CHECK_UP_TO = 256 * 2**20
"""Files up to so many bytes are compared with their checksums whenever they are opened; larger ones by `check`."""


class VectorFile:
    """Vectors in a file of nothing else, to which more are appended.

    What lies behind the vectors that the table knows is left of a write that did not finish: the next overwrites it.

    Args:
        path: the file.
        width: D.
    """

    def __init__(self, path: Path, width: int):
        self.path, self.width = path, width

    def append(self, known: int, vectors: np.ndarray, checksum: int) -> int:
        """Write vectors, (N, D), behind the first `known`, and return the checksum of all."""
        data = np.ascontiguousarray(vectors, dtype="<f4").tobytes()
        with write_error_context(self.path), self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.truncate(known * self.width * BYTES)
            file.seek(0, os.SEEK_END)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # the table must not know of vectors that the disk does not have
        return zlib.crc32(data, checksum)

    def read(self, known: int) -> np.ndarray:
        """Return the first `known` vectors by memory map: (N, D)."""
        if not known:
            return np.empty((0, self.width), dtype=np.float32)
        check_size(self.path, known * self.width * BYTES, exact=False)
        return np.memmap(self.path, dtype="<f4", mode="r", shape=(known, self.width))

    def blocks(self, known: int, rows: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Give the first `known` vectors, or those of some rows, some at a time: (N, D)."""
        vectors, size = self.read(known), max(1, BLOCK // (self.width * BYTES))
        for start in range(0, known if rows is None else len(rows), size):
            wanted = slice(start, start + size) if rows is None else rows[start : start + size]
            yield np.array(vectors[wanted])

    def check(self, known: int, checksum: int) -> None:
        """Compare the first `known` vectors with their checksum."""
        check_size(self.path, known * self.width * BYTES, exact=False)
        check_checksum(self.path, known * self.width * BYTES, checksum)


def make_folder(path: Path) -> None:
    """Make a folder for an index; it may exist if nothing is in it but what an interrupted creation left."""
    with write_error_context(path):
        path.mkdir(parents=True, exist_ok=True)
        if any(name.name != LOCK and name.name[0] != "." for name in path.iterdir()):
            raise InputError(f"{path} is not empty and no gallery index: name another folder")


def remove_others(folder: Path, kept: Collection[str | None]) -> None:
    """Remove vectors and structures that nothing refers to, and what writes that did not finish left of them."""
    for pattern in ("vectors-*.f32", "structure-*.faiss", ".structure-*"):
        for path in folder.glob(pattern):
            if path.name not in kept:
                path.unlink()


def measure_size(folder: Path) -> int:
    """Return the bytes of all files in a folder, at any depth."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # another program may have removed it by now
            size += path.stat().st_size if path.is_file() else 0
    return size


def check_size(path: Path, size: int, exact: bool = True) -> None:
    """Refuse a file that is missing or shorter than it should be, or longer if that says something."""
    if not path.is_file():
        if size:
            raise InputError(f"{path} is missing: the index is damaged; build it again")
        return
    there = path.stat().st_size
    if there < size or (exact and there != size):
        raise InputError(f"{path} has {there} bytes instead of {size}: the index is damaged; build it again")


def check_checksum(path: Path, size: int, checksum: int) -> None:
    """Refuse a file whose first `size` bytes do not have a checksum."""
    if size and checksum_file(path, size) != checksum:
        raise InputError(f"{path} has a wrong checksum: the index is damaged; build it again")


def checksum_file(path: Path, size: int) -> int:
    """Return the checksum of the first `size` bytes of a file."""
    checksum = 0
    with io_error_context(path, "read"), path.open("rb") as file:
        while size and (data := file.read(min(size, BLOCK))):
            checksum = zlib.crc32(data, checksum)
            size -= len(data)
    return checksum


class WriterLock:
    """The right to change a folder's index, of which there is one; it ends with `release` or with the process.

    SQLite's lock is used, which works on every system and leaves nothing behind that a crash would make stale.
    """

    def __init__(self, folder: Path):
        try:
            self._base = sqlite3.connect(folder / LOCK, timeout=0, isolation_level=None, check_same_thread=False)
            self._base.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            busy = "locked" in str(error)
            reason = "is being changed by another program: wait until it has finished" if busy else f"{error}"
            raise InputError(f"index {folder} {reason}") from None
        except sqlite3.DatabaseError:
            raise InputError(f"{folder / LOCK} is damaged: remove it") from None

    def release(self) -> None:
        """Release the lock."""
        self._base.close()
