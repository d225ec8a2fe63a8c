"""Search: ranking against a slow loop, ties, views, and the cache of features."""

import os

import numpy as np
import pytest

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.feature_cache import FeatureCache
from agreid_plugin.evaluation.search import Answer, Gallery, Hit, answers, rank
from agreid_plugin.types import UNKNOWN, View

A, G = View.AERIAL, View.GROUND


def slow(features: np.ndarray, query: np.ndarray, top: int) -> list[tuple[int, float]]:
    scored = []
    for place, feature in enumerate(features.astype(float)):
        scored.append((place, feature @ query / (np.linalg.norm(feature) * np.linalg.norm(query))))
    return sorted(scored, key=lambda pair: -pair[1])[:top]


@pytest.mark.parametrize(("images", "top"), [(200, 7), (200, 1), (5, 9), (1, 1)])
def test_ranking_is_that_of_a_slow_loop(images, top):
    random = np.random.default_rng(0)
    features, queries = random.normal(size=(images, 12)), random.normal(size=(4, 12))
    places, scores = rank(features * random.uniform(0.1, 9, size=(images, 1)), queries, top)
    assert places.shape == scores.shape == (4, min(images, top))
    for query, own, cosines in zip(queries, places, scores, strict=True):
        expected = slow(features, query, top)
        assert own.tolist() == [place for place, _ in expected]
        assert cosines == pytest.approx([score for _, score in expected], abs=1e-6)


def test_equal_images_keep_the_order_of_the_gallery():
    random = np.random.default_rng(1)
    features = np.repeat(random.normal(size=(3, 8)), 50, axis=0)[random.permutation(150)]
    places, scores = rank(features, features[[4]], 150)
    first = [place for place in range(150) if (features[place] == features[4]).all()]
    assert places[0, :50].tolist() == first
    assert scores[0, :50] == pytest.approx(np.ones(50), abs=1e-6)
    assert len(set(scores[0].tolist())) == 3


def test_answers_have_rank_path_score_and_view():
    gallery = Gallery(["a", "b", "c"], np.array([[1.0, 0], [0, 2], [3, 3]]), np.array([A, UNKNOWN, G]))
    (found,) = answers(gallery, ["up"], np.array([[0.0, 5]]), top=2)
    assert found == Answer("up", (Hit(1, "b", 1.0), Hit(2, "c", pytest.approx(0.5**0.5), G)))
    assert [hit.view_word for hit in found.hits] == ["", "ground"]


def test_a_view_keeps_its_images():
    gallery = Gallery(["a", "b", "c"], np.eye(3), np.array([A, G, A]))
    kept = gallery.of_view(A)
    assert kept.paths == ["a", "c"]
    assert (kept.features == np.eye(3)[[0, 2]]).all()
    with pytest.raises(InputError, match=r"none of the 2 images is taken for one of the ground view"):
        kept.of_view(G)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(InputError, match="top=0 should be 1 or more"):
        rank(np.eye(2), np.eye(2), 0)
    with pytest.raises(InputError, match="query features are 3 wide, gallery features 2"):
        rank(np.eye(2), np.eye(3), 1)
    with pytest.raises(InputError, match="gallery: 1 views for 2 images"):
        Gallery(["a", "b"], np.eye(2), np.array([A]))
    with pytest.raises(InputError, match="queries: 2 features for 1 images"):
        answers(Gallery(["a"], np.eye(1), np.array([A])), ["one"], np.ones((2, 1)), 1)


@pytest.fixture
def files(tmp_path) -> list[str]:
    for name in "abc":
        (tmp_path / f"{name}.jpg").write_text(name)
    return [str(tmp_path / f"{name}.jpg") for name in "abc"]


def filled(path, files, maker="m") -> FeatureCache:
    store = FeatureCache(path, maker)
    for number, file in enumerate(store.missing(files)):
        store.put(file, np.full(2, number, dtype=np.float32), [A, G, UNKNOWN][number % 3])
    store.save()
    return store


def test_a_cache_knows_files_that_did_not_change(tmp_path, files, monkeypatch):
    made = filled(tmp_path / "c.npz", files).gallery(files)
    monkeypatch.chdir(tmp_path)
    relative = ["c.jpg", "a.jpg"]  # the same files by another name
    again = FeatureCache(tmp_path / "c.npz", "m")
    assert again.missing(relative) == []
    found = again.gallery(relative)
    assert found.paths == relative
    assert (found.features == made.features[[2, 0]]).all()
    assert found.views.tolist() == [UNKNOWN, A]


def test_a_changed_file_is_missing_and_a_removed_one_forgotten(tmp_path, files):
    cache = tmp_path / "c.npz"
    filled(cache, files)
    os.utime(files[1], ns=(1, 1))
    store = FeatureCache(cache, "m")
    assert store.missing(files[1:]) == [files[1]]
    os.remove(files[2])
    store.put(files[1], np.array([7.0, 7], dtype=np.float32), G)
    store.save()
    store = FeatureCache(cache, "m")
    assert store.missing(files) == [files[2]]  # the first was not asked for in between, and is kept
    assert store.gallery(files).features.tolist() == [[0, 0], [7, 7]]
    assert len(np.load(cache)["features"]) == 2


def test_features_of_another_maker_are_forgotten(tmp_path, files):
    cache = tmp_path / "c.npz"
    filled(cache, files)
    before = cache.read_bytes()
    store = FeatureCache(cache, "other")
    assert store.outdated
    assert store.missing(files) == files
    store.save()  # nothing new: nothing lost
    assert cache.read_bytes() == before
    assert not filled(cache, files, "other").missing(files)
    assert not FeatureCache(cache, "other").outdated
    assert FeatureCache(cache, "m").outdated


def test_without_a_file_nothing_is_written(tmp_path, files):
    store = filled(None, files)
    assert len(store.gallery(files).paths) == 3
    assert sorted(os.listdir(tmp_path)) == ["a.jpg", "b.jpg", "c.jpg"]


@pytest.mark.parametrize("content", ["text", "npy", "npz", "cut"])
def test_a_file_that_is_no_cache_is_refused(tmp_path, files, content):
    path = tmp_path / "c.npz"
    if content == "text":
        path.write_text("mine")
    elif content == "cut":
        filled(path, files)
        path.write_bytes(path.read_bytes()[:-30])
    else:
        with path.open("wb") as file:
            np.save(file, np.eye(2)) if content == "npy" else np.savez(file, features=np.eye(2))
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"c\.npz is no cache of gallery features"):
        FeatureCache(path, "m")
    assert path.read_bytes() == before


def test_nothing_left(tmp_path, files):
    store = FeatureCache(None, "m")
    store.missing(files)
    with pytest.raises(InputError, match="no image is left"):
        store.gallery(files)
