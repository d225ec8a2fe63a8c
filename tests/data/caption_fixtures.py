"""What tests of captions begin with; a file of them names this one in `pytest_plugins`."""

from __future__ import annotations

from pathlib import Path

import pytest
from caption_subjects import six_images

from agreid_plugin.captioning import Subject


@pytest.fixture
def caption_subjects(tmp_path) -> list[Subject]:
    """Six images where TAG-PEDES has its own."""
    return six_images(tmp_path / "TAG-PEDES" / "images")


@pytest.fixture
def captions_out(tmp_path) -> Path:
    """Where TAG-PEDES has its annotations."""
    return tmp_path / "TAG-PEDES" / "anno_dir" / "train_reid.json"
