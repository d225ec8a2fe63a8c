"""What hosts share to tell of results: tables, files, thresholds, and whose log says it."""

import json
import logging
from errno import ENOSPC

import numpy as np
import pytest
from mmengine.logging.logger import FilterDuplicateWarning

from agreid_plugin.data.datasets import load
from agreid_plugin.engine.checkpoints import tolerate_full_disk
from agreid_plugin.engine.report import forward_logs, report, save_thresholds
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import FeatureSet
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet, choose_protocols, computable
from agreid_plugin.evaluation.ranking_options import RankingOptions

_logger = logging.getLogger("a_host.run")


@pytest.fixture(scope="module")
def features(agsynth) -> FeatureSet:
    dataset = load("CARGO", agsynth)
    records = EvaluationSet(dataset, choose_protocols(dataset)).records
    array = np.random.default_rng(0).standard_normal((len(records), 4)).astype(np.float32)
    return FeatureSet(dataset, records, (array,))


@pytest.fixture
def host():
    """A host's logger that keeps what it is told, and nothing left behind."""
    logger, records = logging.getLogger("a_host"), []
    handler = logging.Handler()
    handler.emit = records.append
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield logger, records
    logger.removeHandler(handler)
    ours = logging.getLogger("agreid_plugin")
    ours.handlers.clear()
    ours.setLevel(logging.NOTSET)


def test_results_are_written_and_shown(features, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    metrics = RankingOptions().compute(features, computable(features, ["ALL", "A2G"]))
    report(tmp_path / "results.json", metrics, logger=_logger)
    kept = json.loads((tmp_path / "results.json").read_text())
    assert list(kept["CARGO"]) == ["ALL", "A2G"]
    (shown,) = caplog.records
    assert shown.name == "a_host.run"
    assert f"kept in {tmp_path / 'results.json'}" in shown.getMessage()
    assert shown.printed
    report(tmp_path / "results.json", metrics, 20, _logger)
    assert "95 % confidence over query identities, 20 draws" in caplog.records[-1].getMessage()
    assert caplog.records[-1].printed


def test_protocols_without_features_are_left_out(features, caplog):
    caplog.set_level(logging.INFO)
    every = [protocol.name for protocol in computable(features, [])]
    assert every == list(choose_protocols(features.dataset))
    aerial = [place for place, record in enumerate(features.records) if record.view == 0]
    some = FeatureSet(features.dataset, [features.records[n] for n in aerial], (features.images[0][aerial],))
    assert [protocol.name for protocol in computable(some, [], _logger)] == ["A2A"]
    assert "left out, features were not extracted for them: A2G" in caplog.text
    none = FeatureSet(features.dataset, features.records[:1], (features.images[0][:1],))
    with pytest.raises(InputError, match="the features cover no protocol of CARGO; extract them again"):
        computable(none, [])


def test_thresholds_are_kept_by_protocol(features, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    wide = FeatureSet(features.dataset, features.records, (np.tile(features.images[0], 2),))
    chosen = computable(wide, ["ALL"])
    save_thresholds(tmp_path, RankingOptions(), wide, chosen, _logger)
    kept = json.loads((tmp_path / "calibration_CARGO_ALL.json").read_text())
    assert kept == json.loads(json.dumps(RankingOptions().calibrate(wide, chosen[0]).as_dict()))
    assert f"same-person thresholds of CARGO/ALL in {tmp_path}" in caplog.text


def test_the_host_says_what_the_package_logs(host):
    logger, records = host
    forward_logs(logger)
    forward_logs(logger)  # a second run in one process
    logging.getLogger("agreid_plugin.inference.weights").info("loaded %d", 3)
    assert [record.getMessage() for record in records] == ["loaded 3"]
    logger.setLevel(logging.WARNING)
    logging.getLogger("agreid_plugin.inference.weights").info("loaded %d", 4)
    assert len(records) == 1


def test_warnings_of_one_pattern_are_all_told_by_mmengine(host):
    logger, records = host
    (handler,) = logger.handlers
    handler.addFilter(FilterDuplicateWarning())
    forward_logs(logger)
    for name in ("epoch_1.pth", "epoch_2.pth", "epoch_2.pth"):
        logging.getLogger("agreid_plugin.inference.weights").warning("%s was not written", name)
    assert [record.getMessage() for record in records] == ["epoch_1.pth was not written", "epoch_2.pth was not written"]


def test_the_host_tells_of_a_full_disk(host, tmp_path):
    logger, records = host
    forward_logs(logger)
    with tolerate_full_disk(tmp_path / "x.pth"):
        raise OSError(ENOSPC, "No space left on device")
    (told,) = records
    assert told.getMessage().startswith(f"{tmp_path / 'x.pth'} was not written: No space left on device")
