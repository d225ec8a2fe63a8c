"""A disk that is full leaves the file of the run before, or none: never half of one."""

import json
import os
import resource
from contextlib import contextmanager

import pytest
from fuzz_arrays import features_of, results_of

from agreid_plugin.captioning.journal import write_text
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import load_features, load_results, save_features, save_results


@contextmanager
def full_disk(size: int):
    """Let no file grow beyond a size; writing on fails, as it does when the disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def features(tmp_path_factory):
    return features_of(tmp_path_factory.mktemp("images"))


@pytest.mark.parametrize("size", [0, 100, 900])
def test_results(tmp_path, features, size):
    entries = results_of(features)
    with full_disk(size), pytest.raises(InputError, match="cannot be written"):
        save_results(tmp_path / "results.json", entries)
    assert os.listdir(tmp_path) == []
    save_results(tmp_path / "results.json", entries)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with full_disk(size), pytest.raises(InputError, match="cannot be written"):
        save_results(tmp_path / "results.json", entries)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert load_results(tmp_path)["CARGO"]["ALL"].per_query is not None


@pytest.mark.parametrize("size", [0, 100, 900])
def test_features(tmp_path, features, size):
    with full_disk(size), pytest.raises(InputError, match="cannot be written"):
        save_features(tmp_path / "features.npz", features)
    assert os.listdir(tmp_path) == []
    save_features(tmp_path / "features.npz", features)
    assert len(load_features(tmp_path / "features.npz").records) == 9


def test_captions(tmp_path):
    text = json.dumps(["a caption"] * 1000)
    with full_disk(1000), pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / "captions.json", text)
    assert os.listdir(tmp_path) == []
