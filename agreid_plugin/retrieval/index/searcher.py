"""Search in the vectors of an index: approximately in its structure, exactly in the rest, in blocks that fit in memory.

Shapes: N vectors, Q queries, K results, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import faiss
import numpy as np

from agreid_plugin.retrieval.index.index_types import RECALL_AT, SAMPLE, Structure, count_lists, tune

EXACT_UP_TO = 20_000
"""A filter that leaves so many images is answered exactly, whatever the kind: that is as fast."""
CANDIDATES = 10  # times as many codes as results are compared by their vectors
MAX_HELD_OUT = 200  # queries that measure the recall, none of which a structure learns from
QUERIES = 64  # searched together; bounds the memory of candidates
BLOCK = 32 * 2**20  # bytes of vectors looked at together
MISSING = -1  # row number where there are fewer than K results


@dataclass(frozen=True)
class ApproximateSearcher:
    """A structure of the first vectors, and those that came after it.

    Attributes:
        vectors: (N, D) of length 1, on the disk perhaps.
        structure: the structure.
        covered: how many vectors it has.
    """

    vectors: np.ndarray
    structure: Structure
    covered: int

    def nearest(self, queries: np.ndarray, k: int, rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Look in the structure, and exactly at what came after it; see `Searcher.nearest`."""
        found = self._search_structure(queries, k, None if rows is None else rows[rows < self.covered])
        if self.covered < len(self.vectors):
            late = np.arange(self.covered, len(self.vectors)) if rows is None else rows[rows >= self.covered]
            found = merge_results(found, exact_search(self.vectors, queries, k, late))
        there = min(k, len(self.vectors) if rows is None else len(rows))
        short = (found[1] != MISSING).sum(axis=1) < there  # too little was looked at: these queries get all of it
        if short.any():
            found[0][short], found[1][short] = exact_search(self.vectors, queries[short], k, rows)
        return found

    def _search_structure(self, queries: np.ndarray, k: int, rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if self.structure.kind != "pq":
            return self.structure.search(queries, k, rows)
        _, candidates = self.structure.search(queries, max(k, min(k * CANDIDATES, self.covered)), rows)
        return rescore(self.vectors, queries, candidates, k)


@dataclass(frozen=True)
class Searcher:
    """What there is to look in.

    Attributes:
        vectors: (N, D) of length 1, on the disk perhaps.
        structure: an approximate index of the first vectors; None looks exactly at all.
        covered: how many vectors it has.
    """

    vectors: np.ndarray
    structure: Structure | None = None
    covered: int = 0

    def nearest(self, queries: np.ndarray, k: int, rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return cosines and row numbers, (Q, K) each, best first, `MISSING` where there are fewer.

        Args:
            queries: (Q, D) of length 1.
            k: K.
            rows: the rows that count, ascending; None counts all.
        """
        few = rows is not None and len(rows) <= EXACT_UP_TO
        if self.structure is None or few:
            return exact_search(self.vectors, queries, k, rows)
        near = ApproximateSearcher(self.vectors, self.structure, self.covered)
        parts = [near.nearest(queries[start : start + QUERIES], k, rows) for start in range(0, len(queries), QUERIES)]
        return np.concatenate([scores for scores, _ in parts]), np.concatenate([found for _, found in parts])


def build_structure(
    kind: str, vectors: np.ndarray, blocks: Iterable[np.ndarray], rows: np.ndarray
) -> tuple[Structure, float | None]:
    """Make a structure of vectors, and measure its recall.

    Args:
        kind: which one.
        vectors: (N, D), on the disk perhaps.
        blocks: the same, some at a time.
        rows: the rows whose images are not removed, ascending.
    """
    learned, held_out = sample_rows(kind, rows)
    structure = Structure.train(kind, np.array(vectors[learned]), len(rows))
    structure.add(blocks, held_out)
    recall = tune_structure(ApproximateSearcher(vectors, structure, len(vectors)), held_out, rows)
    if len(held_out):
        structure.add_held_out(np.array(vectors[held_out]))
    return structure, recall


def sample_rows(kind: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Choose which of some rows a structure learns from, and which are held out to measure it, each ascending."""
    shuffled = np.random.default_rng(0).permutation(rows)
    held = min(MAX_HELD_OUT, len(rows) // 10)
    learned = 0 if kind == "hnsw" else max(SAMPLE * count_lists(len(rows)), 10_000)
    return np.sort(shuffled[held : held + max(learned, 1)]), np.sort(shuffled[:held])


def tune_structure(lookup: ApproximateSearcher, held_out: np.ndarray, rows: np.ndarray) -> float | None:
    """Set the effort of a structure by its recall on held-out rows, and return that; None without such rows.

    Args:
        lookup: where to look; its structure does not have the held-out rows yet.
        held_out: the rows to look for, ascending.
        rows: all rows whose images are not removed, ascending.
    """
    if not len(held_out):
        return None
    queries, others = np.array(lookup.vectors[held_out]), np.setdiff1d(rows, held_out, assume_unique=True)
    truth = [set(found.tolist()) for found in exact_search(lookup.vectors, queries, RECALL_AT, others)[1]]
    chosen = None if len(rows) == len(lookup.vectors) else others

    def find(effort: int) -> list[set[int]]:
        lookup.structure.effort = effort
        return [set(found.tolist()) for found in lookup.nearest(queries, RECALL_AT, chosen)[1]]

    lookup.structure.effort, recall = tune(find, truth, lookup.structure.effort, lookup.structure.max_effort)
    return recall


def exact_search(
    vectors: np.ndarray, queries: np.ndarray, k: int, rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the inner products and the row numbers of each query's best vectors: (Q, K) and (Q, K), best first.

    Args:
        vectors: (N, D), on the disk perhaps.
        queries: (Q, D).
        k: K; where there are fewer, the rest is `MISSING`.
        rows: the rows to look at, ascending; None looks at all.

    Example:
        >>> import numpy as np
        >>> vectors = np.array([[1, 0], [0, 1], [0.6, 0.8]], dtype=np.float32)
        >>> scores, rows = exact_search(vectors, queries=vectors[:1], k=2)
        >>> scores.astype(float).round(2).tolist(), rows.tolist()  # itself, and the third
        ([[1.0, 0.6]], [[0, 2]])
        >>> exact_search(vectors, vectors[:1], k=2, rows=np.array([1]))[1].tolist()
        [[1, -1]]
    """
    best = faiss.ResultHeap(len(queries), k, keep_max=True)
    for numbers, block in _blocks(vectors, rows):
        scores, places = faiss.knn(queries, block, min(k, len(block)), metric=faiss.METRIC_INNER_PRODUCT)
        best.add_result(scores, numbers[places])
    best.finalize()
    return best.D, best.I


def rescore(vectors: np.ndarray, queries: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the K best of candidates by their true inner products.

    Args:
        vectors: (N, D).
        queries: (Q, D).
        rows: (Q, C) candidates of each query, `MISSING` where there is none.
        k: K, C at most.
    """
    size = max(1, BLOCK // (4 * max(1, rows.shape[1]) * vectors.shape[1]))  # queries whose candidates are read together
    parts = [slice(start, start + size) for start in range(0, len(rows), size)]
    scores = np.empty(rows.shape, dtype=np.float32)
    for part in parts:
        scores[part] = np.einsum("qd,qcd->qc", queries[part], vectors[np.maximum(rows[part], 0)])
    scores[rows == MISSING] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def merge_results(
    first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the K best of two results of K each."""
    scores, rows = (np.concatenate(pair, axis=1) for pair in zip(first, second, strict=True))
    scores = np.where(rows == MISSING, -np.inf, scores)
    order = np.argsort(-scores, axis=1, kind="stable")[:, : first[0].shape[1]]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def _blocks(vectors: np.ndarray, rows: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    count = len(vectors) if rows is None else len(rows)
    size = max(1, BLOCK // (4 * vectors.shape[1]))
    for start in range(0, count, size):
        stop = min(start + size, count)
        numbers = np.arange(start, stop) if rows is None else rows[start:stop]
        yield numbers, np.ascontiguousarray(vectors[start:stop] if rows is None else vectors[numbers])
