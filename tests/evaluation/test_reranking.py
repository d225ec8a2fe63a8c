import numpy as np
import pytest
import torch
from evaluation_cases import make_protocol
from fastreid.evaluation.query_expansion import aqe
from fastreid.utils.compute_dist import build_dist, compute_jaccard_distance
from torch.nn import functional as F

from agreid_plugin.data.protocols import Meta
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import evaluate_distances, expand, rerank
from agreid_plugin.evaluation.reranking import _find_by_faiss, _find_by_torch
from agreid_plugin.types import Record


def people(seed: int, count: int = 12, images: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and gallery in clusters, without which no two images share neighbors."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(count, 16, generator=generator)
    return tuple(centers.repeat(n, 1) + 0.5 * torch.randn(n * count, 16, generator=generator) for n in (2, images))


def host_distances(query, gallery, metric, k1, k2, weight):
    """What the host's evaluator computes with TEST.RERANK."""
    first = build_dist(query, gallery, metric)
    if metric == "cosine":
        query, gallery = F.normalize(query, dim=1), F.normalize(gallery, dim=1)
    jaccard = compute_jaccard_distance(torch.cat([query, gallery]), k1=k1, k2=k2, search_option=3)
    return jaccard[: len(query), len(query) :] * (1 - weight) + first * weight


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize(("k1", "k2", "weight"), [(20, 6, 0.3), (7, 3, 0), (5, 1, 0.5), (4, 9, 0.3)])
@pytest.mark.parametrize("seed", range(2))
def test_reranking_equals_the_hosts(seed, metric, k1, k2, weight):
    query, gallery = people(seed)
    ours = rerank(query, gallery, metric=metric, k1=k1, k2=k2, weight=weight)
    expected = host_distances(query, gallery, metric, k1, k2, weight)
    np.testing.assert_allclose(ours.rows(np.arange(len(query))), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(ours.rows(np.array([3])), ours.rows(np.arange(len(query)))[[3]])


def test_reranking_finds_people_better():
    query, gallery = people(0, count=30)
    metas = [Meta.collect([Record("", n % 30) for n in range(len(side))]) for side in (query, gallery)]
    first = evaluate_distances(rerank(query, gallery, weight=1), *metas, make_protocol())
    second = evaluate_distances(rerank(query, gallery), *metas, make_protocol())
    assert second["mAP"] > first["mAP"]
    assert second.distance == "cosine, re-ranked (k1 20, k2 6, weight 0.3)"


def test_reranking_of_fewer_images_than_neighbors():
    query, gallery = people(0, count=2, images=1)
    assert np.isfinite(rerank(query, gallery).rows(np.arange(len(query)))).all()


def test_reranking_of_equal_images():
    # An image may then be missing among its own nearest, and has no neighbors at all.
    distances = rerank(np.ones((3, 4)), np.ones((60, 4)), k1=5).rows(np.arange(3))
    assert np.isfinite(distances).all()


def test_bad_parameters_are_refused():
    with pytest.raises(InputError, match="k1 and k2 above 0"):
        rerank(*people(0), k1=0)
    with pytest.raises(InputError, match=r"weight in 0\.\.1"):
        rerank(*people(0), weight=2)


@pytest.mark.parametrize(("k", "alpha", "times"), [(10, 3.0, 1), (5, 3.0, 3), (1, 1.0, 1)])
def test_expansion_equals_the_hosts(k, alpha, times):
    query, gallery = people(1)
    expected = aqe(query, gallery, times, k, alpha)
    for ours, host in zip(expand(query, gallery, k=k, alpha=alpha, times=times), expected, strict=True):
        np.testing.assert_allclose(ours, host, rtol=1e-4, atol=1e-5)


def test_expansion_with_more_neighbors_than_images():
    query, gallery = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    # both point the same way: weights 1, mean of lengths 2 and 1
    for side in expand(query, gallery, k=10):
        np.testing.assert_allclose(side, [[1.5, 0]])


def test_expansion_with_a_fractional_power_of_a_negative_cosine():
    assert np.isfinite(np.concatenate(expand(np.array([[1.0, 0]]), np.array([[-1.0, 0.1]]), alpha=0.5))).all()


def test_both_neighbor_searches_agree():
    features = torch.cat(people(2))
    faiss, ours = _find_by_faiss(features, 7), _find_by_torch(features, 7)
    np.testing.assert_allclose(faiss[0], ours[0], atol=1e-4)
    np.testing.assert_array_equal(faiss[1], ours[1])
