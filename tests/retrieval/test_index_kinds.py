"""Approximate kinds: chosen by size, measured against exact search, exact where a filter leaves few."""

import resource
import tracemalloc

import faiss
import numpy as np
import pytest
from index_cases import chunks, clustered, entries

from agreid_plugin.errors import InputError
from agreid_plugin.retrieval.index import Where, build_index, faiss_backend, index_types, open_index, searcher
from agreid_plugin.retrieval.index.searcher import MISSING, exact_search, merge_results, rescore
from agreid_plugin.types import View

COUNT, WIDTH = 3000, 16
IMAGES = entries(COUNT)
FEATURES, QUERIES = np.split(clustered(COUNT + 50, WIDTH), [COUNT])


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("kinds")
    every = ("flat", "ivf", "hnsw", "pq")
    return {kind: build_index(folder / kind, chunks(IMAGES, FEATURES, 1000), kind=kind) for kind in every}


def recall(found, truth) -> float:
    sets = [{match.entry.path for match in hits} for hits in found], [{m.entry.path for m in hits} for hits in truth]
    return index_types.measure_recall(*sets)


@pytest.mark.parametrize("kind", ["ivf", "hnsw", "pq"])
def test_recall_is_what_the_index_says(built, kind):
    assert built[kind].kind == kind
    assert built[kind].recall >= index_types.RECALL
    assert built[kind].effort >= index_types.FIRST_EFFORT[kind]
    with open_index(built["flat"].uri) as flat, open_index(built[kind].uri) as index:
        truth, found = flat.search(QUERIES, 10), index.search(QUERIES, 10)
    assert recall(found, truth) == pytest.approx(built[kind].recall, abs=0.05)
    true = {(query, match.entry.path): match.score for query, hits in enumerate(truth) for match in hits}
    for query, hits in enumerate(found):
        for match in hits:
            assert match.score == pytest.approx(true.get((query, match.entry.path), match.score), abs=2e-6)


@pytest.mark.parametrize("few", [0, 10**6], ids=["by the structure", "exactly"])
@pytest.mark.parametrize("kind", ["ivf", "hnsw", "pq"])
def test_filters_hold_and_give_as_many_as_there_are(built, kind, few, monkeypatch):
    monkeypatch.setattr(searcher, "EXACT_UP_TO", few)
    wheres = [Where(view=View.GROUND), Where(tags={"weather": "sun"}, cameras=(2,)), Where(pids=(5,))]
    with open_index(built["flat"].uri) as flat, open_index(built[kind].uri) as index:
        for where in wheres:
            truth, found = flat.search(QUERIES, 10, where), index.search(QUERIES, 10, where)
            assert [len(hits) for hits in found] == [len(hits) for hits in truth]
            assert recall(found, truth) >= (0.9 if few == 0 else 1)
            assert few == 0 or found == truth


@pytest.mark.parametrize("kind", ["ivf", "hnsw", "pq"])
def test_added_images_are_found_behind_the_structure_and_in_it(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(faiss_backend, "LATE_LEAST", 500)
    build_index(tmp_path / "index", chunks(IMAGES[:2000], FEATURES[:2000], 1000), kind=kind)
    with open_index(tmp_path / "index", write=True) as index:
        for start, stop, covered in ((2000, 2400, 2000), (2400, 2600, 2600)):
            index.add(chunks(IMAGES[start:stop], FEATURES[start:stop], 400))
            assert index._about["structure"]["covered"] == covered
            hits = index.search(FEATURES[2000:stop:10], 1)
            own = [match.entry.path for (match,) in hits]
            assert np.mean([path == entry.path for path, entry in zip(own, IMAGES[2000:stop:10], strict=True)]) > 0.9


def test_held_out_rows_have_the_last_numbers():
    structure = index_types.Structure.train("ivf", FEATURES[:500], 20)
    structure.add([FEATURES[:7], FEATURES[7:20]], np.array([0, 3, 4, 19]))
    rows = np.array([1, 2, *range(5, 19), 0, 3, 4, 19])
    assert structure._rows(np.array([[-1, *range(16)]])).tolist() == [[-1, *rows[:16]]]
    structure.add_held_out(FEATURES[[0, 3, 4, 19]])
    assert structure._rows(np.arange(20)).tolist() == rows.tolist()
    assert structure._numbers(rows).tolist() == list(range(20))
    structure.effort = structure.max_effort
    for chosen in (None, np.array([0, 5, 6, 18, 19])):
        found = structure.search(FEATURES[:20], 3, chosen)[1]
        assert (found == exact_search(FEATURES[:20], FEATURES[:20], 3, chosen)[1]).all()


def test_the_kind_follows_the_size(tmp_path, monkeypatch):
    assert [index_types.choose_kind(n) for n in (1, 100_000, 100_001, 300_000, 300_001, 5_000_000, 5_000_001)] == [
        *("flat", "flat", "hnsw", "hnsw", "ivf", "ivf", "pq")
    ]
    monkeypatch.setattr(index_types, "MAX_IMAGES", {"flat": 500, "hnsw": 500, "ivf": 10_000})
    assert build_index(tmp_path / "index", chunks(IMAGES[:500], FEATURES[:500], 500)).kind == "flat"
    with open_index(tmp_path / "index", write=True) as index:
        index.add(chunks(IMAGES[500:800], FEATURES[500:800], 300))
        assert index.info().kind == "ivf"
        assert index.info().recall >= index_types.RECALL


def test_lists_and_codes():
    assert [index_types.count_lists(n) for n in (1, 100, 10_000, 1_000_000, 100_000_000)] == [2, 16, 256, 2048, 16384]
    assert [index_types.count_code_bytes(n) for n in (2, 7, 16, 256, 768, 2048)] == [1, 1, 4, 64, 96, 64]


def test_too_few_images_to_learn_from_are_refused(tmp_path):
    with pytest.raises(InputError, match="index kind pq learns from 256 vectors or more, there are 90: choose flat"):
        build_index(tmp_path / "index", chunks(IMAGES[:100], FEATURES[:100], 100), kind="pq")


@pytest.mark.parametrize(("kind", "text"), [("ivf", "Flat"), ("pq", "IVF2,Flat"), ("hnsw", "IVF2,Flat")])
def test_a_file_of_another_kind_is_refused(tmp_path, kind, text):
    index = faiss.index_factory(WIDTH, text)
    index.train(FEATURES[:100])
    index.add(FEATURES[:100])
    faiss.write_index(index, str(tmp_path / "structure"))
    structure = index_types.Structure.read(tmp_path / "structure", kind, effort=1, held_out=[])
    with pytest.raises(InputError, match="the structure of another index"):
        structure.check(tmp_path / "structure", WIDTH, covered=100)


def test_a_file_that_asks_for_more_memory_than_there_is_is_refused(tmp_path):
    index, path = faiss.index_factory(WIDTH, "HNSW8"), tmp_path / "structure"
    index.add(FEATURES[:100])
    faiss.write_index(index, str(path))
    data = bytearray(path.read_bytes())
    data[37:45] = (2**36).to_bytes(8, "little")  # the size of the graph's first list
    path.write_bytes(data)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**36, before[1]))  # less than that size of numbers takes, anywhere
    try:
        with pytest.raises(InputError, match="structure asks for more memory than there is: free some, or build the"):
            index_types.Structure.read(path, "hnsw", effort=1, held_out=[])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_effort_doubles_until_the_recall_is_there():
    truth, asked = [set(range(10))], []

    def find(effort: int) -> list[set]:
        asked.append(effort)
        return [set(range(min(effort, 8)))]

    assert index_types.tune(find, truth, 1, 100) == (100, 0.8)
    assert asked == [1, 2, 4, 8, 16, 32, 64, 100]
    assert index_types.tune(lambda effort: [set(range(effort))], truth, 3, 100) == (12, 1.0)


def test_exact_search_in_blocks_is_that_of_numpy(monkeypatch):
    monkeypatch.setattr("agreid_plugin.retrieval.index.searcher.BLOCK", 7 * 4 * WIDTH)
    products = QUERIES @ FEATURES[:100].T
    for rows in (np.arange(100), np.arange(3, 100, 9), np.array([5]), np.array([], dtype=np.int64)):
        scores, found = exact_search(FEATURES[:100], QUERIES, 10, rows)
        order = rows[np.argsort(-products[:, rows], axis=1)[:, :10]]
        assert (found[:, : len(rows)] == order).all()
        assert (found[:, len(rows) :] == MISSING).all()
        np.testing.assert_allclose(scores[:, : len(rows)], np.take_along_axis(products, order, 1), rtol=1e-4)


def test_candidates_are_scored_again_and_results_merged():
    candidates = np.array([[4, MISSING, 9, 2]])
    _, rows = rescore(FEATURES, QUERIES[:1], candidates, 3)
    expected = sorted([4, 9, 2], key=lambda row: -(FEATURES[row] @ QUERIES[0]))
    assert rows.tolist() == [expected]
    both = merge_results((np.array([[0.5, 0.1]]), np.array([[1, 2]])), (np.array([[0.3, 9]]), np.array([[3, MISSING]])))
    assert (both[0].tolist(), both[1].tolist()) == ([[0.5, 0.3]], [[1, 3]])


def test_candidates_of_many_queries_are_read_some_at_a_time(monkeypatch):
    vectors, queries = clustered(2000, 64), clustered(32, 64, seed=1)
    rows = np.tile(np.arange(2000), (32, 1))  # of all queries together 16 MB of vectors
    wanted = rescore(vectors, queries, rows, 5)
    monkeypatch.setattr(searcher, "BLOCK", 2**20)
    tracemalloc.start()
    try:
        found, (_, peak) = rescore(vectors, queries, rows, 5), tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    np.testing.assert_array_equal(found[1], wanted[1])
    assert peak < 8 * 2**20


def test_codes_give_no_more_candidates_than_there_are(built, monkeypatch):
    asked, search = [], index_types.Structure.search

    def counted(self, queries, k, rows=None):
        asked.append(k)
        return search(self, queries, k, rows)

    monkeypatch.setattr(index_types.Structure, "search", counted)
    with open_index(built["pq"].uri) as index:
        assert len(index.search(QUERIES[:1], 1000)[0]) == 1000
    assert max(asked) <= COUNT
