"""Both engines of an index: exact search, filters, removal and replacement, against a slow loop and each other."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from index_cases import FILTERS, WIDTH, chunks, entries, slow, vectors

from agreid_plugin.errors import InputError
from agreid_plugin.retrieval.index import Chunk, Entry, Match, Where, build_index, open_index, search_queries
from agreid_plugin.types import View

IMAGES, COUNT = entries(160), 160
FEATURES, QUERIES = vectors(160), vectors(4, seed=1)


@pytest.fixture(params=["folder", "gallery.db"])
def uri(request, tmp_path) -> str:
    return str(tmp_path / request.param)


@pytest.fixture(scope="module", params=["folder", "gallery.db"])
def index(request, tmp_path_factory):
    uri = tmp_path_factory.mktemp("index") / request.param
    build_index(uri, chunks(IMAGES, FEATURES), fingerprint="m")
    with open_index(uri) as opened:
        yield opened


def assert_same(found, images, features, queries, k, where) -> None:
    for query, matches in zip(queries, found, strict=True):
        expected = slow(images, features, query, k, where)
        assert [match.entry.path for match in matches] == [path for path, _ in expected]
        assert [match.score for match in matches] == pytest.approx([score for _, score in expected], abs=2e-6)


@pytest.mark.parametrize("where", FILTERS, ids=lambda where: where.milvus()[:40] or "all")
def test_search_is_that_of_a_slow_loop(index, where):
    assert_same(index.search(QUERIES, 7, where), IMAGES, FEATURES, QUERIES, 7, where)


def in_threads(*calls) -> None:
    """Run calls at the same time, each in a thread; raise what one raises."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()


def test_any_thread_may_search_also_several_at_a_time(index):
    def search(shift: int) -> None:
        for where in FILTERS[shift:] + FILTERS[:shift]:
            assert_same(index.search(QUERIES, 7, where), IMAGES, FEATURES, QUERIES, 7, where)
            assert index.info().images == COUNT

    in_threads(*(partial(search, shift) for shift in (0, 3, 6, 9)))


def test_any_thread_may_change_also_while_others_search(uri):
    build_index(uri, chunks(IMAGES[:100], FEATURES[:100]))

    def add(start: int) -> None:
        assert index.add(chunks(IMAGES[start : start + 30], FEATURES[start : start + 30], 3)) == 30

    def search() -> None:
        known = {entry.path: feature / np.linalg.norm(feature) for entry, feature in zip(IMAGES, FEATURES, strict=True)}
        for _ in range(20):
            (matches,) = index.search(FEATURES[:1], 200)
            assert 100 <= len(matches) <= COUNT
            for match in matches:
                assert match.score == pytest.approx(known[match.entry.path] @ known[IMAGES[0].path], abs=2e-6)

    with open_index(uri, write=True) as index:
        in_threads(partial(add, 100), partial(add, 130), search)
        assert_same(index.search(QUERIES, 200), IMAGES, FEATURES, QUERIES, 200, Where())
        in_threads(lambda: index.remove(Where(cameras=(2,))), lambda: index.search(QUERIES, 5))
        index.check()
        images, features = zip(*((e, f) for e, f in zip(IMAGES, FEATURES, strict=True) if e.camera != 2), strict=True)
        assert_same(index.search(QUERIES, 9), images, np.stack(features), QUERIES, 9, Where())


@pytest.mark.parametrize("k", [1, 159, 160, 300])
def test_any_number_of_results(index, k):
    assert_same(index.search(QUERIES, k), IMAGES, FEATURES, QUERIES, k, Where())


def test_what_is_known_of_an_image_comes_back(index):
    found = {match.entry.path: match.entry for match in index.search(QUERIES[:1], COUNT)[0]}
    assert found == {entry.path: entry for entry in IMAGES}


def test_info_tells_what_an_index_holds(index):
    info = index.info()
    assert (info.images, info.width, info.fingerprint, info.chunks, info.complete) == (COUNT, WIDTH, "m", 4, True)
    assert (info.kind, info.recall, info.removed, info.effort) == ("flat", 1.0, 0, 0)
    assert info.size > COUNT * WIDTH * 4
    assert info.backend == ("milvus-lite" if info.uri.endswith(".db") else "faiss")
    index.check()


def test_answers_are_those_of_the_search_command(index):
    (found,) = search_queries(index, ["a man"], QUERIES[:1], 2, Where(view=View.GROUND))
    by_path = {entry.path: entry for entry in IMAGES}
    expected = slow(IMAGES, FEATURES, QUERIES[0], 2, Where(view=View.GROUND))
    assert found.query == "a man"
    assert found.matches == tuple(Match(pytest.approx(score, abs=1e-6), by_path[path]) for path, score in expected)


def test_equal_images_come_by_path_however_many_they_are(uri):
    names = np.random.default_rng(2).permutation(90)
    images = [Entry(f"{name:03d}.jpg") for name in names]
    features = np.repeat(vectors(3), 30, axis=0)
    build_index(uri, chunks(images, features, 7))
    with open_index(uri) as index:
        for k in (1, 5, 29, 30, 31, 90):
            assert_same(index.search(features[:1], k), images, features, features[:1], k, Where())
            scores = [match.score for match in index.search(features[:1], k)[0]]
            assert len(set(scores[:30])) == 1


def test_added_removed_and_replaced_images(uri):
    build_index(uri, chunks(IMAGES, FEATURES))
    later, new = entries(40, start=140), vectors(40, seed=3)  # 20 of them are there already
    kept = dict(zip([entry.path for entry in IMAGES], zip(IMAGES, FEATURES, strict=True), strict=True))
    with open_index(uri, write=True) as index:
        assert index.add(chunks(later, new)) == 40
        kept |= dict(zip([entry.path for entry in later], zip(later, new, strict=True), strict=True))
        gone = [path for path, (entry, _) in kept.items() if entry.view == View.AERIAL and entry.camera == 2]
        assert index.remove(Where(view=View.AERIAL, cameras=(2,))) == len(gone) > 5
        with pytest.raises(InputError, match="removing needs a path or a filter"):
            index.remove(Where())
        one = next(path for path in kept if path not in gone)
        assert index.remove(Where(paths=(one, "nobody.jpg"))) == 1
        images, features = zip(*(kept[path] for path in kept if path not in [*gone, one]), strict=True)
        for where in FILTERS:
            assert_same(index.search(QUERIES, 9, where), images, np.stack(features), QUERIES, 9, where)
    with open_index(uri) as index:
        assert index.info().images == len(images)
        assert_same(index.search(QUERIES, 9), images, np.stack(features), QUERIES, 9, Where())


def test_a_path_twice_in_a_chunk_is_its_last_image(uri):
    build_index(uri, [Chunk([Entry("a"), Entry("b"), Entry("a", camera=4)], np.eye(3))])
    with open_index(uri) as index:
        (matches,) = index.search(np.array([[0.1, 0.2, 1]]), 5)
        assert [match.entry for match in matches] == [Entry("a", camera=4), Entry("b")]


def test_an_interrupted_build_goes_on(uri):
    made = []

    def some(stop: int):
        for number, start in enumerate(range(0, COUNT, 20)):
            if number == stop:
                raise KeyboardInterrupt

            def make(start=start):
                made.append(start)
                return FEATURES[start : start + 20]

            yield Chunk(IMAGES[start : start + 20], make)

    with pytest.raises(KeyboardInterrupt):
        build_index(uri, some(3), fingerprint="m")
    with pytest.raises(InputError, match="is not finished: build it again, which goes on where it stopped"):
        open_index(uri)
    with pytest.raises(InputError, match=r"has vectors of other weights .*'m', not 'other'"):
        build_index(uri, some(99), fingerprint="other")
    with pytest.raises(InputError, match="was begun with kind chosen by size, not ivf"):
        build_index(uri, some(99), fingerprint="m", kind="ivf")
    assert build_index(uri, some(99), fingerprint="m").chunks == 8
    assert made == list(range(0, COUNT, 20))
    with open_index(uri, fingerprint="m") as index:
        assert_same(index.search(QUERIES, 7), IMAGES, FEATURES, QUERIES, 7, Where())
    with pytest.raises(InputError, match="is finished: add to it, or remove it first"):
        build_index(uri, some(99), fingerprint="m")
    with pytest.raises(InputError, match="has vectors of other weights"):
        open_index(uri, fingerprint="other")


def test_what_makes_no_sense_is_refused(index):
    with pytest.raises(InputError, match=r"query vectors are 3 wide, those of .* 8"):
        index.search(np.eye(3))
    with pytest.raises(InputError, match="k=0 should be 1 or more"):
        index.search(QUERIES, 0)
    with pytest.raises(InputError, match="1 of 2 query vectors have length 0 and no direction: row 1"):
        index.search(np.array([[1.0] * WIDTH, [0.0] * WIDTH]))
    with pytest.raises(InputError, match="is open for searching only: open it with write=True"):
        index.remove(Where(view=View.AERIAL))
    with pytest.raises(InputError, match="is open for searching only"):
        index.add([])


def test_bad_chunks_are_refused(uri):
    with pytest.raises(InputError, match="would be empty"):
        build_index(uri, [])
    with pytest.raises(InputError, match=r"index kind 'hsnw' unknown \(did you mean hnsw\?\)"):
        build_index(uri, [], kind="hsnw")
    with pytest.raises(InputError, match="chunk: 3 vectors for 1 images"):
        build_index(uri, [Chunk([Entry("a")], np.eye(3))])
    with pytest.raises(InputError, match="b: vectors are 2 wide, not 1"):
        build_index(uri, [Chunk([Entry("a")], np.eye(1)), Chunk([Entry("b")], np.eye(2)[:1])])
    with pytest.raises(InputError, match="has no gallery index"):
        open_index(uri + "2" if not uri.endswith(".db") else uri[:-3] + "2.db")
