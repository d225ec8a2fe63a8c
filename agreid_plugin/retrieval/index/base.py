"""Base class of gallery indexes, for every backend.

Shapes: Q queries, D width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from agreid_plugin.errors import InputError, require_known
from agreid_plugin.evaluation.validation import FeatureArray, check_lengths
from agreid_plugin.retrieval.index.entries import ANY, Chunk, Match, SearchResult, VectorChunk, Where, unit_vectors

VERSION = 1
"""Version of an index's files: another one is refused."""
KINDS = ("flat", "ivf", "hnsw", "pq")
TIE = 1e-6
"""Cosines nearer than this count as equal: backends add in different orders."""
FETCH_FACTOR = 4  # times as many results are asked for when the last ones wanted are equal


@dataclass(frozen=True)
class Info:
    """What an index is.

    Attributes:
        uri: where it is.
        backend: `faiss`, `milvus-lite` or `milvus`.
        kind: how it searches, one of `KINDS`; `flat` is exact.
        images: how many it holds.
        width: D.
        fingerprint: hash of the model that made its vectors.
        chunks: how many of them went in by `build`.
        complete: False while a build is not finished.
        removed: vectors of removed or replaced images that still lie on the disk.
        effort: lists or graph candidates looked at for a query; 0 for `flat`.
        recall: part of the true 10 best that are found, measured on held-out queries; None if never measured.
        size: bytes on the disk; None if a server keeps it.
    """

    uri: str
    backend: str
    kind: str
    images: int
    width: int
    fingerprint: str
    chunks: int
    complete: bool
    removed: int = 0
    effort: int = 0
    recall: float | None = None
    size: int | None = None


class GalleryIndex(ABC):
    """Vectors of a gallery's images with their labels, opened to search or to change.

    Attributes:
        uri: where it is.
        width: D.
    """

    uri: str
    width: int
    _write = False
    _about: dict[str, Any]  # metadata of the whole index

    @property
    def requested_kind(self) -> str | None:
        """The kind that the user named; None lets the size choose."""
        return self._about["kind"]

    @abstractmethod
    def build(self, chunks: Iterable[Chunk]) -> None:
        """Take in the chunks that are not in, and finish: an interrupted build goes on where it was."""

    @abstractmethod
    def add(self, chunks: Iterable[Chunk]) -> int:
        """Take in images, each chunk in full or not at all; an image of a known path is replaced. Return how many."""

    @abstractmethod
    def info(self) -> Info:
        """Describe the index."""

    @abstractmethod
    def check(self) -> None:
        """Read everything and compare it with its checksums, however long that takes."""

    @abstractmethod
    def close(self) -> None:
        """Close the index."""

    @abstractmethod
    def _max_results(self) -> int:
        """Return how many results a query may ask for."""

    @abstractmethod
    def _nearest(self, queries: np.ndarray, k: int, where: Where) -> list[list[Match]]:
        """Return the best images of each query, best first: k of them, or all there are."""

    @abstractmethod
    def _remove(self, where: Where) -> int:
        """Forget images."""

    def remove(self, where: Where) -> int:
        """Forget the images that meet the conditions, of which there has to be one. Return how many."""
        self._require_writing()
        if not where:
            raise InputError(f"{self.uri}: removing needs a path or a filter; to remove everything, delete the index")
        return self._remove(where)

    def search(self, vectors: FeatureArray, k: int = 10, where: Where = ANY) -> list[list[Match]]:
        """Return the k images most like each query, best first, or all where fewer meet the conditions.

        Images of equal cosine (see `TIE`) come in the order of their paths.

        Args:
            vectors: (Q, D) of any length above 0.
            k: images of each query.
            where: the images to search in.
        """
        queries = unit_vectors(vectors, "query")
        if queries.shape[1] != self.width:
            raise InputError(f"query vectors are {queries.shape[1]} wide, those of {self.uri} {self.width}")
        if k < 1:
            raise InputError(f"k={k} should be 1 or more")
        fetched, most = k + 1, self._max_results()
        found = self._nearest(queries, min(fetched, most), where)
        while fetched < most and (tied := [place for place, hits in enumerate(found) if _may_be_cut(hits, k, fetched)]):
            fetched = min(fetched * FETCH_FACTOR, most)
            for place, hits in zip(tied, self._nearest(queries[tied], fetched, where), strict=True):
                found[place] = hits
        return [_order_ties(hits)[:k] for hits in found]

    def _with_vectors(self, chunk: Chunk) -> VectorChunk:
        """Return a chunk with its vectors, which have to be as wide as the others."""
        found = chunk.with_vectors()
        if found.entries and found.vectors.shape[1] != self.width:
            raise InputError(f"{found.entries[0].path}: vectors are {found.vectors.shape[1]} wide, not {self.width}")
        return found

    def _require_complete(self, complete: bool, building: bool) -> None:
        if not complete and not building:
            raise InputError(f"index {self.uri} is not finished: build it again, which goes on where it stopped")

    def _require_writing(self) -> None:
        if not self._write:
            raise InputError(f"index {self.uri} is open for searching only: open it with write=True")

    def __enter__(self) -> GalleryIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_kind(kind: str | None) -> None:
    """Refuse an unknown kind; None lets the size choose."""
    if kind is not None:
        require_known("index kind", kind, KINDS)


def search_queries(
    index: GalleryIndex, queries: Sequence[str], vectors: FeatureArray, top: int, where: Where = ANY
) -> list[SearchResult]:
    """Return the best images of an index for each query, a text or an image's path, by the queries' vectors."""
    check_lengths("queries", len(queries), vectors=len(vectors))
    found = zip(queries, index.search(vectors, top, where), strict=True)
    return [SearchResult(query, tuple(matches)) for query, matches in found]


def _may_be_cut(hits: Sequence[Match], k: int, fetched: int) -> bool:
    """Whether the k-th result is as good as the last one fetched, so that equal ones may be missing."""
    scores = [hit.score for hit in hits[k - 1 :]]
    return len(hits) == fetched and all(high - low < TIE for high, low in pairwise(scores))


def _order_ties(hits: Sequence[Match]) -> list[Match]:
    """Return results with equal ones in the order of their paths, under the largest cosine of them."""
    groups: list[list[Match]] = []
    for last, hit in zip([None, *hits], hits, strict=False):
        if last is not None and last.score - hit.score < TIE:
            groups[-1].append(hit)
        else:
            groups.append([hit])
    ordered = []
    for group in groups:
        ordered += [Match(group[0].score, hit.entry) for hit in sorted(group, key=lambda hit: hit.entry.path)]
    return ordered
