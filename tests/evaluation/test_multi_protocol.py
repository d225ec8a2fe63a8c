"""Many protocols from one set of features: the numbers of single evaluations, with one product and one selection."""

import cProfile
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from evaluation_cases import RULE_SETS, TINY
from torch.utils.flop_counter import FlopCounterMode

from agreid_plugin.data.datasets import Dataset, QueryGallery
from agreid_plugin.data.protocols import Protocol, protocols, select
from agreid_plugin.evaluation import FeatureDistances, FeatureSet, evaluate_all, evaluate_distances, rerank
from agreid_plugin.evaluation.multi_protocol import Task
from agreid_plugin.types import UNKNOWN, Record, View

AERIAL, GROUND = {"view": ("aerial",)}, {"view": ("ground",)}
IMAGE_PROTOCOLS = [
    *(Protocol("MINE", "+".join(rules) or "all", hide=rules, source="a test") for rules in RULE_SETS),
    Protocol("MINE", "A2G", AERIAL, GROUND, source="a test"),
    Protocol("MINE", "G2A", GROUND, AERIAL, ("same_time",), restrict="query_in_gallery", source="a test"),
    Protocol("MINE", "G2G", GROUND, GROUND, ("same_camera_same_id",), source="a test"),
    Protocol("MINE", "list", list_file="list.txt", hide=("same_camera_same_id", "same_view"), source="a test"),
]
TEXT_PROTOCOLS = [
    Protocol("MINE", "T2I", kind="text", source="a test"),
    Protocol("MINE", "T2I-aerial", gallery=AERIAL, kind="text", source="a test"),
    Protocol("MINE", "T2I-other", hide=("same_view",), kind="text", source="a test"),
]


def random_record(rng: np.random.Generator, number: int) -> Record:
    return Record(
        f"{number:04}.jpg",
        pid=int(rng.integers(12)),
        camera=int(rng.choice([UNKNOWN, 0, 1, 2])),
        view=rng.choice([None, View.AERIAL, View.GROUND]),
        split=str(rng.choice(["query", "gallery", "gallery", "test"])),
        captions=("a man",) * int(rng.integers(3)),
        tags={"time": str(rng.choice(["", "day", "night"]))},
    )


def random_set(seed: int, count: int = 240, width: int = 3) -> FeatureSet:
    """Queries, gallery and others in any order, features equal or equally far away, an image twice in a list."""
    rng = np.random.default_rng(seed)
    records = [random_record(rng, number) for number in range(count)]
    queries, gallery = ([each for each in records if each.split == split] for split in ("query", "gallery"))
    lists = {"list.txt": QueryGallery(tuple(queries[::2] * 2), tuple(gallery[::-2] + gallery[:9]))}
    dataset = Dataset("MINE", "", tuple(records), lists=lists)
    shuffled = [records[place] for place in rng.permutation(count)]
    counts = [count, count, *[sum(len(record.captions) for record in records)] * 2]
    arrays = [rng.integers(-2, 3, (rows, width)).astype(np.float32) for rows in counts]
    return FeatureSet(dataset, shuffled, tuple(arrays[:2]), tuple(arrays[2:]), views="given", unreadable=2)


def assert_equal(one, other):
    assert replace(one, per_query=None) == replace(other, per_query=None)
    for name, array in one.per_query.arrays().items():
        np.testing.assert_array_equal(array, other.per_query.arrays()[name])


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("memory", [512, 0.02, TINY])
@pytest.mark.parametrize("seed", range(3))
def test_numbers_are_those_of_each_protocol_by_itself(seed, memory, metric):
    features = random_set(seed)
    found = evaluate_all(features, IMAGE_PROTOCOLS + TEXT_PROTOCOLS, metric=metric, memory=memory)
    assert list(found) == [str(protocol) for protocol in IMAGE_PROTOCOLS + TEXT_PROTOCOLS]
    for protocol in IMAGE_PROTOCOLS + TEXT_PROTOCOLS:
        task = Task.choose(features, protocol)
        distances = FeatureDistances(task.pairs(), metric if protocol.kind == "image" else "cosine")
        expected = evaluate_distances(distances, *task.metas, protocol, views="given")
        assert_equal(found[str(protocol)], replace(expected, unreadable=2))


def test_distances_that_are_made_are_made_for_each_image_protocol():
    features, made = random_set(0), []

    def counting(query, gallery):
        made.append((len(query), len(gallery)))
        return rerank(query, gallery)

    wanted = [IMAGE_PROTOCOLS[0], *TEXT_PROTOCOLS[:1], *IMAGE_PROTOCOLS[-2:]]
    found = evaluate_all(features, wanted, distances=counting)
    tasks = [Task.choose(features, protocol) for protocol in wanted]
    assert made == [(len(task.query), len(task.gallery)) for task in tasks if task.protocol.kind == "image"]
    assert [metrics.distance.split(",")[0] for metrics in found.values()] == ["cosine"] * 4
    assert ["re-ranked" in metrics.distance for metrics in found.values()] == [True, False, True, True]


def cargo(queries: int, gallery: int) -> FeatureSet:
    """Every query has a match in every protocol: eight images of a person, of both views, each of its own camera."""
    records = [
        Record(f"{split}/{n}.jpg", n // 8, camera=n % 8 + 8 * (split == "query"), view=View(n % 2), split=split)
        for split, count in (("gallery", gallery), ("query", queries))
        for n in range(count)
    ]
    features = np.random.default_rng(0).standard_normal((len(records), 16)).astype(np.float32)
    return FeatureSet(Dataset("CARGO", "", tuple(records)), records, (features,))


def operations(features: FeatureSet, wanted: list[Protocol]) -> int:
    with FlopCounterMode(display=False) as counted:
        evaluate_all(features, wanted)
    return counted.get_total_flops()


def test_all_protocols_of_cargo_take_one_product():
    features = cargo(queries=64, gallery=256)
    assert operations(features, list(protocols("CARGO").values())) == 2 * 64 * 256 * 16


def test_no_product_is_larger_than_its_protocols_ask_for():
    features = cargo(queries=128, gallery=256)
    both = [protocols("CARGO")[name] for name in ("A2G", "G2A")]
    assert operations(features, both) == 2 * 2 * 64 * 128 * 16


def test_one_selection_a_protocol():
    features, profile = cargo(64, 256), cProfile.Profile()
    profile.runcall(evaluate_all, features)
    calls = [entry.callcount for entry in profile.getstats() if entry.code is select.__code__]
    assert calls == [len(protocols("CARGO"))]


def test_images_are_asked_once_for_all_protocols():
    """Not again for each protocol: a filter asks one image of each kind."""
    features, profile = cargo(64, 4096), cProfile.Profile()
    profile.runcall(evaluate_all, features)
    asked = [entry.callcount for entry in profile.getstats() if getattr(entry.code, "co_name", "") == "get_property"]
    assert 0 < sum(asked) < 1000


def test_memory_is_bounded():
    features = cargo(queries=400, gallery=16_000)
    evaluate_all(features)  # what is read once for good
    tracemalloc.start()
    try:
        evaluate_all(features, memory=512)
        whole = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        evaluate_all(features, memory=2)
        cut = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    block = 400 * 16_000 * 4
    assert block < whole < 1.5 * block
    assert cut < whole - block + 2 * 2**20
