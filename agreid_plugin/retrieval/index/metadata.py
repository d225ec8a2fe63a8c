"""Metadata table of an index: images with their labels, chunks that are in, checksums of the other files.

One SQLite file, and the only place where a change becomes true: vectors and structures are written first, and count
once a transaction here says so. A row of the table has the number of its vector.

A program that is killed in a transaction leaves a rollback journal beside the file, and the next one that reads has to
undo the change with it. SQLite does that by itself for a connection that may write, so readers open the file for
writing, too. Where the system does not allow that, SQLite opens it to read, and a journal is refused in a line. (A
write-ahead log has nothing to undo, but needs shared memory and two more files, which fails on network file systems
and in folders that cannot be written. To undo the change in a copy, a reader would have to open the file once more, and
closing it would drop the locks of all connections that this process has to it.)

A reader sees the state before a transaction until its commit, for which it waits. A commit waits for readers in turn,
so nothing that takes long belongs in a transaction.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from agreid_plugin.errors import InputError, first_line
from agreid_plugin.retrieval.index.base import VERSION
from agreid_plugin.retrieval.index.entries import FIELDS, Entry, Where

APPLICATION = 0x41475249  # SQLite's place for whose file this is
WAIT = 30  # seconds for another connection to finish
MAX_ROWS = 500  # rows asked for together
SCHEMA = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE chunks (key TEXT PRIMARY KEY, images INTEGER NOT NULL);
CREATE TABLE images (
    row INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, view INTEGER NOT NULL, camera INTEGER NOT NULL,
    pid INTEGER NOT NULL, platform TEXT NOT NULL, time REAL, tags TEXT NOT NULL
);
"""
INFO_TYPES = {
    **dict.fromkeys(("width", "vectors", "checksum", "number", "sum"), (int,)),
    "fingerprint": (str,),
    "kind": (str, NoneType),
    "complete": (bool,),
    "structure": (dict, NoneType),
}
"""Field of the whole index -> its types."""
STRUCTURE_TYPES = {
    **dict.fromkeys(("number", "size", "checksum", "covered", "effort"), (int,)),
    "file": (str,),
    "kind": (str,),
    "recall": (int, float, NoneType),
    "held_out": (list,),
}
STRUCTURE_FILE = re.compile(r"structure-\d+\.faiss")
COLUMNS = ", ".join(FIELDS)


class MetadataTable:
    """The table in a file, opened; any thread may ask, one at a time.

    Args:
        path: the file.
    """

    def __init__(self, path: Path):
        self.path, self._lock = path, threading.RLock()
        with self._readable_errors():
            self._base = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw", WAIT, uri=True, isolation_level=None, check_same_thread=False
            )
            self._base.execute("PRAGMA cache_spill = OFF")  # which would lock readers out before the commit
        with self.transaction():
            self._check_version()

    @classmethod
    def create(cls, path: Path, about: dict[str, Any]) -> None:
        """Make a table without images, with fields of the whole index."""
        base = sqlite3.connect(path, isolation_level=None)
        base.executescript(f"PRAGMA application_id={APPLICATION}; PRAGMA user_version={VERSION}; {SCHEMA}")
        base.close()
        table = cls(path)
        with table.transaction(write=True):
            table.store(sum=0, **about)
        table.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._base.close()

    @contextmanager
    def transaction(self, write: bool = False) -> Iterator[None]:
        """Make everything in the block one transaction, or part of the one around it: all becomes true, or nothing."""
        with self._lock, self._readable_errors():
            first = not self._base.in_transaction  # a transaction is of this thread, which has the lock
            try:
                if first:
                    self._base.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield
                if first:
                    self._base.execute("COMMIT")
            except BaseException:
                if first and self._base.in_transaction:  # SQLite may have ended it, as when the disk is full
                    self._base.execute("ROLLBACK")
                raise

    def about(self) -> dict[str, Any]:
        """Return the fields of the whole index."""
        with self.transaction():
            about = {key: json.loads(value) for key, value in self._query("SELECT key, value FROM about")}
            _check_types(about, INFO_TYPES)
            if (structure := about["structure"]) is not None:
                _check_types(structure, STRUCTURE_TYPES)
                if not STRUCTURE_FILE.fullmatch(structure["file"]):  # its folder is this one, whatever it says
                    raise ValueError("wrong file")
        return about

    def store(self, **values: Any) -> None:
        """Store fields of the whole index."""
        rows = [(key, json.dumps(value)) for key, value in values.items()]
        self._base.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", rows)

    def has_chunk(self, key: str) -> bool:
        """Whether a chunk is in."""
        return bool(self._query("SELECT 1 FROM chunks WHERE key = ?", key))

    def put_chunk(self, key: str, images: int) -> None:
        """Note that a chunk is in."""
        self._base.execute("INSERT OR REPLACE INTO chunks VALUES (?, ?)", (key, images))

    def chunks(self) -> int:
        """Return how many chunks are in."""
        return self._query("SELECT count(*) FROM chunks")[0][0]

    def insert(self, first: int, entries: Sequence[Entry]) -> None:
        """Keep images whose vectors start at a row; those of the same paths are forgotten."""
        if not entries:
            return  # no path is every path to `delete`
        self.delete(Where(paths=tuple(entry.path for entry in entries)))
        rows = [(first + place, *entry.fields) for place, entry in enumerate(entries)]
        self._base.executemany("INSERT INTO images VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self._change_sum(rows, 1)

    def delete(self, where: Where) -> int:
        """Forget images, and return how many."""
        condition, values = where.sql()
        rows = self._query(f"SELECT row, {COLUMNS} FROM images WHERE {condition}", *values)
        self._base.executemany("DELETE FROM images WHERE row = ?", [row[:1] for row in rows])
        self._change_sum(rows, -1)
        return len(rows)

    def renumber(self, rows: np.ndarray) -> None:
        """Give the images, of which `rows` has the numbers in ascending order, the numbers from 0 on."""
        moved = [(new, int(old)) for new, old in enumerate(rows) if new != old]
        # No number is taken when its turn comes: all below it have moved already.
        self._base.executemany("UPDATE images SET row = ? WHERE row = ?", moved)
        self.store(sum=_checksum(self._all_rows()))

    def count(self) -> int:
        """Return how many images there are."""
        return self._query("SELECT count(*) FROM images")[0][0]

    def rows(self, where: Where) -> np.ndarray:
        """Return the rows of the images that meet the conditions, ascending."""
        condition, values = where.sql()
        with self.transaction():
            found = self._base.execute(f"SELECT row FROM images WHERE {condition} ORDER BY row", values)
            return np.fromiter((row for (row,) in found), dtype=np.int64)

    def entries(self, rows: Iterable[int]) -> dict[int, Entry]:
        """Return the images of rows."""
        rows, found = sorted(set(rows)), {}
        with self.transaction():
            for start in range(0, len(rows), MAX_ROWS):
                part = json.dumps([int(row) for row in rows[start : start + MAX_ROWS]])
                wanted = "row IN (SELECT value FROM json_each(?))"
                for row, *values in self._query(f"SELECT row, {COLUMNS} FROM images WHERE {wanted}", part):
                    found[row] = Entry.from_fields(values)
        return found

    def check_rows(self) -> None:
        """Refuse images without a vector, and a structure of more vectors than there are."""
        with self.transaction():
            about = self.about()
            last = self._query("SELECT max(row) FROM images")[0][0]
            if max(last or 0, (about["structure"] or {}).get("covered", 0) - 1) >= max(about["vectors"], 1):
                raise sqlite3.DatabaseError("more images than vectors")

    def check(self) -> None:
        """Compare the images with their checksum."""
        with self.transaction():
            intact = self._base.execute("PRAGMA quick_check").fetchone()[0] == "ok"
            if not intact or _checksum(self._all_rows()) != self.about()["sum"]:
                raise sqlite3.DatabaseError("wrong checksum")

    def _check_version(self) -> None:
        if self._query("PRAGMA application_id")[0][0] != APPLICATION:
            raise InputError(f"{self.path} is no table of a gallery index: name another folder")
        version = self._query("PRAGMA user_version")[0][0]
        if version != VERSION:
            raise InputError(
                f"{self.path} is of version {version}, this program reads {VERSION}: build the index again"
            )

    def _all_rows(self) -> Iterator[tuple]:
        return self._base.execute(f"SELECT row, {COLUMNS} FROM images")

    def _change_sum(self, rows: Sequence[tuple], sign: int) -> None:
        self.store(sum=(self.about()["sum"] + sign * _checksum(rows)) % 2**62)

    def _query(self, question: str, *values: Any) -> list[tuple]:
        with self.transaction():
            return self._base.execute(question, values).fetchall()

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        """Raise what is wrong with the file as one line."""
        try:
            yield
        except sqlite3.ProgrammingError as error:  # closed
            raise InputError(f"{self.path}: {first_line(error)}") from None
        except sqlite3.OperationalError as error:  # locked, no permission
            reason = first_line(error)
            if "locked" not in reason and os.path.exists(f"{self.path}-journal"):
                reason = (
                    "a change that was cut off has to be undone, and this program may not write here: run "
                    f"`fastreid index info --index {self.path.parent}` as a user who may, or copy the folder"
                )
            raise InputError(f"{self.path}: {reason}") from None
        except InputError:
            raise
        except (sqlite3.DatabaseError, ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{self.path} is damaged ({first_line(error)}): build the index again") from None


def _check_types(fields: dict[str, Any], wanted: dict[str, tuple[type, ...]]) -> None:
    """Refuse missing fields and values of other types."""
    for name, kinds in wanted.items():
        if name not in fields:
            raise ValueError(f"no {name}")
        value = fields[name]
        if type(value) not in kinds or (kinds == (int,) and value < 0) or (value == 0 and name == "width"):
            raise ValueError(f"wrong {name}")


def _checksum(rows: Iterable[tuple]) -> int:
    """Return a checksum of rows that does not depend on their order, so that it can follow every change."""
    return sum(zlib.crc32(repr(tuple(row)).encode(errors="surrogateescape")) for row in rows) % 2**62
