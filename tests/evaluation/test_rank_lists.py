"""The first images of rankings: the same as in the numbers, and drawn."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from agreid_plugin.data.datasets import Dataset
from agreid_plugin.data.protocols import protocol
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import FeatureSet
from agreid_plugin.evaluation.rank_lists import build_rank_lists, choose_queries
from agreid_plugin.evaluation.ranking_options import RankingOptions, Reranking
from agreid_plugin.retrieval.result_page import INK
from agreid_plugin.types import Record, View
from agreid_plugin.visualize.ranks import CELL, HEAD, MARGIN, ROW, draw_rank_sheet, format_place
from agreid_plugin.visualize.style import RIGHT, WRONG


def by_hand() -> FeatureSet:
    """One query; its own camera's image, a stranger as near as a match, and one more of each."""
    gallery = [(1, 1), (1, 2), (2, 2), (1, 3), (2, 3)]
    records = [Record("q.png", 1, 1, View.AERIAL, split="query")]
    records += [Record(f"{n}.png", *who, View.GROUND, split="gallery") for n, who in enumerate(gallery)]
    features = np.array([[1, 0], [1, 0], [0.6, 0.8], [0.6, 0.8], [1, 0.1], [0, 1]], dtype=np.float32)
    return FeatureSet(Dataset("CARGO", "", tuple(records)), records, (features,))


def drawn_at_random(seed: int = 0) -> FeatureSet:
    rng = np.random.default_rng(seed)
    views = [View.AERIAL, View.GROUND]
    records = [
        Record(f"{n:02d}", n % 4, n % 3, views[n % 3 // 2], split=("query", "gallery", "gallery")[n % 7 % 3])
        for n in range(40)
    ]
    return FeatureSet(Dataset("CARGO", "", tuple(records)), records, (rng.standard_normal((40, 5)).astype(np.float32),))


def described() -> FeatureSet:
    """Two images of one and of two captions."""
    records = [
        Record("a", 1, split="test", captions=("tall",)),
        Record("b", 2, split="test", captions=("in red", "small")),
    ]
    images, captions = np.eye(2, dtype=np.float32), np.array([[1, 0], [0, 1], [0.9, 0.1]], dtype=np.float32)
    return FeatureSet(Dataset("TAG-PEDES", "", tuple(records)), records, (images,), (captions,))


def test_by_hand():
    (found,) = build_rank_lists(by_hand(), protocol("CARGO/ALL"), RankingOptions(), [0], top=3)
    assert (found.protocol, found.row, found.query.path, found.caption) == ("CARGO/ALL", 0, "q.png", "")
    told = [(each.rank, each.record.path, each.right) for each in found.listed]
    assert told == [(1, "3.png", True), (2, "2.png", False), (3, "1.png", True)]  # 0 is hidden; ties go to the stranger
    assert found.listed[1].distance == pytest.approx(0.4)


@pytest.mark.parametrize("name", ["ALL", "A2G", "AG-cross"])
@pytest.mark.parametrize(
    "comparison", [RankingOptions(), RankingOptions("euclidean", Reranking(4, 2))], ids=["plain", "again"]
)
def test_the_first_match_stands_where_the_numbers_have_it(name, comparison):
    features, chosen = drawn_at_random(), protocol("CARGO", name)
    (metrics,) = comparison.compute(features, [chosen])
    rows = choose_queries(metrics.per_query, 100)
    assert rows == metrics.per_query.row.tolist()
    for first, found in zip(
        metrics.per_query.first, build_rank_lists(features, chosen, comparison, rows, top=100), strict=True
    ):
        assert next(each.rank for each in found.listed if each.right) == found.first_right == first


def test_captions_ask():
    found = build_rank_lists(described(), protocol("TAG-PEDES/T2I"), RankingOptions(), [0, 2], top=1)
    assert [(each.caption, each.listed[0].record.path, each.listed[0].right) for each in found] == [
        ("tall", "a", True),
        ("small", "a", False),
    ]


def test_queries_are_chosen_evenly_or_by_how_bad_they_are():
    (metrics,) = RankingOptions().compute(drawn_at_random(), [protocol("CARGO/ALL")])
    rows, precision = metrics.per_query.row, metrics.per_query.precision
    even = choose_queries(metrics.per_query, 3)
    assert (even[0], even[-1], len(even)) == (rows[0], rows[-1], 3)
    worst = choose_queries(metrics.per_query, 2, "worst")
    assert [precision[rows.tolist().index(row)] for row in worst] == sorted(precision)[:2]


def test_the_best_and_any_queries_are_chosen():
    (metrics,) = RankingOptions().compute(drawn_at_random(), [protocol("CARGO/ALL")])
    rows, precision = metrics.per_query.row.tolist(), metrics.per_query.precision
    best = choose_queries(metrics.per_query, 2, "best")
    assert [precision[rows.index(row)] for row in best] == sorted(precision, reverse=True)[:2]
    drawn = [tuple(choose_queries(metrics.per_query, 3, "random", seed)) for seed in range(8)]
    assert len(set(drawn)) > 1
    assert drawn[0] == tuple(choose_queries(metrics.per_query, 3, "random", 0))
    assert all(len(set(each)) == 3 and set(each) <= set(rows) for each in drawn)


def test_a_picture_tells_right_from_wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("q", 0, 1, 2, 3, 4):
        Image.new("RGB", (32, 64), (9, 9, 200)).save(f"{name}.png")
    (found,) = build_rank_lists(by_hand(), protocol("CARGO/ALL"), RankingOptions(), [0], top=2)
    picture = draw_rank_sheet([found], "CARGO/ALL")
    assert picture.height == HEAD + ROW
    assert [picture.getpixel(format_place(0, rank)) for rank in range(3)] == [INK, RIGHT, WRONG]
    for rank in range(3):
        left, top = format_place(0, rank)
        assert picture.getpixel((left + CELL[0] // 2, top + CELL[1] // 2)) == (9, 9, 200)


def test_the_first_right_one_is_known_and_written_though_it_is_not_drawn(tmp_path, monkeypatch):
    features, chosen = drawn_at_random(), protocol("CARGO", "ALL")
    (metrics,) = RankingOptions().compute(features, [chosen])
    row, first = next(pair for pair in zip(metrics.per_query.row, metrics.per_query.first, strict=True) if pair[1] > 2)
    (found,) = build_rank_lists(features, chosen, RankingOptions(), [row], top=1)
    assert (found.first_right, len(found.listed)) == (first, 1)
    monkeypatch.chdir(tmp_path)
    for each in (found.query, found.listed[0].record):
        Image.new("RGB", (8, 16)).save(each.path, format="PNG")
    pictures = [np.asarray(draw_rank_sheet([each], "CARGO/ALL")) for each in (found, replace(found, first_right=None))]
    changed = (pictures[0] != pictures[1]).any(axis=-1)
    assert changed[HEAD + CELL[1] :, MARGIN : MARGIN + CELL[0]].any()
    assert not changed[: HEAD + CELL[1]].any()


def test_a_caption_stands_in_the_place_of_an_image(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        Image.new("RGB", (32, 64), (9, 9, 200)).save(name, format="PNG")
    (found,) = build_rank_lists(described(), protocol("TAG-PEDES/T2I"), RankingOptions(), [1], top=2)
    place = np.asarray(draw_rank_sheet([found], "TAG-PEDES/T2I"))[HEAD:, MARGIN : MARGIN + CELL[0]]
    assert place.min() == min(INK)
    assert not (place == (9, 9, 200)).all(axis=-1).any()


def test_what_cannot_be_listed_is_refused():
    with pytest.raises(InputError, match="top=0 should be 1 or more"):
        build_rank_lists(by_hand(), protocol("CARGO/ALL"), RankingOptions(), [0], top=0)
    (metrics,) = RankingOptions().compute(by_hand(), [protocol("CARGO/ALL")])
    with pytest.raises(InputError, match=r"choice 'bad' unknown"):
        choose_queries(metrics.per_query, 1, "bad")
    with pytest.raises(InputError, match="count=0 should be 1 or more"):
        choose_queries(metrics.per_query, 0)
