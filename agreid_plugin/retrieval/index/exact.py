"""Exact search: every vector against every query, a block at a time, so that the gallery may be larger than memory.

Shapes: N vectors, Q queries, K results, D width.
"""

from __future__ import annotations

from collections.abc import Iterator

import faiss
import numpy as np

BLOCK = 32 * 2**20  # bytes of vectors looked at together
MISSING = -1  # row number where there are fewer than K results


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


def rescored(vectors: np.ndarray, queries: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
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


def merged(
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
