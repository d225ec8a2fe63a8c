"""Policy for unreadable images in training and test sets: refuse them, or skip and count them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from agreid_plugin.data.atomic_write import atomic_write
from agreid_plugin.data.images import ImageInputError
from agreid_plugin.data.workers import Logbook
from agreid_plugin.errors import InputError, printable, require_known

T = TypeVar("T")
POLICIES = ("error", "skip")
LIST_FILE = "bad_images.txt"
"""File in a run's folder that lists the skipped images."""
MAX_SHOWN = 5  # images spelled out in a line about many
SKIP_HINT = "leave out with --skip-bad-images (skip_bad_images=True)"


class Labels(NamedTuple):
    """Labels by which a replacement for an unreadable image is chosen."""

    path: str
    pid: int | str
    view: int


class BadImages:
    """Policy of a dataset for images that cannot be read.

    With `error` they are refused. With `skip` another image replaces it: the next one of the same person and view, else
    of the same person. Which one depends only on the dataset. Skipped images are recorded in memory that data workers
    share with the main process.

    Args:
        count: items of the dataset.
        get_labels: returns the labels of an item.
        policy: `error` or `skip`.
        any_identity: let an image of any other identity replace it as a last resort, as in tests, which drop its
            features by `paths`.
    """

    def __init__(
        self, count: int, get_labels: Callable[[int], Labels], policy: str = "error", any_identity: bool = False
    ):
        require_known("policy for bad images", policy, POLICIES)
        self._get_labels, self._policy, self._any_identity = get_labels, policy, any_identity
        self._logbook = Logbook(self._path)
        self._bad = torch.zeros(count, dtype=torch.uint8).share_memory_() if policy == "skip" else torch.zeros(0)

    def attempt(self, index: int, make: Callable[[int], T]) -> T:
        """Return the result of `make` for an item, or for the one that replaces it.

        Raises:
            InputError: the image cannot be read, and there is none to replace it.
        """
        self._logbook.note(index)
        if self._policy == "error":
            return make(index)
        for place in self._candidates(index):
            if not self._bad[place]:
                try:
                    return make(place)
                except ImageInputError:
                    self._bad[place] = 1
        path, pid, _ = self._get_labels(index)
        raise InputError(f"image {printable(path)} cannot be read, nor any that could stand in for it (identity {pid})")

    def paths(self) -> list[str]:
        """Return the images that this process and its workers have skipped so far, sorted."""
        return sorted({self._path(index) for index in self._bad.nonzero()[:, 0].tolist()})

    def _candidates(self, index: int) -> Iterator[int]:
        """Yield the item itself, then its replacements: the same view first, and of one view those behind it first."""
        yield index
        mine, others = self._get_labels(index), [*range(index + 1, len(self._bad)), *range(index)]
        person = [place for place in others if self._get_labels(place).pid == mine.pid]
        yield from sorted(person, key=lambda place: self._get_labels(place).view != mine.view)
        if self._any_identity:
            yield from others

    def _path(self, index: int) -> str:
        return str(self._get_labels(index).path)


def log_bad_images(folder: str | Path, paths: Iterable[str], subject: str, logger: logging.Logger) -> None:
    """Add skipped images to the list in a run's folder and log one line about them, if there are any.

    Args:
        folder: the run's folder.
        paths: the images.
        subject: the images' purpose, for example `training`.
        logger: gets the line.
    """
    paths = sorted(paths)
    if paths:
        path = _add_to_list(Path(folder) / LIST_FILE, paths)
        first = printable(paths[0])
        logger.warning(f"unreadable {subject} images, passed over: {len(paths)}, first {first}; all are in {path}")


def describe_images(paths: Sequence[str], why: str = "cannot be read") -> str:
    """Return one line: how many images, what is wrong with them, and their first names."""
    return f"{len(paths)} {'image' if len(paths) == 1 else 'images'} {why}: {name_first(paths)}"


def name_first(paths: Sequence[str]) -> str:
    """Return the first of many names, and how many there are."""
    more = f", ... ({len(paths)} in all)" if len(paths) > MAX_SHOWN else ""
    return ", ".join(printable(path) for path in paths[:MAX_SHOWN]) + more


def _add_to_list(path: Path, paths: Iterable[str]) -> Path:
    known = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    lines = sorted({*known, *map(printable, paths)})
    with atomic_write(path) as draft:
        draft.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
