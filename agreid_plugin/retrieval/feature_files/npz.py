"""Features in an npz file, column after column, each some rows at a time."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from agreid_plugin.data.datasets.arrays import told_in
from agreid_plugin.retrieval.feature_files.columns import CHUNK, COLUMNS, NUMBERS, entry_of, maker_in, told
from agreid_plugin.retrieval.index.entries import MadeChunk

FEATURES = np.dtype("<f4")


def write(path: Path, chunks: Callable[[], Iterator[MadeChunk]], about: dict[str, Any]) -> None:
    """Write chunks; see `write_features`."""
    count, width, longest = _sizes(chunks())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        blocks = (np.asarray(chunk.vectors, dtype=FEATURES) for chunk in chunks())
        _write(archive, "features", FEATURES, (count, width), blocks)
        archive.compression = zipfile.ZIP_DEFLATED  # every text takes the room of the longest
        for name in COLUMNS:
            kind = np.dtype(NUMBERS[name] if name in NUMBERS else f"<U{longest[name]}")
            _write(archive, name, kind, (count,), _column(chunks(), name, kind))
        told_of_all = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        _write(archive, "about", told_of_all.dtype, told_of_all.shape, [told_of_all])


def read(path: Path) -> tuple[str, Iterator[MadeChunk]]:
    """Return what made the features, and the chunks; see `read_features`."""
    with told(path), zipfile.ZipFile(path) as archive, archive.open("about.npy") as file:
        maker = maker_in(path, told_in(np.lib.format.read_array(file, allow_pickle=False), path))
    return maker, _chunks(path)


def _sizes(chunks: Iterator[MadeChunk]) -> tuple[int, int, dict[str, int]]:
    """Return N, D, and the length of the longest text of each column."""
    count, width, longest = 0, 0, {name: 1 for name in COLUMNS if name not in NUMBERS}
    for chunk in chunks:
        count, width = count + len(chunk.entries), chunk.vectors.shape[1]
        for name in longest:
            longest[name] = max(longest[name], *(len(COLUMNS[name](entry)) for entry in chunk.entries))
    return count, width, longest


def _column(chunks: Iterator[MadeChunk], name: str, kind: np.dtype) -> Iterator[np.ndarray]:
    return (np.array([COLUMNS[name](entry) for entry in chunk.entries], dtype=kind) for chunk in chunks)


def _write(archive: zipfile.ZipFile, name: str, kind: np.dtype, shape: tuple, blocks: Any) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array_header_2_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block).tobytes())


def _chunks(path: Path) -> Iterator[MadeChunk]:
    with told(path), zipfile.ZipFile(path) as archive:
        arrays = {name: _Rows(archive.open(f"{name}.npy")) for name in ("features", *COLUMNS)}
        if len({rows.shape[0] for rows in arrays.values()}) > 1:
            raise ValueError("columns of different lengths")
        for _ in range(0, arrays["features"].shape[0], CHUNK):
            part = {name: rows.read(CHUNK) for name, rows in arrays.items()}
            told_of = zip(*(part[name].tolist() for name in COLUMNS), strict=True)
            yield MadeChunk([entry_of(dict(zip(COLUMNS, row, strict=True))) for row in told_of], part["features"])


class _Rows:
    """An array in an archive, read some rows at a time."""

    def __init__(self, file: IO[bytes]):
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, in_columns, self._kind = read(file)
        self._file = file
        self._bytes = self._kind.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))
        if in_columns or self._kind.hasobject or not self._bytes:
            raise ValueError("an array of another kind")

    def read(self, rows: int) -> np.ndarray:
        data = self._file.read(rows * self._bytes)
        return np.frombuffer(bytearray(data), dtype=self._kind).reshape(-1, *self.shape[1:])  # one that may be written
