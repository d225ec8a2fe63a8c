from dataclasses import replace

import numpy as np
import pytest
from evaluation_cases import make_protocol, random_case

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import NUMBERS, Metrics, PerQuery, compare, confidence_intervals, evaluate
from agreid_plugin.evaluation.confidence import CHUNK, Interval, bootstrap_counts, resample_means
from agreid_plugin.evaluation.metrics import compute_means


def run(precision, pids, **values) -> Metrics:
    precision = np.asarray(precision, dtype=float)
    per_query = PerQuery(
        np.arange(len(pids)), np.asarray(pids), precision, precision / 2, np.where(precision > 0.5, 1, 3)
    )
    values = {"protocol": "CARGO/A2G", "source": "ViSA", "gallery": 9, **values}
    return Metrics(values=compute_means(per_query), queries=len(pids), skipped={}, per_query=per_query, **values)


def test_draws_are_fixed_by_the_seed_and_complete():
    first, again, other = (np.concatenate(list(bootstrap_counts(5, CHUNK + 3, seed))) for seed in (1, 1, 2))
    assert first.shape == (CHUNK + 3, 5)
    assert (first.sum(axis=1) == 5).all()
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_means_of_draws_by_hand():
    # person 1 has one query, person 2 three: a draw of both has mean (8 + 6) / 4, of one twice 8 or 2
    found = resample_means(np.array([[8.0], [1.0], [2.0], [3.0]]), np.array([1, 2, 2, 2]), draws=50)
    assert set(found[:, 0]) == {8.0, 3.5, 2.0}


def test_one_identity_says_nothing():
    with pytest.raises(InputError, match="two identities"):
        confidence_intervals(run([1, 0.5], [3, 3]))


def test_interval_of_equal_queries_is_a_point():
    found = confidence_intervals(run([0.7] * 6, [1, 1, 2, 2, 3, 3]), draws=20)
    assert found["mAP"].low == pytest.approx(70)
    assert found["mAP"].high == pytest.approx(70)


def test_intervals_of_an_evaluation():
    case = random_case(3, queries=60)
    metrics = evaluate(*case.features, *case.metas, make_protocol())
    found = confidence_intervals(metrics, draws=300)
    assert list(found) == list(NUMBERS)
    assert all(found[name].low <= metrics[name] <= found[name].high for name in NUMBERS)
    assert found == confidence_intervals(metrics, draws=300)
    wider = confidence_intervals(metrics, draws=300, level=0.99)
    assert wider["mAP"].low < found["mAP"].low
    assert wider["mAP"].high > found["mAP"].high


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(0)
    pids = np.repeat(np.arange(60), 3)
    covered = 0
    for _ in range(100):  # images of one person succeed together, so intervals over single queries would be too small
        precision = np.clip(np.repeat(rng.uniform(0, 1, 60), 3) + rng.uniform(-0.01, 0.01, 180), 0, 1)
        interval = confidence_intervals(run(precision, pids), draws=200)["mAP"]
        covered += interval.low <= 50 <= interval.high
    assert 88 <= covered <= 100


def test_level_has_to_be_a_share():
    with pytest.raises(InputError, match="confidence level 95"):
        Interval.from_samples(np.arange(9.0), 95)


def test_a_better_run_is_seen_and_a_lucky_one_is_not():
    rng = np.random.default_rng(1)
    pids = np.repeat(np.arange(50), 4)
    base = rng.uniform(0, 0.8, 200)
    better = compare(run(base, pids), run(base + 0.05 + 0.02 * rng.standard_normal(200), pids))["mAP"]
    assert better.p < 0.01
    assert better.interval.low > 0
    assert str(better).startswith("B beats A with p=")
    worse = compare(run(base + 0.1, pids), run(base, pids))["mAP"]
    assert str(worse).startswith("A beats B with p=")
    lucky = compare(run(base, pids), run(base + 0.3 * rng.standard_normal(200), pids))["mAP"]
    assert lucky.p > 0.05
    assert str(lucky).startswith("no difference shown")


def test_draws_never_show_that_something_is_impossible():
    better = compare(run([0.1] * 8, range(8)), run([0.9] * 8, range(8)), draws=99)["mAP"]
    assert better.p == pytest.approx(2 * 1 / 100)


def test_equal_runs_differ_in_nothing():
    same = compare(run([0.1, 0.9, 0.4], [1, 2, 3]), run([0.1, 0.9, 0.4], [1, 2, 3]))
    assert all(difference.points == 0 and difference.p == 1 for difference in same.values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"protocol": "CARGO/AG-both"}, r"different protocols .* A: CARGO/A2G \(ViSA\); B: CARGO/AG-both \(ViSA\)"),
        ({"source": "another paper"}, "different protocols"),
        ({"views": "predicted"}, "different view sources do not compare: A: given; B: predicted"),
        ({"fingerprint": "f00"}, "different query or gallery sets"),
        ({"gallery": 10}, "different query or gallery sets"),
        ({"per_query": None}, "results of single queries were not kept"),
    ],
)
def test_what_does_not_compare_is_refused(change, words):
    a = run([0.1, 0.9], [1, 2], views="given")
    with pytest.raises(InputError, match=words):
        compare(a, replace(a, **change))


def test_a_model_without_views_compares_with_any():
    runs = [run([0.1, 0.9], [1, 2], views=views) for views in ("", "given")]
    assert compare(*runs)["mAP"].points == 0
