"""Locations of datasets: roots, what lies below them, AG-Synth's marker file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.data.datasets.tree import normalize_name
from agreid_plugin.data.files import IMAGE_ENDINGS

AGSYNTH_FILE = "agsynth.json"
"""File in the folder of an AG-Synth dataset: the options it was made with."""
AGSYNTH_LEVELS = 5
"""Levels between the folder of an AG-Synth dataset and an image, at most."""
ROOT = "datasets"
DEPTH = 2
"""Levels below a root that are searched."""
MAX_SECONDS = 2.0
"""Time limit for counting the images of one dataset."""
GENERIC = ("dataset",)
"""Names of datasets' folders that identify none."""


def default_root() -> str:
    """Return the folder of datasets when none is given: $FASTREID_DATASETS, else `datasets`."""
    return os.environ.get("FASTREID_DATASETS", ROOT)


def dataset_roots(given: Sequence[str] = ()) -> list[Path]:
    """Return the folders to look for datasets in: those given, else `default_root`."""
    return [Path(each) for each in given or [default_root()]]


def is_agsynth(image: Path) -> bool:
    """Return whether an image belongs to an AG-Synth dataset, which has the layout of a real one."""
    return any((folder / AGSYNTH_FILE).is_file() for folder in list(image.parents)[:AGSYNTH_LEVELS])


def find_datasets(given: Sequence[str] = ()) -> dict[str, str]:
    """Return name -> number of images and folder of each dataset under the roots; then the names of missing ones."""
    found: dict[str, str] = {}
    for root in dataset_roots(given):
        if not root.is_dir():
            found[str(root)] = "no such folder"
        for folder in _walk_folders(root) if root.is_dir() else ():
            name = _identify(folder)
            if name:
                kind = f"{name} (AG-Synth)" if (folder / AGSYNTH_FILE).is_file() else name
                found.setdefault(kind, f"{_count_images(folder)} images in {folder}")
    here = {kind.partition(" ")[0] for kind in found}
    missing = [name for name, source in DATASETS.items() if source.folders and name not in here]
    return {**found, "not here": ", ".join(missing) or "none"}


def _walk_folders(root: Path, depth: int = DEPTH) -> Iterator[Path]:
    yield root
    if depth and not _identify(root):
        for each in sorted(root.iterdir()):
            if each.is_dir() and not each.name.startswith("."):
                yield from _walk_folders(each, depth - 1)


def _identify(folder: Path) -> str:
    names = {normalize_name(alias): name for name, source in DATASETS.items() for alias in source.folders}
    return names.get(normalize_name(folder.resolve().name), "") if folder.name not in GENERIC else ""


def _count_images(folder: Path) -> str:
    count, end = 0, time.monotonic() + MAX_SECONDS
    for _, _, files in os.walk(folder):
        count += sum(os.path.splitext(name)[1].lower() in IMAGE_ENDINGS for name in files)
        if time.monotonic() > end:
            return f"more than {count:,}"
    return f"{count:,}"
