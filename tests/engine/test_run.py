"""The order of a run, with a host that only notes what it is asked for."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from agreid_plugin.data.datasets import Dataset
from agreid_plugin.data.protocols import Protocol
from agreid_plugin.engine import run as runs
from agreid_plugin.engine.checks import MARKER
from agreid_plugin.engine.distributed import launch
from agreid_plugin.engine.run import Request, Run, run
from agreid_plugin.errors import InputError, MissingInputError
from agreid_plugin.evaluation import FeatureSet, save_features
from agreid_plugin.evaluation.collector import Evaluation
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.evaluation.ranking_options import RankingOptions
from agreid_plugin.types import Record

FACTS = {"config": {}, "host": "fake", "processes": 1, "seed": 0, "host_fixes": {}, "setup": {}}
ORDER = ["install", "read", "check 1", "claim", "make_datasets", "launch", "install", "process"]


def small_set() -> EvaluationSet:
    """Two people, each seen by two cameras, of a dataset that no protocol of ours knows."""
    splits = {1: "query", 2: "gallery"}  # camera -> split
    records = tuple(Record(f"{pid}_{each}.png", pid, each, split=splits[each]) for pid in (1, 2) for each in splits)
    dataset = Dataset("fake", "nowhere", records)
    rule = Protocol("fake", "ALL", hide=("same_camera_same_id",), source="this test")
    return EvaluationSet(dataset, {"ALL": rule})


def small_features(test_set: EvaluationSet) -> FeatureSet:
    vectors = np.eye(4, 8, dtype=np.float32)
    return test_set.feature_set({record.path: vector for record, vector in zip(test_set.records, vectors, strict=True)})


class FakeHost:
    """Notes its calls; `refuse` names the one that fails."""

    VIEW_KEY = "fake.view"
    __name__ = "fake"

    def __init__(self, calls: list[str], refuse: str = ""):
        self.calls, self.refuse = calls, refuse
        self.seen: list[Run] = []

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call.partition(" ")[0] == self.refuse:
            raise InputError(f"{call} refuses")

    def install(self) -> None:
        self._note("install")

    def read(self, request: Request) -> Run:
        self._note("read")
        return Run(request, "as read", Path(request.output), resume=request.resume, weights=request.weights)

    def check(self, run: Run, world_size: int) -> None:
        assert run.config == "as read"
        self._note(f"check {world_size}")

    def make_datasets(self, run: Run, world_size: int) -> None:
        self._note("make_datasets")

    @contextmanager
    def process(self, run: Run):
        self._note("process")
        self.seen.append(run)
        yield replace(run, config="resolved")
        self.calls.append("process ends")

    def build_training(self, run: Run, interruption: object):
        assert run.config == "resolved"
        self._note("build_training")
        return SimpleNamespace(train=lambda: self._note("train"))

    def build_testing(self, run: Run):
        assert run.config == "resolved"
        self._note("build_testing")
        return FakeTesting(self)

    def facts(self, run: Run, testing: object) -> dict:
        self._note("facts")
        return FACTS

    def comparison(self, config: str) -> RankingOptions:
        assert config == "resolved"
        self._note("comparison")
        return RankingOptions("cosine")


class FakeTesting:
    method = torch.nn.Identity()

    def __init__(self, host: FakeHost):
        self._host, self.test_sets = host, [small_set()]

    def load(self, weights: str) -> list[str]:
        self._host._note(f"load {Path(weights).name}")
        return []

    def evaluate(self) -> list[Evaluation]:
        self._host._note("evaluate")
        (test_set,), options = self.test_sets, RankingOptions("cosine")
        features = small_features(test_set)
        return [Evaluation(test_set, features, options.compute(features, test_set.protocols.values()), options)]

    def verify(self) -> None:
        self._host._note("verify")


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def host(monkeypatch, calls) -> FakeHost:
    """A host in the place of both, and notes of what the run itself does in between."""
    host = FakeHost(calls)
    monkeypatch.setattr(runs, "load_host", {"fastreid": host}.get)
    for name in ("claim", "launch"):
        monkeypatch.setattr(launch, name, noted(calls, name, getattr(launch, name)))
    return host


def noted(calls: list[str], name: str, native):
    def call(*args, **options):
        calls.append(name)
        return native(*args, **options)

    return call


def test_training_claims_its_folder_after_the_checks_and_before_the_launch(host, calls, tmp_path):
    run(Request("a.yml", output=str(tmp_path / "run")))
    assert calls == [*ORDER, "build_training", "train", "process ends"]
    assert host.seen[0].resume is False


@pytest.mark.parametrize("call", ["install", "read", "check"])
def test_nothing_is_written_before_the_checks_have_passed(host, calls, tmp_path, call):
    host.refuse = call
    with pytest.raises(InputError, match=f"{call}.* refuses"):
        run(Request("a.yml", output=str(tmp_path / "run")))
    assert "claim" not in calls
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("call", ["make_datasets", "process", "build_training", "train"])
def test_what_is_refused_before_training_begins_leaves_no_folder(host, tmp_path, call):
    host.refuse = call
    for output, is_left in (("new", False), ("old", True)):
        if is_left:
            (tmp_path / output).mkdir()
        with pytest.raises(InputError, match=f"{call} refuses"):
            run(Request("a.yml", output=str(tmp_path / output)))
        assert (tmp_path / output).exists() == is_left


@pytest.mark.parametrize("file", ["run_card.json", "model_0001.pth", "metrics.json", "1/vis_data/scalars.json"])
def test_what_a_training_has_written_stays(host, monkeypatch, tmp_path, file):
    def train(*_) -> SimpleNamespace:
        (tmp_path / "run" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / file).touch()
        raise InputError("an image cannot be read")

    monkeypatch.setattr(host, "build_training", lambda *_: SimpleNamespace(train=train))
    with pytest.raises(InputError, match="an image cannot be read"):
        run(Request("a.yml", output=str(tmp_path / "run")))
    assert (tmp_path / "run" / file).exists()


def test_a_folder_with_a_run_is_taken_to_resume_only(host, calls, tmp_path):
    (tmp_path / MARKER).write_text("model_0001.pth")
    with pytest.raises(InputError, match="holds a run already: continue it with --resume"):
        run(Request("a.yml", output=str(tmp_path)))
    assert calls == ORDER[:4]
    run(Request("a.yml", output=str(tmp_path), resume=True))
    assert [each.resume for each in host.seen] == [True]


def test_every_process_sees_that_a_claimed_run_goes_on(host, monkeypatch, tmp_path):
    """As after torchrun's restart, where the command itself does not ask for it."""
    monkeypatch.setattr(launch, "claim", lambda *_: True)
    run(Request("a.yml", output=str(tmp_path)))
    (seen,) = host.seen
    assert seen.resume
    assert not seen.request.resume


def test_an_evaluation_writes_results_and_a_card(host, calls, tmp_path):
    weights, out = tmp_path / "w.pth", tmp_path / "eval"
    weights.touch()
    run(Request("a.yml", output=str(out), eval_only=True, weights=str(weights), save_features=str(tmp_path / "f.npz")))
    before = [each for each in ORDER if each != "claim"]
    assert calls == [*before, "build_testing", "load w.pth", "facts", "evaluate", "verify", "process ends"]
    assert {path.name for path in out.iterdir()} == {"results.json", "results.queries.npz", "run_card.json"}
    assert (tmp_path / "f.npz").exists()


def test_an_evaluation_without_its_weights_makes_nothing(host, calls, tmp_path):
    with pytest.raises(MissingInputError, match="weight file '' does not exist"):
        run(Request("a.yml", output=str(tmp_path / "eval"), eval_only=True))
    assert calls == ORDER[:3]
    assert not (tmp_path / "eval").exists()


def test_kept_features_are_evaluated_without_model_and_datasets(host, calls, tmp_path):
    test_set = small_set()
    save_features(tmp_path / "f.npz", small_features(test_set))
    run(Request("a.yml", output=str(tmp_path / "eval"), eval_only=True, features=str(tmp_path / "f.npz")))
    asked = ["install", "read", "check 1", "install", "process", "comparison", "facts", "process ends"]
    assert calls == asked
    assert (tmp_path / "eval" / "results.json").exists()


def test_a_failing_training_leaves_its_error_alone(host, calls, tmp_path):
    host.refuse = "train"
    with pytest.raises(InputError, match="train refuses"):
        run(Request("a.yml", output=str(tmp_path)))
    assert calls[-1] == "train"
