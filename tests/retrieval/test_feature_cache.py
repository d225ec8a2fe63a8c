"""The cache of features."""

import json
import os

import numpy as np
import pytest

from agreid_plugin.errors import InputError
from agreid_plugin.retrieval.feature_cache import FeatureCache
from agreid_plugin.types import UNKNOWN, View

A, G = View.AERIAL, View.GROUND


@pytest.fixture
def files(tmp_path) -> list[str]:
    for name in "abc":
        (tmp_path / f"{name}.jpg").write_text(name)
    return [str(tmp_path / f"{name}.jpg") for name in "abc"]


def filled(path, files, fingerprint="m") -> FeatureCache:
    store = FeatureCache(path, fingerprint)
    for number, file in enumerate(store.missing(files)):
        store.put(file, np.full(2, number, dtype=np.float32), [A, G, UNKNOWN][number % 3])
    store.save()
    return store


def test_a_cache_knows_files_that_did_not_change(tmp_path, files, monkeypatch):
    made = filled(tmp_path / "c.npz", files).chunk(files)
    monkeypatch.chdir(tmp_path)
    relative = ["c.jpg", "a.jpg"]  # the same files by another name
    again = FeatureCache(tmp_path / "c.npz", "m")
    assert again.missing(relative) == []
    found = again.chunk(relative)
    assert [entry.path for entry in found.entries] == relative
    assert (found.vectors == made.vectors[[2, 0]]).all()
    assert [entry.view for entry in found.entries] == [None, A]


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
    assert store.chunk(files).vectors.tolist() == [[0, 0], [7, 7]]
    assert len(np.load(cache)["features"]) == 2


def test_features_of_another_model_are_forgotten(tmp_path, files):
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
    assert len(store.chunk(files).entries) == 3
    assert sorted(os.listdir(tmp_path)) == ["a.jpg", "b.jpg", "c.jpg"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("text", "not a cache: "),
        ("npy", "not a cache: "),
        ("npz", r"it has no 'about'\)"),
        ("cut", "not a cache: "),
        ("other", r"its kind is another\)"),
    ],
)
def test_a_file_that_is_no_cache_is_refused_with_the_reason(tmp_path, files, content, reason):
    path = tmp_path / "c.npz"
    if content == "text":
        path.write_text("mine")
    elif content == "cut":
        filled(path, files)
        path.write_bytes(path.read_bytes()[:-30])
    elif content == "other":
        about = np.frombuffer(json.dumps({"kind": "another"}).encode(), dtype=np.uint8)
        np.savez(path, about=about, features=np.eye(2), views=np.zeros(2))
    else:
        with path.open("wb") as file:
            np.save(file, np.eye(2)) if content == "npy" else np.savez(file, features=np.eye(2))
    before = path.read_bytes()
    with pytest.raises(InputError, match=rf"c\.npz is no cache of gallery features \({reason}.*: choose another"):
        FeatureCache(path, "m")
    assert path.read_bytes() == before


def test_nothing_left(files):
    store = FeatureCache(None, "m")
    store.missing(files)
    with pytest.raises(InputError, match="no image is left"):
        store.chunk(files)
