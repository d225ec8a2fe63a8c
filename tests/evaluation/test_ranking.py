import numpy as np
import pytest
from fastreid.evaluation.rank import eval_market1501

from agreid_plugin.evaluation.ranking import MAX_COUNTED, count_within, rank, score


def test_scores_by_hand():
    # group 7: strangers 1 and 2 before its matches -> ranks 2 and 4; group 3: one match at rank 1
    scores = score(np.array([7, 3, 7]), np.array([2, 0, 1]))
    assert scores.group.tolist() == [3, 7]
    assert scores.precision == pytest.approx([1, (1 / 2 + 2 / 4) / 2])
    assert scores.inverse_penalty == pytest.approx([1, 2 / 4])
    assert scores.first.tolist() == [1, 2]


@pytest.mark.parametrize("limits", [0, 1, MAX_COUNTED, MAX_COUNTED + 1, 3 * MAX_COUNTED])
def test_counting_and_sorting_agree_with_ties(limits):
    rng = np.random.default_rng(limits)
    distances, limits = rng.integers(0, 9, 200).astype(np.float32), rng.integers(-1, 11, limits).astype(np.float32)
    assert count_within(distances, limits).tolist() == [sum(distances <= limit) for limit in limits]


def test_metrics_by_hand():
    # order: stranger .1, match .2, stranger .3, match .4 -> ranks 2 and 4
    distances = np.array([[0.4, 0.1, 0.2, 0.3]])
    result = rank(distances, np.array([[True, False, True, False]]), np.zeros((1, 4), bool), max_rank=3)
    assert result.precision == pytest.approx([(1 / 2 + 2 / 4) / 2])
    assert result.inverse_penalty == pytest.approx([2 / 4])
    assert result.cmc.tolist() == [0, 1, 1]


def test_constant_features_get_the_worst_ranks():
    result = rank(np.zeros((1, 5)), np.array([[True, False, False, False, False]]), np.zeros((1, 5), bool), max_rank=5)
    assert result.cmc.tolist() == [0, 0, 0, 0, 1]


def test_queries_without_a_visible_match_do_not_count():
    is_match = np.array([[True, False], [False, False], [True, False]])
    hidden = np.array([[True, False], [False, False], [False, False]])
    result = rank(np.array([[0.0, 1.0]] * 3), is_match, hidden, max_rank=2)
    assert result.valid.tolist() == [False, False, True]
    assert result.cmc.tolist() == [1, 1]


def test_no_valid_query_gives_empty_results():
    result = rank(np.zeros((2, 3)), np.zeros((2, 3), bool), np.zeros((2, 3), bool), max_rank=2)
    assert not result.valid.any()
    assert len(result.precision) == 0
    assert result.cmc.tolist() == [0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_hosts_python_loop(seed):
    rng = np.random.default_rng(seed)
    distances = rng.random((30, 120))  # without ties, where the host's unstable sort is at chance
    q_pids, g_pids = rng.integers(0, 12, 30), rng.integers(0, 12, 120)
    q_cams, g_cams = rng.integers(0, 3, 30), rng.integers(0, 3, 120)
    cmc, precision, inverse_penalty = eval_market1501(distances, q_pids, g_pids, q_cams, g_cams, max_rank=20)
    same = q_pids[:, None] == g_pids
    ours = rank(distances, same, same & (q_cams[:, None] == g_cams), max_rank=20)
    np.testing.assert_allclose(ours.cmc, cmc, atol=1e-6)
    np.testing.assert_allclose(ours.precision, precision)
    np.testing.assert_allclose(ours.inverse_penalty, inverse_penalty)
