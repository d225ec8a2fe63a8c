"""The metric of all protocols in mmengine: its numbers, and the same from two processes."""

import os
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from mmengine.dataset import DefaultSampler
from mmengine.evaluator import Evaluator
from mmengine.logging import MMLogger
from mmengine.structures import BaseDataElement
from processes import in_processes, returned_by

from agreid_plugin.data.datasets import Dataset
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import NUMBERS, FeatureSet, evaluate_all
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet, add_validation, choose_protocols
from agreid_plugin.evaluation.ranking_options import Expansion, RankingOptions, Reranking
from agreid_plugin.hosts.mmengine.engine.metrics import SELECTS, MultiProtocolMetric
from agreid_plugin.types import Record, View

IMAGES, WIDTH = 41, 6  # an odd number, which two processes fill up


def cargo(images: int = IMAGES) -> EvaluationSet:
    """Five people before four cameras, from the air and the ground."""
    records = []
    for number in range(images):
        camera = 1 + number % 4
        split = "query" if number % 3 == 0 else "gallery"
        view = View.AERIAL if camera < 3 else View.GROUND
        records.append(Record(f"{number:03d}.jpg", number % 5, camera, view, split=split))
    dataset = Dataset("CARGO", "nowhere", tuple(records))
    return EvaluationSet(dataset, choose_protocols(dataset))


def described() -> EvaluationSet:
    """People with one or two sentences on an image, some to validate with."""
    records = [
        Record(f"{n:03d}.jpg", n % 4, split="val" if n % 3 == 0 else "test", captions=("one", "two")[: 1 + n % 2])
        for n in range(13)
    ]
    dataset = Dataset("TAG-PEDES", "nowhere", tuple(records))
    return add_validation(EvaluationSet(dataset, choose_protocols(dataset)))


def samples(test_set: EvaluationSet) -> list[BaseDataElement]:
    """What a model predicts: features that lean to their person's, so that numbers are neither 0 nor 100."""
    rng = np.random.default_rng(0)
    people = rng.standard_normal((8, WIDTH))
    captions = [(record, text) for record in test_set.records for text in record.captions] if test_set.has_text else []
    about = [(record, None) for record in test_set.records]
    about += [(record, number) for number, (record, _) in enumerate(captions)]
    found = []
    for record, number in about:
        sample = BaseDataElement(metainfo={"img_path": record.path, "caption_number": number})
        feature = people[record.pid] + 1.5 * rng.standard_normal(WIDTH)
        found.append(sample.set_data({"feature": torch.tensor(feature, dtype=torch.float32)}) or sample)
    return found


def evaluate(test_set: EvaluationSet, **arguments) -> tuple[dict[str, float], MultiProtocolMetric]:
    """Evaluate as a loop does, with this process's share of the samples in batches of four."""
    metric = MultiProtocolMetric(**arguments)
    evaluator = Evaluator(metric)
    evaluator.dataset_meta = {"test_set": test_set}
    predicted = samples(test_set)
    mine = [predicted[index] for index in DefaultSampler(predicted, shuffle=False)]
    for start in range(0, len(mine), 4):
        evaluator.process(mine[start : start + 4])
    return evaluator.evaluate(len(predicted)), metric


CASES = {"images": cargo, "captions": described}
COMPARED = [{}, {"metric": "euclidean"}, {"rerank": {"k1": 4, "k2": 2}}, {"expansion": {"k": 2}}]


def one_of_two(folder: Path) -> dict:
    """One of two processes: evaluates its share, in a folder that should stay empty."""
    os.chdir(folder)
    found = {name: evaluate(make())[0] for name, make in CASES.items()}
    found["computes"] = evaluate(cargo())[1].evaluation is not None
    found["error"] = of_nothing(MultiProtocolMetric())
    return found


def of_nothing(metric: MultiProtocolMetric) -> str:
    """What is wrong with an evaluation without any features."""
    metric.dataset_meta = {"test_set": cargo()}
    try:  # `pytest.raises` would keep the frames, and with them the group
        return str(metric.evaluate(IMAGES))
    except InputError as error:
        return str(error)


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What two processes found, in the order of their ranks, and what they left in the folder they ran in."""
    folder, here = tmp_path_factory.mktemp("processes"), tmp_path_factory.mktemp("here")
    return returned_by(2, lambda _: one_of_two(here), folder), list(here.iterdir())


@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_the_numbers_of_one(processes, name):
    expected, _ = evaluate(CASES[name]())
    assert len({value for value in expected.values() if 0 < value < 100}) > 3
    assert len(processes[0]) == 2
    for found in processes[0]:
        assert found[name] == expected


def test_two_processes_leave_no_files_and_one_of_them_computes(processes):
    (main, other), left = processes
    assert left == []
    assert (main["computes"], other["computes"]) == (True, False)


def test_an_error_of_the_main_process_ends_the_other_too(processes):
    assert len(processes[0]) == 2
    for found in processes[0]:
        assert found["error"] == "CARGO: 41 of 41 images and captions have no feature, first 000.jpg"


def group_after_leaving() -> str:
    """One of two processes: whether their group is gone while a metric that evaluated is still there."""
    (_, metric), broken = evaluate(cargo()), MultiProtocolMetric()
    of_nothing(broken)
    dist.barrier()
    group = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    return f"{group()}, {len((metric, broken))} metrics"


def test_no_metric_keeps_the_group_of_processes_alive():
    """gloo may abort a process at whose exit a group is still there."""
    assert in_processes(2, group_after_leaving) == ["None, 2 metrics"] * 2


def test_numbers_are_those_of_the_protocols():
    numbers, metric = evaluate(cargo())
    expected = evaluate_all(metric.evaluation.features)
    assert set(expected) == {f"CARGO/{name}" for name in metric.test_set.protocols}
    for protocol, entry in expected.items():
        for name in NUMBERS:
            assert numbers[f"{protocol}/{name}"] == entry[name]
    assert set(numbers) == set(metric.names())
    assert numbers[SELECTS] == (numbers["CARGO/ALL/mAP"] + numbers["CARGO/ALL/Rank-1"]) / 2


@pytest.mark.parametrize("arguments", COMPARED, ids=lambda arguments: next(iter(arguments), "plain"))
def test_how_images_are_compared_is_given_by_plain_values(arguments):
    made = {"rerank": lambda values: Reranking(**values), "expansion": lambda values: Expansion(**values)}
    comparison = RankingOptions(**{name: made.get(name, str)(value) for name, value in arguments.items()})
    numbers, metric = evaluate(cargo(), **arguments)
    for entry in comparison.compute(metric.evaluation.features, metric.test_set.protocols.values()):
        assert numbers[f"{entry.protocol}/mAP"] == entry["mAP"]
    if arguments:
        assert numbers != evaluate(cargo())[0]


def test_sentences_ask_and_the_validation_split_selects():
    numbers, metric = evaluate(described())
    assert numbers[SELECTS] == (numbers["TAG-PEDES/T2I-val/mAP"] + numbers["TAG-PEDES/T2I-val/Rank-1"]) / 2
    assert len(metric.evaluation.features.captions[0]) == sum(
        len(record.captions) for record in metric.test_set.records
    )


def test_without_a_validation_split_nothing_of_a_text_set_selects():
    test_set = described()
    protocols = {name: each for name, each in test_set.protocols.items() if name != "T2I-val"}
    numbers, metric = evaluate(EvaluationSet(test_set.dataset, protocols))
    assert SELECTS not in numbers
    assert SELECTS not in metric.names()


def test_images_that_come_twice_count_once():
    metric = MultiProtocolMetric()
    metric.dataset_meta = {"test_set": cargo()}
    twice = [sample.to_dict() for sample in samples(cargo()) * 2]
    metric.process(None, twice)
    assert metric.evaluate(2 * IMAGES) == evaluate(cargo())[0]
    assert metric.results == []
    assert isinstance(metric.evaluation.features, FeatureSet)


def test_the_source_of_views_is_kept_with_the_numbers():
    metric = MultiProtocolMetric()
    metric.dataset_meta, metric.views = {"test_set": cargo()}, "predicted"
    metric.process(None, [sample.to_dict() for sample in samples(cargo())])
    metric.evaluate(IMAGES)
    assert metric.evaluation.features.views == metric.evaluation.metrics[0].views == "predicted"


def test_features_that_are_all_alike_are_warned_of(tmp_path):
    MMLogger.get_instance("a run", log_file=tmp_path / "run.log")
    metric = MultiProtocolMetric()
    metric.dataset_meta = {"test_set": cargo()}
    metric.process(None, [{**sample.to_dict(), "feature": torch.ones(WIDTH)} for sample in samples(cargo())])
    metric.evaluate(IMAGES)
    told = "CARGO: the features of 41 different images are all alike"
    assert told in (tmp_path / "run.log").read_text()


def test_true_positive_rates_if_asked_for():
    test_set = cargo(images=200)
    test_set = EvaluationSet(test_set.dataset, {"ALL": test_set.protocols["ALL"]})
    numbers, metric = evaluate(test_set, roc=True)
    rates = metric.comparison.calibrate(metric.evaluation.features, test_set.protocols["ALL"])
    assert numbers["CARGO/ALL/aerial->ground TPR@FPR=0.01"] == 100 * rates.point("aerial->ground", 0.01).tpr
    assert all("TPR@FPR=" in name for name in set(numbers) - set(evaluate(test_set)[0]))


def test_too_few_pairs_for_a_rate_end_nothing():
    assert evaluate(cargo(), roc=True)[0] == evaluate(cargo())[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": "cosin"}, r"metric 'cosin' unknown \(did you mean cosine\?\)"),
        (
            {"rerank": {"wait": 1}},
            r"MultiProtocolMetric: rerank 'wait' unknown \(did you mean weight\?\); known: k1, k2, weight",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        MultiProtocolMetric(**arguments)


def test_what_cannot_be_evaluated_is_refused_before_inference():
    with pytest.raises(InputError, match=r"TAG-PEDES/.*asks with sentences, which rerank cannot compare"):
        MultiProtocolMetric(rerank={}).dataset_meta = {"test_set": described()}
    with pytest.raises(InputError, match="the dataset has no test_set"):
        MultiProtocolMetric().dataset_meta = {"name": "other"}


def test_a_model_that_predicts_no_feature_is_refused():
    with pytest.raises(InputError, match="a data sample has no `feature`"):
        MultiProtocolMetric().process(None, [{"img_path": "a.jpg"}])
