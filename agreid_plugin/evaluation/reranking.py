"""Re-ranking and query expansion: sparse k-reciprocal encoding (Zhong et al., CVPR 2017), weighted average query
expansion (Chum et al., ICCV 2007), and the nearest neighbors that both need.

Shapes: Q queries, G gallery images, N = Q + G, D width, K neighbors, P pairs of an image and a neighbor, B images of a
block.
"""

from __future__ import annotations

import faiss
import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn import functional as F

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.distances import Distances, FeatureDistances
from agreid_plugin.evaluation.validation import FeatureArray, check_pair

ROWS = 2048  # images whose neighbors are expanded together
PAIRS = 8192  # pairs whose features are gathered together
SHARE = 2 / 3  # of a neighbor's neighbors that have to be shared before they are added
MEAN_ROWS = 1024  # images whose neighbors' features are gathered together
NEIGHBOR_ROWS = 256  # images whose distances to all others are made together on a GPU


def rerank(
    query: FeatureArray,
    gallery: FeatureArray,
    *,
    metric: str = "cosine",
    k1: int = 20,
    k2: int = 6,
    weight: float = 0.3,
) -> Distances:
    """Return re-ranked distances, which `evaluate_distances` takes, equal to those of fast-reid's evaluator.

    On top of the features it needs one copy of them and, for each image, a few hundred numbers.

    Args:
        query: (Q, D) features.
        gallery: (G, D) features.
        metric: `cosine` or `euclidean`, the distance that is mixed in; neighbors are found by the same.
        k1: neighbors looked at, the image itself included.
        k2: neighbors whose weights are averaged.
        weight: share of the first distance, lambda in the paper.

    Example:
        Directions in degrees: the query is at 0. The image at -9 is the nearest, but its neighbors are others;
        the one at 10 has the query among its nearest three.

        >>> import numpy as np
        >>> def directions(*degrees):
        ...     return np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1)
        >>> query, gallery = directions(0), directions(10, 18, -9, -12, -13)
        >>> int(FeatureDistances([(query, gallery)]).rows(np.array([0])).argmin())
        2
        >>> int(rerank(query, gallery, k1=3, k2=1).rows(np.array([0])).argmin())
        0
    """
    if min(k1, k2) < 1 or not 0 <= weight <= 1:
        raise InputError(f"re-ranking needs k1 and k2 above 0 and a weight in 0..1, got {k1}, {k2} and {weight}")
    first = FeatureDistances([(query, gallery)], metric)
    weights = _neighbor_weights(join_features(query, gallery, normalize=metric == "cosine"), k1, k2)
    name = f"{metric}, re-ranked (k1 {k1}, k2 {k2}, weight {weight:g})"
    return _RerankedDistances(first, weights[: len(query)], weights[len(query) :].tocsc(), weight, name)


class _RerankedDistances(Distances):
    """Jaccard distances between rows of neighbor weights, mixed with the first distances."""

    def __init__(self, first: Distances, query: sparse.csr_array, gallery: sparse.csc_array, weight: float, name: str):
        self._first, self._query, self._gallery, self._weight = first, query, gallery, weight
        self.shape, self.name = first.shape, name

    def rows(self, index: np.ndarray) -> np.ndarray:
        block = self._first.rows(index)
        block *= self._weight
        for place, row in enumerate(index):
            common = self._common(row)
            block[place] += (1 - self._weight) * np.maximum(1 - common / (2 - common), 0)
        return block

    def _common(self, row: int) -> np.ndarray:
        """Return the weight a query shares with each gallery image, (G,)."""
        row_slice = slice(self._query.indptr[row], self._query.indptr[row + 1])
        near = self._gallery[:, self._query.indices[row_slice]]
        near.data = np.minimum(near.data, np.repeat(self._query.data[row_slice], np.diff(near.indptr)))
        return near.sum(axis=1)


def _neighbor_weights(features: Tensor, k1: int, k2: int) -> sparse.csr_array:
    """Return (N, N) weights, each row a distribution over an image's neighbors."""
    places = find_nearest(features, k1)[1]
    near = _reciprocal(places, k1)
    half = _reciprocal(places, round(k1 / 2) + 1)
    blocks = [_add_shared_neighbors(near[start : start + ROWS], half) for start in range(0, len(places), ROWS)]
    weights = _softmax(features, sparse.vstack(blocks, format="csr"))
    return (_graph(places, k2) @ weights / min(k2, places.shape[1])).tocsr()


def _graph(places: np.ndarray, k: int) -> sparse.csr_array:
    """Return (N, N), 1 where an image is among the first `k` neighbors of another."""
    count, k = len(places), min(k, places.shape[1])
    starts = np.arange(0, count * k + 1, k)
    ones = np.ones(count * k, dtype=np.float32)
    return sparse.csr_array((ones, places[:, :k].ravel(), starts), shape=(count, count))


def _reciprocal(places: np.ndarray, k: int) -> sparse.csr_array:
    graph = _graph(places, k)
    return graph.multiply(graph.T.tocsr()).tocsr()


def _add_shared_neighbors(near: sparse.csr_array, half: sparse.csr_array) -> sparse.csr_array:
    """Add to each image's neighbors those of a neighbor that shares enough of them; nonzero means neighbor."""
    shared = (near @ half).multiply(near).tocsr()  # `half` is symmetric
    sizes = half.sum(axis=1)
    shared.data = (shared.data > SHARE * sizes[shared.indices]).astype(np.float32)
    return (near + shared @ half).tocsr()


def _softmax(features: Tensor, neighbors: sparse.csr_array) -> sparse.csr_array:
    """Return the softmax of minus the squared distances to each image's neighbors."""
    rows = np.repeat(np.arange(neighbors.shape[0]), np.diff(neighbors.indptr))
    distances = _pair_distances(features, rows, neighbors.indices)
    least = np.full(neighbors.shape[0], np.inf)
    np.minimum.at(least, rows, distances)
    raw = np.exp(least[rows] - distances)
    weights = (raw / np.bincount(rows, weights=raw, minlength=len(least))[rows]).astype(np.float32)
    return sparse.csr_array((weights, neighbors.indices, neighbors.indptr), shape=neighbors.shape)


def _pair_distances(features: Tensor, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the squared distances of the pairs, (P,)."""
    pairs = torch.as_tensor(np.stack([left, right]), device=features.device)
    found = [(features[a] - features[b]).square().sum(dim=1) for a, b in pairs.long().split(PAIRS, dim=1)]
    return torch.cat(found).double().numpy(force=True)


def expand(
    query: FeatureArray, gallery: FeatureArray, *, k: int = 10, alpha: float = 3.0, times: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Replace every feature by the mean of its nearest features of both sides, weighted by cosine ** alpha.

    Args:
        query: (Q, D) features.
        gallery: (G, D) features.
        k: how many features make the mean, with the image itself.
        alpha: the larger, the less a distant neighbor counts; a negative cosine keeps its sign.
        times: how often to do it.

    Returns:
        The new query and gallery features.
    """
    features = join_features(query, gallery, normalize=False)
    for _ in range(times):
        features = _expand_once(features, k, alpha)
    array = features.numpy(force=True)
    return array[: len(query)], array[len(query) :]


def _expand_once(features: Tensor, k: int, alpha: float) -> Tensor:
    squared, places = find_nearest(F.normalize(features, dim=1), k)
    cosines = 1 - squared / 2
    weights = torch.from_numpy(np.sign(cosines) * np.abs(cosines) ** alpha).to(features)  # (N, K)
    mean = torch.empty_like(features)
    for start in range(0, len(features), MEAN_ROWS):
        block = slice(start, start + MEAN_ROWS)
        chosen = features[torch.as_tensor(places[block], device=features.device)]  # (B, K, D)
        mean[block] = torch.einsum("bk,bkd->bd", weights[block], chosen) / weights.shape[1]
    return mean


def join_features(query: FeatureArray, gallery: FeatureArray, normalize: bool) -> Tensor:
    """Return the features of both sides in one, queries first, of length 1 if so wanted."""
    features = torch.cat(check_pair(query, gallery))
    return F.normalize(features, dim=1, out=features) if normalize else features


def find_nearest(features: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return squared Euclidean distances and places of the K nearest of each image, itself included, (N, K) each.

    There are fewer than `k` if there are fewer images. faiss does it on CPU, torch on any other device.
    """
    k = min(k, len(features))
    return _find_by_faiss(features, k) if features.device.type == "cpu" else _find_by_torch(features, k)


def _find_by_faiss(features: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
    array = np.ascontiguousarray(features.numpy())
    return faiss.knn(array, array, k, metric=faiss.METRIC_L2)


def _find_by_torch(features: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
    squares = features.square().sum(dim=1)
    found = []
    for rows, lengths in zip(features.split(NEIGHBOR_ROWS), squares.split(NEIGHBOR_ROWS), strict=True):
        distances = torch.addmm(squares, rows, features.T, alpha=-2) + lengths[:, None]  # (B, N)
        found.append(distances.topk(k, largest=False))
    values, places = (torch.cat(parts).numpy(force=True) for parts in zip(*found, strict=True))
    return values, places
