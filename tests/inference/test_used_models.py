"""Models that were used: kept by their fingerprint, and nothing is lost where they cannot be."""

import json
from pathlib import Path

import pytest

from agreid_plugin.inference.used_models import KEPT, UsedModel, recall, remember


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "agreid_plugin" / "models.json"


def test_a_model_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    remember("abc", "a.yml", "a.pth", ["MODEL.DEVICE", "cpu"])
    remember("abcd", "b.py", None)
    monkeypatch.chdir("/")
    assert recall("abc") == UsedModel(f"{tmp_path}/a.yml", f"{tmp_path}/a.pth", ("MODEL.DEVICE", "cpu"))
    assert recall("abcd") == UsedModel(f"{tmp_path}/b.py", None)
    assert recall("ab") is None


def test_the_last_used_ones_are_kept():
    for number in [*range(KEPT), 0, KEPT]:
        remember(str(number), "a.yml", None)
    assert recall("1") is None
    assert all(recall(str(number)) for number in (0, 2, KEPT))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"abc": 3}', '{"abc": {"config": 1}}', '{"abc": {"x": "y"}}'])
def test_a_damaged_file_is_as_none(file, content):
    file.parent.mkdir()
    file.write_text(content)
    assert recall("abc") is None
    remember("abc", "/a.yml", None)
    assert recall("abc") == UsedModel("/a.yml", None)


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    remember("abc", "a.yml", None)
    assert recall("abc") is None


def test_the_file_can_be_read(file):
    remember("abc", "/a.yml", "/a.pth")
    assert json.loads(file.read_text()) == {"abc": {"config": "/a.yml", "weights": "/a.pth", "overrides": []}}
