"""Features of a gallery with what is known of its images, as a file for others to read: npz or parquet.

An npz has the arrays `features` (N, D), `path`, `view` (`aerial`, `ground` or empty), `camera`, `pid` (-1 where nobody
knows), `platform`, `time` (seconds since 1970, NaN), `tags` (JSON) and `about` (JSON, as bytes); a parquet file has
columns of the same names, with nulls, and `about` in its metadata. Neither holds anything that runs code when it is
read. Both are written and read chunk by chunk.

Shapes: N images, D width.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agreid_plugin.data.datasets.files import existing
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.features import load_features
from agreid_plugin.retrieval.feature_files import npz, parquet
from agreid_plugin.retrieval.feature_files.columns import CHUNK, KIND, told
from agreid_plugin.retrieval.index.entries import Entry, MadeChunk

ENDINGS = (".npz", ".parquet")


def check_ending(path: Path) -> None:
    """Refuse a name that does not tell the kind of file, or tells one that cannot be had here."""
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"{path}: features are in files that end with {' or '.join(ENDINGS)}")
    if path.suffix.lower() == ".parquet":
        parquet.require()


def write_features(path: Path, ending: str, chunks: Callable[[], Iterator[MadeChunk]], about: dict[str, Any]) -> None:
    """Write chunks to a file.

    Args:
        path: the file, which is replaced.
        ending: tells its kind, one of `ENDINGS`.
        chunks: gives the chunks, one image or more each, each time it is called: an npz has column after column.
        about: what is known of all features; `maker` has to be among it.
    """
    writer = parquet if ending.lower() == ".parquet" else npz
    writer.write(path, chunks, {"kind": KIND, **about})


def read_features(path: str | Path) -> tuple[str, Iterator[MadeChunk]]:
    """Return what made the features of a file, and its images chunk by chunk.

    Files of `fastreid eval --save-features` can be read, too; nobody knows what made those.

    Raises:
        InputError: the file is missing, damaged, or something else.

    Example:
        >>> import numpy as np
        >>> from tempfile import TemporaryDirectory
        >>> chunk = MadeChunk([Entry("a.jpg", camera=3), Entry("b.jpg")], np.eye(2))
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "features.npz")
        ...     write_features(file, ".npz", lambda: iter([chunk]), {"maker": "a model"})
        ...     maker, chunks = read_features(file)
        ...     (again,) = chunks
        >>> maker, [(entry.path, entry.camera) for entry in again.entries], again.vectors.tolist()
        ('a model', [('a.jpg', 3), ('b.jpg', -1)], [[1.0, 0.0], [0.0, 1.0]])
    """
    path = existing(path)
    check_ending(path)
    if path.suffix.lower() == ".parquet":
        return parquet.read(path)
    with told(path), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    return ("", _of_evaluation(path)) if "image_0.npy" in names else npz.read(path)


def _of_evaluation(path: Path) -> Iterator[MadeChunk]:
    features = load_features(path)
    if len(features.images) > 1:
        raise InputError(f"{path} has {len(features.images)} kinds of features of an image; an index takes one")
    for start in range(0, len(features.records), CHUNK):
        part = slice(start, start + CHUNK)
        yield MadeChunk([Entry.of(record) for record in features.records[part]], features.images[0][part])
