"""Six images of three people, and what the tests of captions do with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trees
from caption_server import Model
from PIL import Image

from agreid_plugin.captioning import Endpoint, ModelBackend, Subject, add_attributes, load_subjects

NAMES = [f"{pid:04d}_c{camera}.jpg" for pid in (1, 2, 5) for camera in (1, 2)]


def six_images(folder: Path) -> list[Subject]:
    """Write images that all differ, camera 1 in the air."""
    folder.mkdir(parents=True)
    for number, name in enumerate(NAMES):
        Image.new("RGB", (4, 8), (40 * number, 0, 0)).save(folder / name, "PNG")
    return load_subjects("folder", folder, aerial_cameras=[1])


def with_file(subjects: Sequence[Subject], folder: Path, content: dict[str, Any]) -> list[Subject]:
    return add_attributes(subjects, trees.write_json(folder / "attributes.json", content))


def backend(model: Model, **options: Any) -> ModelBackend:
    return ModelBackend(Endpoint(model.url, "vlm", **{"retries": 1, "backoff": 0.01, "timeout": 5, **options}))


def sidecar(out: Path, ending: str) -> Path:
    return out.with_name(f"{out.name}.{ending}")
