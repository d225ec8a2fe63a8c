"""Hiding rules: the fast mask against the slow loop, and what stock evaluators can be told."""

import numpy as np
import pytest
from evaluation.evaluation_cases import RULE_SETS

from agreid_plugin.data.protocols import (
    RULES,
    Meta,
    Protocol,
    expressible_by_camera,
    find_unmatched,
    hidden_mask,
    host_camera,
    is_hidden,
    protocol,
    protocols,
)
from agreid_plugin.errors import InputError
from agreid_plugin.types import UNKNOWN, Record, View


def people(count, split, seed):
    """Return records that share identities, cameras, views and times, some of them unknown."""
    rng = np.random.default_rng(seed)
    return [
        Record(
            path=f"{split}{n}",
            pid=int(rng.integers(4)),
            camera=int(rng.choice([UNKNOWN, 0, 1, 2])),
            view=[None, View.AERIAL, View.GROUND][rng.integers(3)],
            split=split,
            tags=[{}, {"time": "day"}, {"time": "night"}][rng.integers(3)],
        )
        for n in range(count)
    ]


def loop(rules, query, gallery):
    chosen = Protocol("any", "any", hide=rules)
    return np.array([[is_hidden(chosen, q, g) for g in gallery] for q in query])


@pytest.mark.parametrize("rules", RULE_SETS, ids="+".join)
def test_mask_equals_the_loop(rules):
    query, gallery = people(40, "query", seed=1), people(60, "gallery", seed=2)
    mask = hidden_mask(Protocol("any", "any", hide=rules), Meta.collect(query), Meta.collect(gallery))
    assert mask.shape == (40, 60)
    assert mask.dtype == bool
    assert np.array_equal(mask, loop(rules, query, gallery))
    assert mask.any() == bool(rules)


def test_unknown_never_hides():
    nobody = Record("a", 1)  # no camera, view or time
    assert not is_hidden(Protocol("any", "any", hide=tuple(RULES)), nobody, nobody)
    meta = Meta.collect([nobody])
    assert not hidden_mask(Protocol("any", "any", hide=tuple(RULES)), meta, meta).any()


def test_one_rule_by_hand():
    day = Record("a", 1, camera=3, view=View.AERIAL, tags={"time": "day"})
    other = Record("b", 2, camera=3, view=View.AERIAL, tags={"time": "night"})
    answers = {rule: is_hidden(Protocol("any", "any", hide=(rule,)), day, other) for rule in RULES}
    assert answers == {
        "same_camera_same_id": False,
        "same_view_same_id": False,
        "same_view": True,
        "same_time": False,
    }


def test_a_rule_that_is_none_is_refused():
    chosen, day = Protocol("any", "any", hide=("same_tme",)), Record("a", 1, tags={"time": "day"})
    meta = Meta.collect([day])
    for ask in (lambda: is_hidden(chosen, day, day), lambda: hidden_mask(chosen, meta, meta)):
        with pytest.raises(InputError, match=r"hiding rule 'same_tme' unknown \(did you mean same_time\?\)"):
            ask()


def test_meta_of_blocks():
    query, gallery = Meta.collect(people(10, "query", 3)), Meta.collect(people(7, "gallery", 4))
    chosen = Protocol("any", "any", hide=("same_view", "same_time"))
    whole = hidden_mask(chosen, query, gallery)
    assert np.array_equal(whole[4:8], hidden_mask(chosen, query[4:8], gallery))
    assert len(Meta.collect([])) == 0
    assert hidden_mask(chosen, Meta.collect([]), gallery).shape == (0, 7)


@pytest.mark.parametrize("rules", RULE_SETS, ids="+".join)
def test_stock_evaluators_hide_the_same(rules):
    chosen = Protocol("any", "any", hide=rules)
    query, gallery = people(40, "query", seed=5), people(60, "gallery", seed=6)
    if not expressible_by_camera(chosen):
        assert len(rules) > 1 or rules[0] in ("same_view", "same_time")
        assert host_camera(chosen, query[0]) is None
        return
    told = [[(record.pid, host_camera(chosen, record)) for record in side] for side in (query, gallery)]
    stock = np.array([[q == g for g in told[1]] for q in told[0]])  # same identity and same camera
    assert np.array_equal(stock, loop(rules, query, gallery))


def test_which_protocols_stock_evaluators_can_run():
    cargo = {name: expressible_by_camera(row) for name, row in protocols("CARGO").items()}
    assert cargo == {name: name != "AG-cross" for name in cargo}
    assert not expressible_by_camera(protocol("TAG-PEDES/T2I"))
    assert host_camera(protocol("CARGO/A2G"), Record("a", 1, camera=4, split="train")) == 4


def test_unmatched_says_why():
    chosen = Protocol("any", "any", hide=("same_camera_same_id", "same_view"))
    query = [
        Record("matched", 1, camera=1, view=View.AERIAL),
        Record("stranger", 2, camera=1, view=View.AERIAL),
        Record("hidden", 3, camera=1, view=View.AERIAL),
    ]
    gallery = [
        Record("x", 1, camera=6, view=View.GROUND),
        Record("y", 3, camera=2, view=View.AERIAL),
    ]
    assert find_unmatched(chosen, query, gallery) == {
        "identity not in gallery": ["stranger"],
        "all its gallery images hidden by same_view": ["hidden"],
    }
