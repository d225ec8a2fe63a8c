import numpy as np
import pytest
from evaluation_cases import make_protocol, random_case

from agreid_plugin.data.datasets import Dataset
from agreid_plugin.data.protocols import Meta
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import (
    FeatureDistances,
    FeatureSet,
    calibrate,
    calibrate_distances,
    caption_meta,
    evaluate,
    evaluate_distances,
    expand,
    rerank,
)
from agreid_plugin.evaluation.ranking_options import Expansion, RankingOptions, Reranking
from agreid_plugin.types import Record

PROTOCOL = make_protocol("same_camera_same_id")
TEXT = make_protocol(kind="text", name="T2I")
CASE = random_case(0)
AGAIN, MEAN = Reranking(9, 3, 0.1), Expansion(3, 2.0, 2)


@pytest.fixture(scope="module")
def features() -> FeatureSet:
    rng = np.random.default_rng(1)
    records = (*CASE.query, *CASE.gallery)
    array = rng.standard_normal((len(records), 6)).astype(np.float32)
    return FeatureSet(Dataset("TEST", "", records), records, (array,), views="given")


def by_hand(features: FeatureSet, comparison: RankingOptions) -> float:
    query, gallery = np.split(features.images[0], [len(CASE.query)])
    if comparison.expansion:
        query, gallery = expand(query, gallery, k=3, alpha=2.0, times=2)
    if comparison.rerank:
        distances = rerank(query, gallery, metric=comparison.metric, k1=9, k2=3, weight=0.1)
    else:
        distances = FeatureDistances([(query, gallery)], comparison.metric)
    return evaluate_distances(distances, *CASE.metas, PROTOCOL)["mAP"]


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("again", [None, AGAIN], ids=["", "rerank"])
@pytest.mark.parametrize("mean", [None, MEAN], ids=["", "expand"])
def test_every_comparison_is_that_of_its_parts(features, metric, again, mean):
    comparison = RankingOptions(metric, again, mean)
    (found,) = comparison.compute(features, [PROTOCOL])
    assert found["mAP"] == by_hand(features, comparison)


def test_comparisons_differ(features):
    options = [(), ("euclidean",), ("cosine", AGAIN), ("cosine", None, MEAN), ("cosine", AGAIN, MEAN)]
    every = [RankingOptions(*each).compute(features, [PROTOCOL])[0] for each in options]
    found = {tuple(metrics.per_query.precision) for metrics in every}
    assert len(found) == len(options)


def test_metrics_keep_the_order_of_protocols(features):
    other = make_protocol(name="A2G")
    assert [each.protocol for each in RankingOptions().compute(features, [other, PROTOCOL])] == ["TEST/A2G", "TEST/ALL"]


def test_memory_changes_no_number(features):
    (plain,), (little,) = (RankingOptions(memory=memory).compute(features, [PROTOCOL]) for memory in (512, 1e-6))
    assert plain.values == little.values
    query, gallery = np.split(features.images[0], [len(CASE.query)])
    assert plain.values == evaluate(query, gallery, *CASE.metas, PROTOCOL).values


def test_thresholds_are_those_of_the_distances(features):
    query, gallery = np.split(features.images[0], [len(CASE.query)])
    wanted = calibrate(query, gallery, *CASE.metas, PROTOCOL, metric="euclidean", views="given")
    assert RankingOptions("euclidean").calibrate(features, PROTOCOL) == wanted


def test_thresholds_of_sentences_go_by_what_the_numbers_go_by():
    """The mean cosine over every kind of features, whatever the metric of images."""
    rng = np.random.default_rng(2)
    records = [Record(f"{n:02d}", n % 5, split="test", captions=("one", "two")) for n in range(30)]
    images, captions = ([rng.standard_normal((n, 4)).astype(np.float32) for _ in range(2)] for n in (30, 60))
    features = FeatureSet(Dataset("TEST", "", tuple(records)), records, tuple(images), tuple(captions))
    distances = FeatureDistances(list(zip(captions, images, strict=True)))
    comparison, metas = RankingOptions("euclidean"), (caption_meta(records), Meta.collect(records))
    assert comparison.calibrate(features, TEXT) == calibrate_distances(distances, *metas, TEXT)
    assert comparison.compute(features, [TEXT])[0].values == evaluate_distances(distances, *metas, TEXT).values


def test_sentences_are_not_compared_like_images(features):
    RankingOptions().check(TEXT)
    RankingOptions(rerank=AGAIN, expansion=MEAN).check(PROTOCOL)
    with pytest.raises(InputError, match="TEST/T2I asks with sentences, which rerank cannot compare: switch it off"):
        RankingOptions(rerank=AGAIN).check(TEXT)
    with pytest.raises(InputError, match=r"which TEST\.AQE cannot compare"):
        RankingOptions(expansion=MEAN, keys=("TEST.RERANK", "TEST.AQE")).compute(features, [TEXT])
    with pytest.raises(InputError, match="which rerank cannot compare"):
        RankingOptions(rerank=AGAIN).calibrate(features, TEXT)
