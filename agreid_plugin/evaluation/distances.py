"""Distances between features, from a block of queries to all gallery images.

Shapes: Q queries, G gallery images, B queries of a block, D width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from agreid_plugin.errors import InputError, require_known
from agreid_plugin.evaluation.validation import FeatureArray, Paths, check_pair

MEMORY = 512
"""Megabytes an evaluation may use on top of the features."""

# Matrix products are made in whole tiles: in the rest of a tile libraries add in another order, and equal features
# would get distances that differ in the last bit, different ones in blocks of different size.
TILE = 64
COLUMNS = 8192
MAX_ROWS = 1024  # larger blocks are not faster
# A number of the block, its mask of hidden pairs, and the labels that the mask is computed from.
BYTES_PER_PAIR = 12


class Distances(ABC):
    """Distances of Q queries to G gallery images that are never all in memory.

    Attributes:
        shape: (Q, G).
        name: what kind of distance it is, for reports.
    """

    shape: tuple[int, int]
    name: str

    @abstractmethod
    def rows(self, index: np.ndarray) -> np.ndarray:
        """Return the (B, G) float32 distances of some queries, an array the caller may overwrite."""


class FeatureDistances(Distances):
    """Distances between features: cosine (1 - cosine) or squared Euclidean, both as in fast-reid.

    Args:
        pairs: (query features, gallery features), one or more of them, (Q, D) and (G, D); with several, global and
            local ones for example, the distances are averaged.
        metric: `cosine` or `euclidean`.
        paths: query and gallery images, for error messages.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[FeatureArray, FeatureArray]],
        metric: str = "cosine",
        paths: Paths = (None, None),
    ):
        made = METRICS[require_known("metric", metric, METRICS)]
        self._parts = [made(*check_pair(query, gallery, paths)) for query, gallery in pairs]
        self.shape = self._parts[0].shape
        self.name = metric
        if any(part.shape != self.shape for part in self._parts):
            raise InputError(f"pairs of features of different shapes: {', '.join(str(p.shape) for p in self._parts)}")

    def rows(self, index: np.ndarray) -> np.ndarray:
        """Return the distances of some queries; which others are in the block does not change them."""
        left = [part.left(index) for part in self._parts]
        block = np.empty((len(index), self.shape[1]), dtype=np.float32)
        for start in range(0, self.shape[1], COLUMNS):
            columns = slice(start, min(start + COLUMNS, self.shape[1]))
            tiles = [part.tile(queries, columns) for part, queries in zip(self._parts, left, strict=True)]
            mean = tiles[0] if len(tiles) == 1 else torch.stack(tiles).mean(dim=0)
            block[:, columns] = mean[: len(index)].numpy(force=True)
        return block


class _Metric(ABC):
    """Distances between two sides' features, in whole tiles: (Q, D) and (G, D)."""

    def __init__(self, query: Tensor, gallery: Tensor):
        self.query, self.gallery = query, gallery
        self.shape = len(query), len(gallery)

    @abstractmethod
    def left(self, index: np.ndarray) -> Tensor:
        """Return some queries as `tile` takes them."""

    @abstractmethod
    def tile(self, left: Tensor, columns: slice) -> Tensor:
        """Return the distances of queries to some columns of the gallery."""


class _Cosine(_Metric):
    def __init__(self, query: Tensor, gallery: Tensor):
        super().__init__(query, gallery)
        # Only lengths are kept, not a second, normalized gallery.
        self.scale = -1 / torch.linalg.vector_norm(gallery, dim=1).clamp_min(1e-12)
        self.one = torch.ones(1, device=gallery.device)

    def left(self, index: np.ndarray) -> Tensor:
        return _pad_to_tiles(F.normalize(self.query[torch.as_tensor(index)], dim=1))

    def tile(self, left: Tensor, columns: slice) -> Tensor:
        cosines = _products(left, self.gallery[columns])
        return torch.addcmul(self.one, cosines, self.scale[columns], out=cosines)


class _Euclidean(_Metric):
    def __init__(self, query: Tensor, gallery: Tensor):
        super().__init__(query, gallery)
        self.squares = torch.cat([rows.square().sum(dim=1) for rows in gallery.split(COLUMNS)])

    def left(self, index: np.ndarray) -> Tensor:
        return _pad_to_tiles(self.query[torch.as_tensor(index)])

    def tile(self, left: Tensor, columns: slice) -> Tensor:
        lengths = left.square().sum(dim=1, keepdim=True)
        return _products(left, self.gallery[columns]).mul_(-2).add_(self.squares[columns]).add_(lengths)


METRICS: dict[str, type[_Metric]] = {"cosine": _Cosine, "euclidean": _Euclidean}


def blocks(rows: np.ndarray, columns: int, memory: float = MEMORY) -> Iterator[np.ndarray]:
    """Cut query rows into blocks that fit in `memory` megabytes against `columns` gallery images, one row at least."""
    size = int(memory * 2**20) // (BYTES_PER_PAIR * max(columns, 1))
    size = max(1, min(size, MAX_ROWS))
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _products(left: Tensor, gallery: Tensor) -> Tensor:
    return (left @ _pad_to_tiles(gallery).T)[:, : len(gallery)]


def _pad_to_tiles(rows: Tensor) -> Tensor:
    missing = -len(rows) % TILE
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows
