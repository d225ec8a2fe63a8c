"""Features in a parquet file, a group of rows for each chunk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from agreid_plugin.errors import InputError
from agreid_plugin.retrieval.feature_files.columns import CHUNK, COLUMNS, NUMBERS, entry_of, maker_in, told
from agreid_plugin.retrieval.index.entries import MadeChunk
from agreid_plugin.types import UNKNOWN


def require() -> Any:
    """Return the library, of which parquet is a part, or refuse to go on without it."""
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError:
        raise InputError(
            "parquet needs pyarrow, which is not installed: pip install pyarrow, or name a file .npz"
        ) from None


def write(path: Path, chunks: Callable[[], Iterator[MadeChunk]], about: dict[str, Any]) -> None:
    """Write chunks; see `write_features`."""
    pa, writer = require(), None
    try:
        for chunk in chunks():
            table = _table(chunk, about)
            writer = writer or pa.parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def read(path: Path) -> tuple[str, Iterator[MadeChunk]]:
    """Return what made the features, and the chunks; see `read_features`."""
    with told(path), require().parquet.ParquetFile(path) as file:
        maker = maker_in(path, json.loads((file.schema_arrow.metadata or {}).get(b"about", b"{}")))
    return maker, _chunks(path)


def _table(chunk: MadeChunk, about: dict[str, Any]) -> Any:
    pa = require()
    kinds = {name: pa.from_numpy_dtype(NUMBERS[name]) if name in NUMBERS else pa.string() for name in COLUMNS}
    arrays = {
        name: pa.array([_known(tell(entry)) for entry in chunk.entries], kinds[name]) for name, tell in COLUMNS.items()
    }
    vectors = np.ascontiguousarray(chunk.vectors, dtype=np.float32)
    arrays["features"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    return pa.table(arrays).replace_schema_metadata({"about": json.dumps(about)})


def _known(value: Any) -> Any:
    """Return a value, None for one that stands for nothing."""
    return None if value in ("", UNKNOWN) or value != value else value


def _chunks(path: Path) -> Iterator[MadeChunk]:
    with told(path), require().parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(CHUNK):
            vectors = np.array(batch.column("features").flatten()).reshape(len(batch), -1)
            yield MadeChunk([entry_of(row) for row in batch.select(list(COLUMNS)).to_pylist()], vectors)
