"""Gallery indexes: build once, add, remove, search; in a folder by faiss, or by Milvus."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from agreid_plugin.errors import InputError
from agreid_plugin.retrieval.index import folder
from agreid_plugin.retrieval.index.base import KINDS, GalleryIndex, Info, check_kind, search_queries
from agreid_plugin.retrieval.index.entries import ANY, Chunk, Entry, Match, SearchResult, Where, parse_time
from agreid_plugin.retrieval.index.faiss_backend import FaissIndex
from agreid_plugin.retrieval.index.milvus_backend import MilvusIndex
from agreid_plugin.retrieval.index.milvus_client import Milvus, is_lite, is_milvus

__all__ = [
    "ANY",
    "KINDS",
    "Chunk",
    "Entry",
    "GalleryIndex",
    "Info",
    "Match",
    "SearchResult",
    "Where",
    "build_index",
    "check_fingerprint",
    "open_index",
    "parse_time",
    "search_queries",
]


def build_index(
    uri: str | Path, chunks: Iterable[Chunk], *, kind: str | None = None, fingerprint: str = "", token: str = ""
) -> Info:
    """Build an index, or go on with a build that was interrupted: chunks that are in are skipped.

    Args:
        uri: a folder (faiss), `gallery.db` (Milvus Lite) or `http://host:19530` (Milvus); `#name` behind the last two
            chooses a collection.
        chunks: the images, some at a time.
        kind: one of `KINDS`; None chooses by size, see `kinds`.
        fingerprint: hash of the model that makes the vectors; a build goes on only with the same one.
        token: `user:password` of a Milvus server that asks for it.

    Raises:
        InputError: the index exists and is finished, or cannot be built; see its line.

    Example:
        >>> import numpy as np
        >>> from tempfile import TemporaryDirectory
        >>> images = [Entry("a.jpg", camera=1), Entry("b.jpg", camera=2), Entry("c.jpg", camera=2)]
        >>> vectors = np.array([[1.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
        >>> with TemporaryDirectory() as folder:
        ...     info = build_index(f"{folder}/gallery", [Chunk(images, vectors)])
        ...     with open_index(f"{folder}/gallery") as index:
        ...         best = index.search(vectors[:1], k=2)[0]
        ...         other = index.search(vectors[:1], k=2, where=Where(cameras=(2,)))[0]
        >>> info.backend, info.kind, info.images
        ('faiss', 'flat', 3)
        >>> [(match.entry.path, round(match.score, 4)) for match in best]
        [('a.jpg', 1.0), ('b.jpg', 0.6)]
        >>> [match.entry.path for match in other]
        ['b.jpg', 'c.jpg']
    """
    check_kind(kind)
    uri, chunks = str(uri), iter(chunks)
    if _exists(uri, token):
        index = _open(uri, write=True, token=token, building=True)
    else:
        width, chunks = _peek_width(chunks, uri)
        index = _create(uri, width, fingerprint, kind, token)
    with index:
        _check_resume(index, kind, fingerprint)
        index.build(chunks)
        return index.info()


def open_index(
    uri: str | Path, *, write: bool = False, fingerprint: str | None = None, token: str = ""
) -> FaissIndex | MilvusIndex:
    """Open an index to search, or to change as well.

    Args:
        uri: as in `build_index`.
        write: whether it is going to be changed.
        fingerprint: hash of the model; vectors of another one are refused. None takes any.
        token: `user:password` of a Milvus server that asks for it.

    Raises:
        InputError: there is none, or it is damaged, unfinished, of another version or another fingerprint.
    """
    index = _open(str(uri), write=write, token=token)
    try:
        check_fingerprint(index.info(), fingerprint)
    except BaseException:
        index.close()
        raise
    return index


def _exists(uri: str, token: str) -> bool:
    if not is_milvus(uri):
        return os.path.isfile(Path(uri) / folder.TABLE)
    if is_lite(uri) and not Path(uri.partition("#")[0]).exists():
        return False
    milvus = Milvus(uri, token)
    try:
        return milvus.exists
    finally:
        milvus.close()


def _open(uri: str, write: bool, token: str, building: bool = False) -> FaissIndex | MilvusIndex:
    if is_milvus(uri):
        return MilvusIndex(uri, write, token, building)
    return FaissIndex(uri, write, building)


def _create(uri: str, width: int, fingerprint: str, kind: str | None, token: str) -> FaissIndex | MilvusIndex:
    if is_milvus(uri):
        return MilvusIndex.create(uri, width, fingerprint, kind, token)
    return FaissIndex.create(uri, width, fingerprint, kind)


def _peek_width(chunks: Iterator[Chunk], uri: str) -> tuple[int, Iterator[Chunk]]:
    """Return the width of the first vectors, and the chunks from the first on."""
    seen = []
    for chunk in chunks:
        seen.append(chunk.with_vectors())
        if seen[-1].entries:
            return seen[-1].vectors.shape[1], chain(seen, chunks)
    raise InputError(f"index {uri} would be empty: {'no image could be read' if seen else 'no image was given'}")


def _check_resume(index: FaissIndex | MilvusIndex, kind: str | None, fingerprint: str) -> None:
    info = index.info()
    if info.complete:
        raise InputError(f"index {info.uri} is finished: add to it, or remove it first")
    check_fingerprint(info, fingerprint)
    if index.requested_kind != kind:
        was, now = index.requested_kind or "chosen by size", kind or "chosen by size"
        raise InputError(f"index {info.uri} was begun with kind {was}, not {now}: name the same, or remove it first")


def check_fingerprint(info: Info, fingerprint: str | None) -> None:
    """Refuse an index whose vectors another model made; None takes any."""
    if fingerprint is not None and info.fingerprint != fingerprint:
        raise InputError(
            f"index {info.uri} has vectors of other weights or another configuration "
            f"({info.fingerprint[:12]!r}, not {fingerprint[:12]!r}): build it again with these"
        )
