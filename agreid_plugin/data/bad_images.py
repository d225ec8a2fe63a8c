"""Images that cannot be read: refused, or passed over and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from agreid_plugin.data.atomic_write import whole_file
from agreid_plugin.data.images import ImageInputError
from agreid_plugin.data.workers import Logbook
from agreid_plugin.errors import InputError, printable, require_known

T = TypeVar("T")
POLICIES = ("error", "skip")
LIST = "bad_images.txt"
"""File in a run's folder with the images that were passed over."""
SHOWN = 5  # images spelled out in a line about many
SKIP = "leave out with --skip-bad-images (skip_bad_images=True)"


class Labels(NamedTuple):
    """What has to be known of an item for another to stand in for it."""

    path: str
    pid: int | str
    view: int


class BadImages:
    """What a dataset does about images that cannot be read.

    With `error` they are refused. With `skip` another image stands in: the next one of the same person and view, else
    of the same person. Which one depends on nothing but the dataset. What was passed over is noted in memory that data
    workers share with the main process.

    Args:
        count: items of the dataset.
        labels_of: what is known of an item.
        policy: `error` or `skip`.
        anybody: whether an image of anybody may stand in at last. That is for tests, where features must be dropped
            by `paths`.
    """

    def __init__(self, count: int, labels_of: Callable[[int], Labels], policy: str = "error", anybody: bool = False):
        require_known("policy for bad images", policy, POLICIES)
        self._labels_of, self._policy, self._anybody = labels_of, policy, anybody
        self._logbook = Logbook(self._path_of)
        self._bad = torch.zeros(count, dtype=torch.uint8).share_memory_() if policy == "skip" else torch.zeros(0)

    def attempt(self, index: int, make: Callable[[int], T]) -> T:
        """Return what `make` makes of an item, or of the one that stands in for it.

        Raises:
            InputError: the image cannot be read, and there is none to stand in.
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
        path, pid, _ = self._labels_of(index)
        raise InputError(f"image {printable(path)} cannot be read, nor any that could stand in for it (identity {pid})")

    def paths(self) -> list[str]:
        """Return the images that were passed over so far by this process and its workers, sorted."""
        return sorted({self._path_of(index) for index in self._bad.nonzero()[:, 0].tolist()})

    def _candidates(self, index: int) -> Iterator[int]:
        """Yield the item itself, then those that may stand in for it, the likest first and those behind it first."""
        yield index
        mine, others = self._labels_of(index), [*range(index + 1, len(self._bad)), *range(index)]
        person = [place for place in others if self._labels_of(place).pid == mine.pid]
        yield from sorted(person, key=lambda place: self._labels_of(place).view != mine.view)
        if self._anybody:
            yield from others

    def _path_of(self, index: int) -> str:
        return str(self._labels_of(index).path)


def tell_bad_images(folder: str | Path, paths: Iterable[str], of: str, logger: logging.Logger) -> None:
    """Put images that were passed over on the list in a run's folder, and say so in one line, if there are any.

    Args:
        folder: the run's folder.
        paths: the images.
        of: what they are of, `training` for example.
        logger: what says it.
    """
    paths = sorted(paths)
    if paths:
        path = _add_to_list(Path(folder) / LIST, paths)
        first = printable(paths[0])
        logger.warning(f"unreadable {of} images, passed over: {len(paths)}, first {first}; all are in {path}")


def listed(paths: Sequence[str], why: str = "cannot be read") -> str:
    """Return what is wrong with some images and their first names, as one line."""
    return f"{len(paths)} {'image' if len(paths) == 1 else 'images'} {why}: {name_some(paths)}"


def name_some(paths: Sequence[str]) -> str:
    """Return the first of many names, and how many there are."""
    more = f", ... ({len(paths)} in all)" if len(paths) > SHOWN else ""
    return ", ".join(printable(path) for path in paths[:SHOWN]) + more


def _add_to_list(path: Path, paths: Iterable[str]) -> Path:
    known = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    lines = sorted({*known, *map(printable, paths)})
    with whole_file(path) as draft:
        draft.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
