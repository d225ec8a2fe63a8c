"""Feature files for others to read: a gallery's features with the labels of its images, as npz or parquet.

An npz has the arrays `features` (N, D), `path`, `view` (`aerial`, `ground` or empty), `camera`, `pid` (-1 if unknown),
`platform`, `time` (seconds since 1970, NaN), `tags` (JSON) and `about` (JSON, as bytes); a parquet file has columns of
the same names, with nulls, and `about` in its metadata. Neither holds anything that runs code when it is read. Both are
written and read chunk by chunk.

Shapes: N images, D width.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

from agreid_plugin.data.datasets.custom import VIEW_WORDS
from agreid_plugin.data.files import parse_json_bytes, require_existing, shorten
from agreid_plugin.errors import InputError, first_line
from agreid_plugin.evaluation.features import load_features
from agreid_plugin.retrieval.index.entries import Entry, VectorChunk
from agreid_plugin.types import UNKNOWN, view_word

ENDINGS = (".npz", ".parquet")
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
"""Column -> its value of an entry."""
NUMBERS = {"camera": np.int64, "pid": np.int64, "time": np.float64}
"""Columns of numbers -> their type."""
FEATURES = np.dtype("<f4")


def check_ending(path: Path) -> None:
    """Refuse a name with another ending, and parquet without its library."""
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"{path}: features are in files that end with {' or '.join(ENDINGS)}")
    if path.suffix.lower() == ".parquet":
        require_pyarrow()


def write_features(path: Path, ending: str, chunks: Callable[[], Iterator[VectorChunk]], about: dict[str, Any]) -> None:
    """Write chunks to a file.

    Args:
        path: the file, which is replaced.
        ending: one of `ENDINGS`, which chooses the format.
        chunks: returns the chunks, one image or more each; called several times, since an npz is written by columns.
        about: metadata of all features, with the `fingerprint`.
    """
    write = write_parquet if ending.lower() == ".parquet" else write_npz
    write(path, chunks, {"kind": KIND, **about})


def read_features(path: str | Path) -> tuple[str, Iterator[VectorChunk]]:
    """Return the fingerprint of the model that made the features, and the images chunk by chunk.

    Files of `fastreid eval --save-features` can be read, too; they name no model.

    Raises:
        InputError: the file is missing, damaged, or something else.

    Example:
        >>> import numpy as np
        >>> from tempfile import TemporaryDirectory
        >>> chunk = VectorChunk([Entry("a.jpg", camera=3), Entry("b.jpg")], np.eye(2))
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "features.npz")
        ...     write_features(file, ".npz", lambda: iter([chunk]), {"fingerprint": "a model"})
        ...     fingerprint, chunks = read_features(file)
        ...     (again,) = chunks
        >>> fingerprint, [(entry.path, entry.camera) for entry in again.entries], again.vectors.tolist()
        ('a model', [('a.jpg', 3), ('b.jpg', -1)], [[1.0, 0.0], [0.0, 1.0]])
    """
    path = require_existing(path)
    check_ending(path)
    if path.suffix.lower() == ".parquet":
        return read_parquet(path)
    with readable_errors(path), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    return ("", _read_evaluation(path)) if "image_0.npy" in names else read_npz(path)


def _read_evaluation(path: Path) -> Iterator[VectorChunk]:
    features = load_features(path)
    if len(features.images) > 1:
        raise InputError(f"{path} has {len(features.images)} kinds of features of an image; an index takes one")
    for start in range(0, len(features.records), CHUNK):
        part = slice(start, start + CHUNK)
        yield VectorChunk([Entry.from_record(record) for record in features.records[part]], features.images[0][part])


def build_entry(row: Mapping[str, Any]) -> Entry:
    """Return the entry of a row, in which None stands for unknown."""
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


def read_fingerprint(path: Path, about: Any) -> str:
    """Return the model's fingerprint from a file's metadata."""
    if not isinstance(about, dict) or about.get("kind") != KIND or not isinstance(about.get("fingerprint"), str):
        raise InputError(f"{path} has no features that 'fastreid extract' wrote")
    return about["fingerprint"]


@contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Raise any library's error about a file as one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # zip, zlib, numpy and arrow raise a dozen kinds, depending on where it is broken
        raise InputError(f"{path}: not features of 'fastreid extract': {shorten(first_line(error))}") from error


def write_npz(path: Path, chunks: Callable[[], Iterator[VectorChunk]], about: dict[str, Any]) -> None:
    """Write chunks; see `write_features`."""
    count, width, longest = _text_sizes(chunks())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        blocks = (np.asarray(chunk.vectors, dtype=FEATURES) for chunk in chunks())
        _write_array(archive, "features", FEATURES, (count, width), blocks)
        archive.compression = zipfile.ZIP_DEFLATED  # every text takes as much space as the longest
        for name in COLUMNS:
            kind = np.dtype(NUMBERS[name] if name in NUMBERS else f"<U{longest[name]}")
            _write_array(archive, name, kind, (count,), _column(chunks(), name, kind))
        metadata = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        _write_array(archive, "about", metadata.dtype, metadata.shape, [metadata])


def read_npz(path: Path) -> tuple[str, Iterator[VectorChunk]]:
    """Return the model's fingerprint, and the chunks; see `read_features`."""
    with readable_errors(path), zipfile.ZipFile(path) as archive, archive.open("about.npy") as file:
        fingerprint = read_fingerprint(path, parse_json_bytes(np.lib.format.read_array(file, allow_pickle=False), path))
    return fingerprint, _npz_chunks(path)


def _text_sizes(chunks: Iterator[VectorChunk]) -> tuple[int, int, dict[str, int]]:
    """Return N, D, and the length of the longest text of each column."""
    count, width, longest = 0, 0, {name: 1 for name in COLUMNS if name not in NUMBERS}
    for chunk in chunks:
        count, width = count + len(chunk.entries), chunk.vectors.shape[1]
        for name in longest:
            longest[name] = max(longest[name], *(len(COLUMNS[name](entry)) for entry in chunk.entries))
    return count, width, longest


def _column(chunks: Iterator[VectorChunk], name: str, kind: np.dtype) -> Iterator[np.ndarray]:
    return (np.array([COLUMNS[name](entry) for entry in chunk.entries], dtype=kind) for chunk in chunks)


def _write_array(archive: zipfile.ZipFile, name: str, kind: np.dtype, shape: tuple, blocks: Any) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array_header_2_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block).tobytes())


def _npz_chunks(path: Path) -> Iterator[VectorChunk]:
    with readable_errors(path), zipfile.ZipFile(path) as archive:
        arrays = {name: _Rows(archive.open(f"{name}.npy")) for name in ("features", *COLUMNS)}
        if len({rows.shape[0] for rows in arrays.values()}) > 1:
            raise ValueError("columns of different lengths")
        for _ in range(0, arrays["features"].shape[0], CHUNK):
            part = {name: rows.read(CHUNK) for name, rows in arrays.items()}
            columns = zip(*(part[name].tolist() for name in COLUMNS), strict=True)
            yield VectorChunk([build_entry(dict(zip(COLUMNS, row, strict=True))) for row in columns], part["features"])


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


def require_pyarrow() -> Any:
    """Return the library, of which parquet is a part, or refuse to go on without it."""
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError:
        raise InputError(
            "parquet needs pyarrow, which is not installed: pip install pyarrow, or name a file .npz"
        ) from None


def write_parquet(path: Path, chunks: Callable[[], Iterator[VectorChunk]], about: dict[str, Any]) -> None:
    """Write chunks; see `write_features`."""
    pa, writer = require_pyarrow(), None
    try:
        for chunk in chunks():
            table = _table(chunk, about)
            writer = writer or pa.parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def read_parquet(path: Path) -> tuple[str, Iterator[VectorChunk]]:
    """Return the model's fingerprint, and the chunks; see `read_features`."""
    with readable_errors(path), require_pyarrow().parquet.ParquetFile(path) as file:
        fingerprint = read_fingerprint(path, json.loads((file.schema_arrow.metadata or {}).get(b"about", b"{}")))
    return fingerprint, _parquet_chunks(path)


def _table(chunk: VectorChunk, about: dict[str, Any]) -> Any:
    pa = require_pyarrow()
    kinds = {name: pa.from_numpy_dtype(NUMBERS[name]) if name in NUMBERS else pa.string() for name in COLUMNS}
    arrays = {
        name: pa.array([_null_if_unknown(column(entry)) for entry in chunk.entries], kinds[name])
        for name, column in COLUMNS.items()
    }
    vectors = np.ascontiguousarray(chunk.vectors, dtype=np.float32)
    arrays["features"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    return pa.table(arrays).replace_schema_metadata({"about": json.dumps(about)})


def _null_if_unknown(value: Any) -> Any:
    """Return a value, None for one that stands for unknown."""
    return None if value in ("", UNKNOWN) or value != value else value


def _parquet_chunks(path: Path) -> Iterator[VectorChunk]:
    with readable_errors(path), require_pyarrow().parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(CHUNK):
            vectors = np.array(batch.column("features").flatten()).reshape(len(batch), -1)
            yield VectorChunk([build_entry(row) for row in batch.select(list(COLUMNS)).to_pylist()], vectors)
