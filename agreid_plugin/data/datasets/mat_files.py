"""Is a .mat file whole? scipy does not look at the types of a file's parts, and a wrong one ends the whole program."""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from agreid_plugin.data.atomic_write import told_undone
from agreid_plugin.errors import InputError

MOST_BYTES = 2**28  # of a part that was compressed
DEEPEST = 16  # structs in structs
ITEM_BYTES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8}  # of the types of numbers
INT32, UINT32, MATRIX, COMPRESSED = 5, 6, 14, 15
UNICODE = (16, 17, 18)
CELL, STRUCT, TEXT = 1, 2, 4  # classes of a matrix
NUMBERS = range(6, 16)
IS_COMPLEX = 0x0800


class _Damaged(Exception):
    """What is wrong."""


@dataclass
class _Parts:
    """The parts of a stretch of bytes, taken one after the other.

    Attributes:
        content: the bytes.
        order: of the bytes of a number, as `struct` writes it.
        place: where the next part begins.
    """

    content: bytes
    order: str
    place: int = 0

    def __bool__(self) -> bool:
        return self.place < len(self.content)

    def take(self) -> tuple[int, bytes]:
        """Return the type and the bytes of the next part."""
        tag = self.content[self.place : self.place + 8]
        if len(tag) < 8:
            raise _Damaged("it ends in the middle")
        kind, size = struct.unpack(f"{self.order}II", tag)
        if kind >> 16:  # up to four bytes stand in the tag itself
            kind, size = kind & 0xFFFF, kind >> 16
            found, self.place = tag[4 : 4 + size], self.place + 8
        else:
            start = self.place + 8
            found = self.content[start : start + size]
            self.place = start + size + (-size % 8 if kind != COMPRESSED else 0)
        if len(found) < size:
            raise _Damaged("it ends in the middle, or a part has a wrong size")
        return kind, found

    def take_numbers(self, kind: int) -> tuple[int, ...]:
        """Return the next part, which has to be of 32-bit numbers."""
        found, content = self.take()
        if found not in (INT32, UINT32) or len(content) % 4:  # some programs write one for the other
            raise _Damaged("a part is of a wrong type")
        return struct.unpack(f"{self.order}{len(content) // 4}{'i' if kind == INT32 else 'I'}", content)


def refuse_damaged(path: Path) -> None:
    """Refuse a .mat file whose parts are not what MATLAB's version 5 (and 7, which compresses) makes them."""
    with told_undone(path, "read"):
        content = path.read_bytes()
    try:
        order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
        if order is None or len(content) <= 128 or not any(content[:4]):
            raise _Damaged("save it in MATLAB with '-v7'")
        parts = _Parts(content[128:], order)
        while parts:
            kind, inside = parts.take()
            _check(*(_unpacked(inside, order) if kind == COMPRESSED else (kind, inside)), order, 0)
    except _Damaged as error:
        raise InputError(f"{path}: not a readable .mat file: {error}") from None


def _unpacked(content: bytes, order: str) -> tuple[int, bytes]:
    try:
        return _Parts(zlib.decompressobj().decompress(content, MOST_BYTES), order).take()
    except zlib.error:
        raise _Damaged("a part cannot be unpacked") from None


def _check(kind: int, content: bytes, order: str, depth: int) -> None:
    """Check a matrix: what it says it is, then its numbers, its text or the matrices inside."""
    if kind != MATRIX or depth > DEEPEST:
        raise _Damaged("a part is of a wrong type" if kind != MATRIX else "nested too deeply")
    if not content:
        return  # an empty one says nothing of itself
    parts = _Parts(content, order)
    flags = parts.take_numbers(UINT32)
    sizes = parts.take_numbers(INT32)
    parts.take()  # its name
    if len(flags) != 2 or len(sizes) < 2 or min(sizes) < 0:
        raise _Damaged("the size of a matrix is wrong")
    count, kind = math.prod(sizes), flags[0] & 0xFF
    if kind in (CELL, STRUCT):
        _check_inside(parts, count * (_fields(parts) if kind == STRUCT else 1), depth)
    elif kind == TEXT or kind in NUMBERS:
        for _ in range(2 if flags[0] & IS_COMPLEX else 1):
            _check_items(*parts.take(), count if kind != TEXT else None)
    else:
        raise _Damaged(f"it holds a matrix of class {kind}, which is neither numbers, text, cells nor a struct")


def _fields(parts: _Parts) -> int:
    """Return how many fields a struct has."""
    length = parts.take_numbers(INT32)
    _, names = parts.take()
    if len(length) != 1 or length[0] < 1 or len(names) % length[0]:
        raise _Damaged("the names of a struct's fields are wrong")
    return len(names) // length[0]


def _check_inside(parts: _Parts, count: int, depth: int) -> None:
    for _ in range(count):
        _check(*parts.take(), parts.order, depth + 1)


def _check_items(kind: int, content: bytes, count: int | None) -> None:
    if kind not in ITEM_BYTES and kind not in UNICODE:
        raise _Damaged("a part is of a wrong type")
    if count is not None and (kind in UNICODE or len(content) != count * ITEM_BYTES[kind]):
        raise _Damaged("a matrix has more or fewer numbers than it says")
