"""Approximate index types of faiss: choice by size, training, search effort.

Which kind is chosen (`choose_kind`):

- `flat` up to 100,000 images: exact, every vector is looked at.
- `hnsw` up to 300,000: a graph of neighbors. The fastest to search and the slowest to build, which is why it ends here.
- `ivf` up to 5,000,000: lists of the vectors around centers, of which the nearest few are looked at.
- `pq` beyond: such lists of codes of a byte for 4 numbers. Only they are in memory while it is built; the best
  candidates are compared again by their vectors, which stay on the disk.

All are read by memory map: what a search does not touch takes no memory.

Shapes: N vectors, Q queries, K results, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import faiss
import numpy as np

from agreid_plugin.errors import InputError

T = TypeVar("T")

MAX_IMAGES = {"flat": 100_000, "hnsw": 300_000, "ivf": 5_000_000}
"""Kind -> the largest number of images that it is chosen for."""
NEIGHBORS, BUILD_EFFORT = 32, 80  # of the graph: edges of a vector, candidates looked at for them
SAMPLE = 64  # vectors a list learns from
CODES = 256  # values of a byte, which needs as many vectors to learn from
MAX_CODE_BYTES = 96  # bytes
RECALL, RECALL_AT = 0.95, 10  # what is aimed at: so much of the true 10 best
FIRST_EFFORT = {"hnsw": 32, "ivf": 8, "pq": 8}
MAX_EFFORT = 1024
CLASSES: dict[str, type[faiss.Index]] = {"hnsw": faiss.IndexHNSW, "ivf": faiss.IndexIVFFlat, "pq": faiss.IndexIVFPQ}
_untyped: Any = faiss  # its types lack parameters of search, and the array that a selector takes


def choose_kind(images: int) -> str:
    """Return the kind for a number of images."""
    return next((kind for kind, most in MAX_IMAGES.items() if images <= most), "pq")


def count_lists(images: int) -> int:
    """Return how many lists images are put in: the power of 2 nearest to twice the root of their number."""
    return 2 ** round(math.log2(2 * math.sqrt(max(images, 1))))


def can_train(kind: str, images: int) -> bool:
    """Whether a kind can learn from a number of images, of which a tenth may be held out."""
    return kind == "flat" or images * 9 // 10 >= _min_sample(kind, count_lists(images))


class Structure:
    """A faiss index of an approximate kind.

    Args:
        kind: `ivf`, `hnsw` or `pq`.
        index: the index of faiss.
        effort: lists or graph candidates looked at for a query.
        held_out: rows that went in after all others, ascending: the recall was measured before.
    """

    def __init__(self, kind: str, index: faiss.Index, effort: int, held_out: Sequence[int] = ()):
        self.kind, self.index, self.effort = kind, index, effort
        self.held_out = np.array(held_out, dtype=np.int64)
        self._kept = index.ntotal - len(self.held_out)  # numbers from here on are those of held-out rows

    @classmethod
    def train(cls, kind: str, sample: np.ndarray, images: int) -> Structure:
        """Return an empty one that learned from a sample, (N, D), for a number of images."""
        width, lists = sample.shape[1], count_lists(images)
        _check_sample(kind, len(sample), lists)
        text = {"hnsw": f"HNSW{NEIGHBORS}", "ivf": f"IVF{lists},Flat", "pq": f"IVF{lists},PQ{count_code_bytes(width)}"}[
            kind
        ]
        index: Any = faiss.index_factory(width, text, faiss.METRIC_INNER_PRODUCT)
        if kind == "hnsw":
            index.hnsw.efConstruction = BUILD_EFFORT
        else:
            index.cp.min_points_per_centroid = 1  # keeps faiss from printing what was decided here
        if kind == "pq":
            index.pq.cp.min_points_per_centroid = 1
            index.do_polysemous_training = False  # seconds for every byte of a code, for a search that is not used here
        index.train(sample)
        return cls(kind, index, FIRST_EFFORT[kind])

    @classmethod
    def read(cls, path: Path, kind: str, effort: int, held_out: Sequence[int]) -> Structure:
        """Read a file by memory map; nothing can be added then."""
        mapped = faiss.IO_FLAG_MMAP_IFC if kind == "hnsw" else faiss.IO_FLAG_MMAP
        try:
            return cls(kind, faiss.read_index(str(path), mapped), effort, held_out)
        except (RuntimeError, ValueError, TypeError, OverflowError):
            raise InputError(f"{path} cannot be read as a faiss index: it is damaged; build the index again") from None
        except MemoryError:
            raise InputError(
                f"{path} asks for more memory than there is: free some, or build the index again"
            ) from None

    def check(self, path: Path, width: int, covered: int) -> None:
        """Refuse a file that was read and is not what was kept: of the first `covered` rows of vectors of a width."""
        index, held_out = self.index, self.held_out
        right_type = self.kind in CLASSES and isinstance(index, CLASSES[self.kind])
        right_size = (index.d, index.ntotal) == (width, covered)
        ascending = held_out.ndim == 1 and np.all(np.diff(held_out, prepend=-1, append=index.ntotal) > 0)
        if not (right_size and right_type and ascending and 0 < self.effort <= self.max_effort):
            raise InputError(f"{path} is the structure of another index: it is damaged; build the index again")

    def write(self, path: Path) -> None:
        """Write to a file."""
        faiss.write_index(self.index, str(path))

    def add(self, blocks: Iterable[np.ndarray], held_out: np.ndarray) -> None:
        """Take in the vectors of all rows, in blocks of (N, D), but for those that are held out."""
        self.held_out, start = held_out, 0
        for block in blocks:
            left_out = np.isin(np.arange(start, start + len(block)), held_out)
            self.index.add(block[~left_out])
            start += len(block)
        self._kept = self.index.ntotal

    def add_held_out(self, vectors: np.ndarray) -> None:
        """Take in the vectors that were held out: (N, D)."""
        self.index.add(vectors)

    @property
    def max_effort(self) -> int:
        """The largest effort that makes sense."""
        return self.index.nlist if isinstance(self.index, faiss.IndexIVF) else MAX_EFFORT

    def search(self, queries: np.ndarray, k: int, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and rows, (Q, K) each, best first; -1 where nothing was found.

        Args:
            queries: (Q, D).
            k: K.
            rows: the rows that count, ascending; None counts all. The fewer, the more is looked at.
        """
        effort, chosen = self.effort, None
        if rows is not None:
            mask = np.zeros(self._kept + len(self.held_out), dtype=bool)
            mask[self._numbers(rows)] = True
            bits = np.packbits(mask, bitorder="little")  # has to live as long as the selector
            chosen = _untyped.IDSelectorBitmap(bits)
            effort = math.ceil(effort * self.index.ntotal / max(len(rows), 1))
        if self.kind == "hnsw":
            parameters = _untyped.SearchParametersHNSW(efSearch=max(effort, k), sel=chosen)
        else:
            parameters = _untyped.SearchParametersIVF(nprobe=min(effort, self.max_effort), sel=chosen)
        scores, numbers = self.index.search(queries, k, params=parameters)
        return scores, self._rows(numbers)

    def _numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the numbers that faiss knows rows by: their places among the others, the held-out ones at the end."""
        before = np.searchsorted(self.held_out, rows)
        return np.where(np.isin(rows, self.held_out), self._kept + before, rows - before)

    def _rows(self, numbers: np.ndarray) -> np.ndarray:
        """Return the rows of faiss' numbers, the inverse of `_numbers`; -1 stays."""
        if not len(self.held_out):
            return numbers
        before = np.searchsorted(self.held_out - np.arange(len(self.held_out)), numbers, side="right")
        late = self.held_out[np.maximum(numbers - self._kept, 0)]
        return np.where(numbers < 0, numbers, np.where(numbers < self._kept, numbers + before, late))


def count_code_bytes(width: int) -> int:
    """Return the bytes of a code: the most that share out the width evenly, with 4 numbers or more each."""
    most = max(1, min(width // 4, MAX_CODE_BYTES))
    return next(size for size in range(most, 0, -1) if width % size == 0)


def tune(find: Callable[[int], list[set[T]]], truth: list[set[T]], first: int, most: int) -> tuple[int, float]:
    """Double the effort until the recall is `RECALL`, or nothing is left to double. Return both.

    Args:
        find: effort -> what it finds for each query.
        truth: the true best of each query.
        first: the least effort.
        most: the largest.
    """
    effort = min(first, most)
    while (recall := measure_recall(find(effort), truth)) < RECALL and effort < most:
        effort = min(2 * effort, most)
    return effort, recall


def measure_recall(found: list[set[T]], truth: list[set[T]]) -> float:
    """Return the part of the true best that was found."""
    hits = sum(len(each & true) for each, true in zip(found, truth, strict=True))
    return hits / max(1, sum(map(len, truth)))


def _check_sample(kind: str, sample: int, lists: int) -> None:
    needed = _min_sample(kind, lists)
    if sample < needed:
        raise InputError(f"index kind {kind} learns from {needed} vectors or more, there are {sample}: choose flat")


def _min_sample(kind: str, lists: int) -> int:
    return {"hnsw": 1, "ivf": lists, "pq": max(lists, CODES)}[kind]
