"""What a run finds around it: datasets under their roots, and room on the disks it writes to."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.data.datasets.files import IMAGE_ENDINGS
from agreid_plugin.data.datasets.tree import plain
from agreid_plugin.engine.catalog import Finding
from agreid_plugin.engine.checkpoints import free_bytes
from agreid_plugin.synth import is_agsynth

ROOT = "datasets"
DEPTH = 2
"""Folders below a root in which a dataset's may lie."""
SECONDS = 2.0
"""How long images of one dataset are counted at most."""
GENERIC = ("dataset",)
"""Names of datasets' folders that say nothing."""
GIGABYTE = 1e9
LEAST = {"output": 5.0, "temporary files": 1.0, "shared memory of data workers": 0.5}
"""Gigabytes below which a run may end for want of room."""


def default_root() -> str:
    """Return the folder where datasets are looked for if nobody says another: $FASTREID_DATASETS, else `datasets`."""
    return os.environ.get("FASTREID_DATASETS", ROOT)


def roots(given: Sequence[str] = ()) -> list[Path]:
    """Return the folders where datasets are looked for: those given, else `default_root`."""
    return [Path(each) for each in given or [default_root()]]


def datasets(given: Sequence[str] = ()) -> dict[str, str]:
    """Return what datasets there are: name -> how many images, and where; then those that are not there."""
    found: dict[str, str] = {}
    for root in roots(given):
        if not root.is_dir():
            found[str(root)] = "no such folder"
        for folder in _folders(root) if root.is_dir() else ():
            name = _name_of(folder)
            if name:
                kind = f"{name} (AG-Synth)" if is_agsynth(folder / "any") else name
                found.setdefault(kind, f"{_counted(folder)} images in {folder}")
    here = {kind.partition(" ")[0] for kind in found}
    missing = [name for name, source in DATASETS.items() if source.folders and name not in here]
    return {**found, "not here": ", ".join(missing) or "none"}


def _folders(root: Path, depth: int = DEPTH) -> Iterator[Path]:
    yield root
    if depth and not _name_of(root):
        for each in sorted(root.iterdir()):
            if each.is_dir() and not each.name.startswith("."):
                yield from _folders(each, depth - 1)


def _name_of(folder: Path) -> str:
    names = {plain(alias): name for name, source in DATASETS.items() for alias in source.folders}
    return names.get(plain(folder.resolve().name), "") if folder.name not in GENERIC else ""


def _counted(folder: Path) -> str:
    count, end = 0, time.monotonic() + SECONDS
    for _, _, files in os.walk(folder):
        count += sum(os.path.splitext(name)[1].lower() in IMAGE_ENDINGS for name in files)
        if time.monotonic() > end:
            return f"more than {count:,}"
    return f"{count:,}"


def room(output: str) -> list[Finding]:
    """Say how much room there is where a run writes; too little is a warning."""
    places = {"output": output, "temporary files": tempfile.gettempdir(), "shared memory of data workers": "/dev/shm"}
    return [_room(what, Path(place)) for what, place in places.items() if what == "output" or os.path.isdir(place)]


def _room(what: str, place: Path) -> Finding:
    free = free_bytes(place) / GIGABYTE
    text = f"{free:.1f} GB free for {what} ({place})"
    if free >= LEAST[what]:
        return Finding(True, text)
    return Finding(True, f"{text}: less than {LEAST[what]:g} GB, a run may end for want of room", warns=True)
