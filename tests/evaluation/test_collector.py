"""Features collected in two processes, and the numbers that come of them."""

import logging

import numpy as np
import pytest

from agreid_plugin.data.datasets import Dataset
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import evaluate_all
from agreid_plugin.evaluation.collector import FeatureCollector, Part, evaluate_parts
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet, choose_protocols
from agreid_plugin.evaluation.ranking_options import RankingOptions
from agreid_plugin.types import Record, View

LOGGER = logging.getLogger("host")


@pytest.fixture
def cargo() -> EvaluationSet:
    """Four people, each before two cameras in the air and two on the ground."""
    views = {1: View.AERIAL, 2: View.AERIAL, 3: View.GROUND, 4: View.GROUND}
    splits = {1: "query", 2: "gallery", 3: "query", 4: "gallery"}
    records = tuple(
        Record(f"{pid}_{camera}.jpg", pid, camera, views[camera], split=splits[camera])
        for pid in range(4)
        for camera in views
    )
    dataset = Dataset("CARGO", "nowhere", records)
    return EvaluationSet(dataset, choose_protocols(dataset))


def collect(test_set: EvaluationSet, shares: list[slice], unreadable: tuple[str, ...] = ()) -> list[Part]:
    features = np.random.default_rng(0).standard_normal((len(test_set.records), 3)).astype(np.float32)
    parts = []
    for share in shares:
        collector = FeatureCollector()
        for record, feature in list(zip(test_set.records, features, strict=True))[share]:
            collector.add(record.path, feature)
        parts.append(collector.take(unreadable))
        assert collector.take() == ([], pytest.approx(np.empty((0, 0))), [])
    return parts


def test_processes_whose_shares_overlap_give_the_numbers_of_one(cargo):
    whole, shared = (
        evaluate_parts(collect(cargo, shares), cargo, RankingOptions(), logger=LOGGER)
        for shares in ([slice(None)], [slice(9), slice(7, None), slice(0)])
    )
    assert [entry.values for entry in shared.metrics] == [entry.values for entry in whole.metrics]
    expected = evaluate_all(whole.features, cargo.protocols.values())
    assert [entry.values for entry in whole.metrics] == [entry.values for entry in expected.values()]
    assert whole.rates == {}


def test_unreadable_images_of_any_process_are_left_out(cargo):
    found = evaluate_parts(collect(cargo, [slice(None)], ("0_2.jpg",)), cargo, RankingOptions(), logger=LOGGER)
    assert found.unreadable == {"0_2.jpg"}
    assert [record.path for record in cargo.records if record not in found.features.records] == ["0_2.jpg"]


def test_an_image_without_a_feature_is_refused(cargo):
    with pytest.raises(InputError, match=r"1 of 16 images and captions have no feature, first 3_4\.jpg"):
        evaluate_parts(collect(cargo, [slice(15)]), cargo, RankingOptions(), logger=LOGGER)


def test_too_few_pairs_for_a_rate_are_warned_of(cargo, caplog):
    found = evaluate_parts(collect(cargo, [slice(None)]), cargo, RankingOptions(), roc=True, logger=LOGGER)
    assert set(found.rates) == set(cargo.protocols)
    assert not any(found.rates.values())
    assert "CARGO/ALL" in caplog.text
