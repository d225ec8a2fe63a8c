"""Where an index looks for the best vectors: in its structure, in what came after it, or exactly among a filter's few.

Shapes: N vectors, Q queries, K results, D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from agreid_plugin.retrieval.index.exact import MISSING, exact_search, merged, rescored
from agreid_plugin.retrieval.index.index_types import RECALL_AT, SAMPLE, Structure, lists_for, tune

EXACT_UP_TO = 20_000
"""A filter that leaves so many images is answered exactly, whatever the kind: that is as fast."""
CANDIDATES = 10  # times as many codes as results are compared by their vectors
HELD_OUT = 200  # queries that measure the recall, none of which a structure learns from
QUERIES = 64  # looked for together; bounds the memory of candidates


@dataclass(frozen=True)
class Approximate:
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
        """Look in the structure, and exactly at what came after it; see `Lookup.nearest`."""
        found = self._structured(queries, k, None if rows is None else rows[rows < self.covered])
        if self.covered < len(self.vectors):
            late = np.arange(self.covered, len(self.vectors)) if rows is None else rows[rows >= self.covered]
            found = merged(found, exact_search(self.vectors, queries, k, late))
        there = min(k, len(self.vectors) if rows is None else len(rows))
        short = (found[1] != MISSING).sum(axis=1) < there  # too little was looked at: these queries get all of it
        if short.any():
            found[0][short], found[1][short] = exact_search(self.vectors, queries[short], k, rows)
        return found

    def _structured(self, queries: np.ndarray, k: int, rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if self.structure.kind != "pq":
            return self.structure.search(queries, k, rows)
        _, candidates = self.structure.search(queries, max(k, min(k * CANDIDATES, self.covered)), rows)
        return rescored(self.vectors, queries, candidates, k)


@dataclass(frozen=True)
class Lookup:
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
        near = Approximate(self.vectors, self.structure, self.covered)
        parts = [near.nearest(queries[start : start + QUERIES], k, rows) for start in range(0, len(queries), QUERIES)]
        return np.concatenate([scores for scores, _ in parts]), np.concatenate([found for _, found in parts])


def structured(
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
    structure = Structure.learned(kind, np.array(vectors[learned]), len(rows))
    structure.add(blocks, held_out)
    recall = measured(Approximate(vectors, structure, len(vectors)), held_out, rows)
    if len(held_out):
        structure.add_held_out(np.array(vectors[held_out]))
    return structure, recall


def sample_rows(kind: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Choose which of some rows a structure learns from, and which are held out to measure it, each ascending."""
    shuffled = np.random.default_rng(0).permutation(rows)
    held = min(HELD_OUT, len(rows) // 10)
    learned = 0 if kind == "hnsw" else max(SAMPLE * lists_for(len(rows)), 10_000)
    return np.sort(shuffled[held : held + max(learned, 1)]), np.sort(shuffled[:held])


def measured(lookup: Approximate, held_out: np.ndarray, rows: np.ndarray) -> float | None:
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

    lookup.structure.effort, recall = tune(find, truth, lookup.structure.effort, lookup.structure.most)
    return recall
