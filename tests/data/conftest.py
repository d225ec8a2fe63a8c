"""What the tests of captions share: images to describe, a file to write, and a way to a server on this machine."""

from pathlib import Path

import pytest
from caption_subjects import six_images


@pytest.fixture
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def subjects(tmp_path):
    return six_images(tmp_path / "TAG-PEDES" / "images")


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "TAG-PEDES" / "anno_dir" / "train_reid.json"
