from dataclasses import replace

import numpy as np
import pytest
import torch
from evaluation_cases import (
    RULE_SETS,
    TINY,
    Case,
    make_protocol,
    oracle,
    oracle_numbers,
    random_case,
    squared_distances,
)
from fastreid.evaluation.rank import eval_market1501
from fastreid.utils.compute_dist import build_dist

from agreid_plugin.data.protocols import RULES, Meta, find_unmatched, hidden_mask
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import evaluate
from agreid_plugin.evaluation.relevance import SAME_PERSON_ONLY
from agreid_plugin.types import Record, View


@pytest.mark.parametrize("hide", RULE_SETS, ids=lambda rules: "+".join(rules) or "nothing")
@pytest.mark.parametrize("seed", range(6))
def test_equals_a_plain_loop(seed, hide):
    case, protocol = random_case(seed), make_protocol(*hide)
    expected = oracle(case, protocol, squared_distances(case))
    if not expected:
        with pytest.raises(InputError, match="none of the 12 queries"):
            evaluate(*case.features, *case.metas, protocol, metric="euclidean")
        return
    metrics = evaluate(*case.features, *case.metas, protocol, metric="euclidean")
    assert metrics.values == pytest.approx(oracle_numbers(expected))
    assert metrics.per_query.row.tolist() == list(expected)
    assert metrics.per_query.pid.tolist() == [case.query[row].pid for row in expected]
    assert metrics.per_query.first.tolist() == [first for _, _, first in expected.values()]
    assert metrics.skipped == {
        reason: len(paths) for reason, paths in find_unmatched(protocol, case.query, case.gallery).items()
    }
    assert metrics.queries + metrics.skipped_queries == len(case.query)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("memory", [TINY, 0.005])
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_memory_changes_no_number(seed, memory, metric):
    rng = np.random.default_rng(seed)
    case, protocol = random_case(seed, queries=70, gallery=300), make_protocol("same_camera_same_id", "same_view")
    features = [rng.standard_normal((len(side), 37)) for side in case.metas]
    features[1][::3] = features[1][0]
    whole = evaluate(*features, *case.metas, protocol, metric=metric)
    cut = evaluate(*features, *case.metas, protocol, metric=metric, memory=memory)
    assert replace(whole, per_query=None) == replace(cut, per_query=None)
    for name, array in whole.per_query.arrays().items():
        np.testing.assert_array_equal(array, cut.per_query.arrays()[name])


@pytest.mark.parametrize("seed", range(4))
def test_parts_equal_a_plain_loop(seed):
    case, protocol = random_case(seed, queries=30), make_protocol("same_camera_same_id")
    distances = squared_distances(case)
    metrics = evaluate(*case.features, *case.metas, protocol, metric="euclidean")
    for query, gallery in [(View.AERIAL, View.GROUND), (View.GROUND, View.GROUND), (View.AERIAL, None)]:
        names = [view.name.lower() if view is not None else "unknown" for view in (query, gallery)]
        found = oracle(case, protocol, distances, lambda q, g, wanted=(query, gallery): (q.view, g.view) == wanted)
        check_part(metrics.directions.get("->".join(names)), found)
    for query, gallery in [(0, 1), (2, 0), (1, -1)]:
        name = f"{query}->{'unknown' if gallery == -1 else gallery}"
        found = oracle(case, protocol, distances, lambda q, g, wanted=(query, gallery): (q.camera, g.camera) == wanted)
        check_part(metrics.cameras.get(name), found)


def check_part(part, found):
    if not found:
        assert part is None
        return
    expected = oracle_numbers(found)
    assert part["queries"] == len(found)
    assert {name: part[name] for name in ("Rank-1", "mAP", "mINP")} == pytest.approx(
        {name: expected[name] for name in ("Rank-1", "mAP", "mINP")}
    )


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_hosts_evaluator(seed, metric):
    rng = np.random.default_rng(seed)
    query, gallery = (torch.randn(count, 64, generator=torch.Generator().manual_seed(seed)) for count in (40, 400))
    metas = [Meta(rng.integers(0, 12, n), rng.integers(0, 4, n), np.full(n, -1), np.full(n, -1)) for n in (40, 400)]
    cmc, precision, penalty = eval_market1501(
        build_dist(query, gallery, metric), metas[0].pid, metas[1].pid, metas[0].camera, metas[1].camera, 50
    )
    metrics = evaluate(query, gallery, *metas, make_protocol("same_camera_same_id"), metric=metric)
    assert metrics.values == pytest.approx(
        {
            **{f"Rank-{k}": 100 * cmc[k - 1] for k in (1, 5, 10, 20)},
            "mAP": 100 * np.mean(precision),
            "mINP": 100 * np.mean(penalty),
        },
        rel=1e-5,
    )


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("width", [1, 5, 64, 257])
@pytest.mark.parametrize("gallery", [1, 7, 63, 65, 1001])
def test_constant_features_never_look_good(metric, width, gallery):
    meta = Meta.collect([Record("", pid) for pid in range(gallery)])
    feature = np.random.default_rng(width).standard_normal(width)
    sides = np.tile(feature, (3, 1)), np.tile(feature, (gallery, 1))
    metrics = evaluate(*sides, meta[[0, 0, 0]], meta, make_protocol(), metric=metric)
    assert metrics.per_query.first.tolist() == [gallery] * 3


def test_cosine_ignores_lengths():
    rng = np.random.default_rng(0)
    case, protocol = random_case(0), make_protocol()
    features = [rng.standard_normal((len(side), 9)) for side in case.metas]
    scaled = [rows * rng.uniform(0.1, 9, (len(rows), 1)) for rows in features]
    pair = [evaluate(*rows, *case.metas, protocol).values for rows in (features, scaled)]
    assert pair[0] == pair[1]


def test_features_of_length_zero_are_far_from_all():
    meta = Meta.collect([Record("", 1), Record("", 2)])
    gallery = np.array([[0.0, 0.0], [1.0, 1.0]])
    # distances of query 1: 1 and 0.29; of the zero query: 1 and 1, a tie
    metrics = evaluate(np.array([[1.0, 0.0], [0.0, 0.0]]), gallery, meta[[0, 1]], meta, make_protocol())
    assert metrics.per_query.first.tolist() == [2, 2]


def test_fingerprint_tells_the_sides_apart():
    meta = Meta.collect([Record("", 1)] * 3)
    pair = [
        evaluate(np.ones((n, 1)), np.ones((3 - n, 1)), meta[:n], meta[n:], make_protocol()).fingerprint for n in (1, 2)
    ]
    assert pair[0] != pair[1]


def test_one_image_gallery():
    meta = Meta.collect([Record("", 4)])
    metrics = evaluate(np.ones((1, 2)), np.zeros((1, 2)), meta, meta, make_protocol())
    assert set(metrics.values.values()) == {100.0}


def test_as_dict_is_the_entry_of_results_json():
    case = random_case(1)
    entry = evaluate(*case.features, *case.metas, make_protocol()).as_dict()
    ranks, counts = ("Rank-1", "Rank-5", "Rank-10", "Rank-20"), ("queries", "skipped_queries", "gallery")
    assert list(entry) == [*ranks, "mAP", "mINP", *counts]
    assert entry["queries"] + entry["skipped_queries"] == 12


def test_order_of_the_images_changes_no_number():
    case, protocol = random_case(2), make_protocol("same_camera_same_id")
    order = [np.random.default_rng(0).permutation(len(side)) for side in case.metas]
    shuffled = Case(
        *([side[n] for n in places] for side, places in zip((case.query, case.gallery), order, strict=True)),
        *(rows[places] for rows, places in zip(case.features, order, strict=True)),
    )
    pair = [evaluate(*c.features, *c.metas, protocol) for c in (case, shuffled)]
    assert pair[0].values == pytest.approx(pair[1].values)
    assert pair[0].fingerprint != pair[1].fingerprint


def test_no_valid_query_says_how_many_were_hidden_by_what():
    gallery = Meta.collect([Record("", 1, camera=3), Record("", 2, camera=3)])
    query = Meta.collect([Record("", 1, camera=3), Record("", 2, camera=3), Record("", 9, camera=3)])
    with pytest.raises(InputError) as error:
        evaluate(np.ones((3, 2)), np.ones((2, 2)), query, gallery, make_protocol("same_camera_same_id"))
    assert str(error.value) == (
        "TEST/ALL: none of the 3 queries has a match left among 2 gallery images "
        "(2 all its gallery images hidden by same_camera_same_id; 1 identity not in gallery)"
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_features_that_are_no_numbers_are_named(bad):
    case = random_case(0)
    features = case.gallery_features.copy()
    features[[3, 5], 1] = bad
    paths = [[record.path for record in side] for side in (case.query, case.gallery)]
    with pytest.raises(InputError, match=r"2 of 40 gallery features .* gallery/3.jpg, gallery/5.jpg$"):
        evaluate(case.query_features, features, *case.metas, make_protocol(), paths=paths)
    with pytest.raises(InputError, match="row 3, row 5"):
        evaluate(case.query_features, features, *case.metas, make_protocol())


def test_wrong_shapes_are_refused():
    case, protocol = random_case(0), make_protocol()
    query, gallery = case.features
    with pytest.raises(InputError, match="query: 11 features for 12 images"):
        evaluate(query[1:], gallery, *case.metas, protocol)
    with pytest.raises(InputError, match="query features are 2 wide, gallery features 3"):
        evaluate(query[:, 1:], gallery, *case.metas, protocol)
    with pytest.raises(InputError, match=r"gallery features have shape \(0, 3\)"):
        evaluate(query, gallery[:0], *case.metas, protocol)
    with pytest.raises(InputError, match=r"metric 'cosin' unknown \(did you mean cosine"):
        evaluate(query, gallery, *case.metas, protocol, metric="cosin")
    with pytest.raises(InputError, match="view source 'guessed' unknown"):
        evaluate(query, gallery, *case.metas, protocol, views="guessed")


@pytest.mark.parametrize("rule", RULES)
def test_rules_that_hide_strangers_are_told_by_their_names(rule):
    records = [Record("", pid, camera=1, view=View.AERIAL, tags={"time": "day"}) for pid in (1, 2)]
    query, gallery = (Meta.collect([record]) for record in records)
    assert hidden_mask(make_protocol(rule), query, gallery).any() == (not rule.endswith(SAME_PERSON_ONLY))
