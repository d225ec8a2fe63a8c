"""MATLAB's .mat files, read by scipy after a check of the types and the sizes that scipy takes on trust.

scipy (1.17) uses a part's type as a place in a table, whether there is one or not: 32 of 600 files with up to four
damaged bytes ended the process by a signal. It also believes any size: 192 bytes of a file become a text of 1.4 GB.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scipy.io

from agreid_plugin.data.atomic_write import io_error_context
from agreid_plugin.errors import InputError, first_line

MAX_BYTES = 2**28  # of all parts together, unpacked
MAX_DEPTH = 16  # structs in structs
INT32, UINT32, MATRIX, COMPRESSED = 5, 6, 14, 15
NUMBERS = frozenset({1, 2, 3, 4, INT32, UINT32, 7, 9, 12, 13})
TEXTS = NUMBERS | {16, 17, 18}
"""Types of what a matrix of numbers, or one of characters, may hold."""
CELL, STRUCT, CHARACTERS, NUMERIC = 1, 2, 4, range(6, 16)
"""Classes of a matrix. The others are objects and functions of MATLAB, and sparse ones."""
IS_COMPLEX = 0x0800

Part = tuple[int, memoryview]


def read_mat(path: Path) -> dict[str, Any]:
    """Return the variables of a .mat file as MATLAB's versions 5 to 7 write it, a struct as a dict.

    Raises:
        InputError: it cannot be read, is damaged, or holds other than numbers, texts, cells and structs.
    """
    with io_error_context(path, "read"):
        content = path.read_bytes()
    try:
        _check_file(content)
        return scipy.io.loadmat(io.BytesIO(content), simplify_cells=True)
    except Exception as error:  # scipy raises half a dozen types, depending on where the file is damaged
        raise InputError(f"{path}: not a readable .mat file: {first_line(error)}") from None


def _check_file(content: bytes) -> None:
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if order is None or len(content) <= 128 or not all(content[:4]):
        raise ValueError("save it in MATLAB with '-v7'")
    left = MAX_BYTES
    for kind, inside in _split(memoryview(content)[128:], order):
        part = _unpack(inside, order, left) if kind == COMPRESSED else (kind, inside)
        left -= len(part[1])
        _check_matrix(part, order, 0)


def _unpack(content: memoryview, order: str, limit: int) -> Part:
    try:
        unpacked = zlib.decompressobj().decompress(content, limit + 1)
    except zlib.error:
        raise ValueError("a part cannot be unpacked") from None
    if len(unpacked) > limit:
        raise ValueError(f"its parts are larger than {MAX_BYTES:,} bytes")
    return next(_split(memoryview(unpacked), order))


def _split(content: memoryview, order: str) -> Iterator[Part]:
    """Yield type and bytes of each part, one after the other."""
    place = 0
    while place < len(content):
        if len(content) - place < 8:
            raise ValueError("it ends in the middle")
        kind, size = struct.unpack_from(f"{order}II", content, place)
        start, end = place + 8, place + 8 + size + (-size % 8 if kind != COMPRESSED else 0)
        if kind >> 16:  # up to four bytes stand in the tag itself
            kind, size, start, end = kind & 0xFFFF, kind >> 16, place + 4, place + 8
        if start + size > min(end, len(content)):
            raise ValueError("it ends in the middle, or a part has a wrong size")
        yield kind, content[start : start + size]
        place = end


def _check_matrix(part: Part, order: str, depth: int) -> None:
    """Check that a matrix has the parts that its class and its size ask for, of types that they may have."""
    kind, content = part
    if kind != MATRIX or depth > MAX_DEPTH:
        raise ValueError("a part is of a wrong type" if kind != MATRIX else "nested too deeply")
    if not content:
        return  # an empty matrix, which has no parts
    parts = list(_split(content, order))
    if len(parts) < 3:
        raise ValueError("a matrix ends before its name")
    flags, sizes, inside = _integers(parts[0], order), _integers(parts[1], order), parts[3:]
    count = math.prod(sizes)
    if len(flags) != 2 or len(sizes) < 2 or min(sizes) < 0 or count > len(content):
        raise ValueError("the size of a matrix is wrong")
    kind = flags[0] & 0xFF
    if kind == STRUCT:
        count, inside = count * _count_fields(inside, order), inside[2:]
    if kind in (CELL, STRUCT):
        if len(inside) != count:
            raise ValueError("a matrix has more or fewer parts than it says")
        for each in inside:
            _check_matrix(each, order, depth + 1)
    elif kind == CHARACTERS or kind in NUMERIC:
        types = TEXTS if kind == CHARACTERS else NUMBERS
        if len(inside) != (2 if flags[0] & IS_COMPLEX else 1) or not {found for found, _ in inside} <= types:
            raise ValueError("a part is of a wrong type, or missing")
    else:
        raise ValueError(f"it holds a matrix of class {kind}, which is neither numbers, text, cells nor a struct")


def _count_fields(inside: list[Part], order: str) -> int:
    length = _integers(inside[0], order) if len(inside) > 1 else ()
    if len(length) != 1 or length[0] < 1 or len(inside[1][1]) % length[0]:
        raise ValueError("the names of a struct's fields are wrong")
    return len(inside[1][1]) // length[0]


def _integers(part: Part, order: str) -> tuple[int, ...]:
    kind, content = part
    if kind not in (INT32, UINT32) or len(content) % 4:  # some programs write one for the other
        raise ValueError("a part is of a wrong type")
    return struct.unpack(f"{order}{len(content) // 4}{'i' if kind == INT32 else 'I'}", content)
