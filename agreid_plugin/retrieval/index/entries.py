"""Index entries: an image with its labels, the chunks they come in, and filters that select them.

Shapes: N images, D width.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

import numpy as np

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.validation import FeatureArray, as_features, check_lengths
from agreid_plugin.types import UNKNOWN, Record, View, view_from_label, view_label

FIELDS = ("path", "view", "camera", "pid", "platform", "time", "tags")
"""What is stored of an image, in this order."""
MAX_PATH_BYTES = 4096  # bytes; a Milvus field has to name its limit
MAX_CAMERA = 2**31 - 1  # of a camera, so that every backend can hold it
NAME = re.compile(r"\w[\w.-]*")
CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")  # characters that no backend's query language can quote
NO_TIME = -1e300  # in Milvus, where every comparison needs a number: no image has this time


@dataclass(frozen=True)
class Entry:
    """An image of a gallery.

    Attributes:
        path: the image, and its key in an index: a second image of this path replaces the first.
        view: aerial or ground, None if unknown.
        camera: its number, `UNKNOWN` without one.
        pid: the identity, `UNKNOWN` without one.
        platform: what carries the camera, in lower case; empty if unknown.
        time: when it was taken, in seconds since 1970 (UTC); None if unknown.
        tags: name -> value, other labels to filter by.
    """

    path: str
    view: View | None = None
    camera: int = UNKNOWN
    pid: int = UNKNOWN
    platform: str = ""
    time: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_path(self.path)
        _check_number(self, "camera", MAX_CAMERA)
        _check_number(self, "pid", 2**63 - 1)
        check_tags(self.tags, self.path)
        if self.time is not None and not math.isfinite(self.time):
            raise InputError(f"{self.path}: time {self.time} should be seconds since 1970, or None")
        object.__setattr__(self, "time", None if self.time is None else float(self.time))
        object.__setattr__(self, "platform", self.platform.lower())

    @classmethod
    def from_record(cls, record: Record, time: float | None = None) -> Entry:
        """Return the entry of a dataset's record."""
        known = {name: str(value) for name, value in record.tags.items()}
        return cls(record.path, record.view, record.camera, record.pid, record.platform, time, known)

    @property
    def fields(self) -> tuple[str, int, int, int, str, float | None, str]:
        """The plain values, as they are stored: in the order of `FIELDS`: view as a number, tags as JSON."""
        view = view_label(self.view)
        return self.path, view, self.camera, self.pid, self.platform, self.time, self.tags_text

    @property
    def tags_text(self) -> str:
        """The tags as JSON, in order of their names."""
        return json.dumps(dict(self.tags), sort_keys=True, ensure_ascii=False) if self.tags else "{}"

    @classmethod
    def from_fields(cls, values: Sequence[Any]) -> Entry:
        """Return the entry of stored values."""
        path, view, camera, pid, platform, time, tags = values
        return cls(path, view_from_label(view), camera, pid, platform, time, json.loads(tags))


@dataclass(frozen=True)
class Match:
    """An image that was found, and its cosine with the query."""

    score: float
    entry: Entry


@dataclass(frozen=True)
class SearchResult:
    """The images of an index that are most like a query.

    Attributes:
        query: in words; the path of an image.
        matches: the images, best first.
        notes: lines that a user should read about the query.
        is_image: whether the query is an image, which can be shown beside its matches.
    """

    query: str
    matches: tuple[Match, ...]
    notes: tuple[str, ...] = ()
    is_image: bool = False


@dataclass(frozen=True)
class Chunk:
    """Images that go into an index together, in full or not at all.

    Attributes:
        entries: N images.
        vectors: (N, D) of any length above 0, or a function that computes them, not called for a chunk that is in. It
            may return a chunk instead, of the images that could be read and with labels that were found.
        key: identifies the chunk when a build goes on; empty takes a digest of the entries.
    """

    entries: Sequence[Entry]
    vectors: FeatureArray | Callable[[], FeatureArray | Chunk]
    key: str = ""

    @cached_property
    def name(self) -> str:
        """The key, or the digest that stands for it."""
        if self.key:
            return self.key
        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update(repr(entry.fields).encode())
        return digest.hexdigest()

    def with_vectors(self) -> VectorChunk:
        """Return the chunk with its vectors of length 1, and of a path only the last image."""
        given = self.vectors() if callable(self.vectors) else self.vectors
        if isinstance(given, Chunk):
            return replace(given, key=self.name).with_vectors()
        check_lengths("chunk", len(self.entries), vectors=len(given))
        if not self.entries:
            return VectorChunk((), np.empty((0, 0), dtype=np.float32), self.name)
        vectors = unit_vectors(given, "gallery", [entry.path for entry in self.entries])
        last = {entry.path: place for place, entry in enumerate(self.entries)}
        if len(last) == len(self.entries):
            return VectorChunk(self.entries, vectors, self.name)
        places = sorted(last.values())
        return VectorChunk([self.entries[place] for place in places], vectors[places], self.name)


@dataclass(frozen=True)
class VectorChunk(Chunk):
    """A chunk whose vectors are there, as an array: (N, D)."""

    vectors: np.ndarray


def unit_vectors(vectors: FeatureArray, side: str, paths: Sequence[str] | None = None) -> np.ndarray:
    """Return vectors scaled to length 1, whose inner products are cosines: (N, D) float32, a copy."""
    array = as_features(vectors, side, paths).cpu().numpy()
    lengths = np.linalg.norm(array, axis=1, keepdims=True)
    (zeros,) = np.nonzero(lengths[:, 0] == 0)
    if len(zeros):
        name = f"row {zeros[0]}" if paths is None else paths[zeros[0]]
        raise InputError(f"{len(zeros)} of {len(array)} {side} vectors have length 0 and no direction: {name}")
    return np.ascontiguousarray(array / lengths)


def check_tags(tags: Mapping[str, str], where: str) -> None:
    """Refuse tags whose names cannot be asked for, or whose values are no text."""
    for name, value in tags.items():
        if not NAME.fullmatch(name):
            raise InputError(f"{where}: tag {name!r} should be named with letters, digits, _, - or .")
        if not isinstance(value, str) or CONTROL.search(value):
            raise InputError(f"{where}: tag {name} is {value!r}, but should be text in one line")


def is_valid_path(path: str) -> bool:
    """Whether every backend can keep an image by this path: text without control characters."""
    return bool(path) and not CONTROL.search(path) and len(path.encode()) <= MAX_PATH_BYTES


def _check_path(path: str) -> None:
    if not is_valid_path(path):
        raise InputError(
            f"path {path[:80]!r} should have 1 to {MAX_PATH_BYTES} bytes, none of them a control character"
        )


def _check_number(entry: Entry, name: str, largest: int) -> None:
    value = getattr(entry, name)
    if not isinstance(value, int | np.integer) or not UNKNOWN <= value <= largest:
        raise InputError(f"{entry.path}: {name} {value!r} should be a number from 0 to {largest}, or {UNKNOWN}")
    object.__setattr__(entry, name, int(value))


@dataclass(frozen=True)
class Where:
    """Conditions that all have to hold; one that is not given does. An unknown label meets no condition.

    Attributes:
        view: aerial or ground.
        cameras: one of these.
        pids: one of these identities.
        platform: what carries the camera; case does not matter.
        after: not before this time, in seconds since 1970.
        before: earlier than this time.
        tags: name -> value, all of them.
        paths: one of these images.
    """

    view: View | None = None
    cameras: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    platform: str = ""
    after: float | None = None
    before: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_tags(self.tags, "filter")
        if self.after is not None and self.before is not None and self.after >= self.before:
            raise InputError(f"no time is after {self.after:g} and before {self.before:g}: swap them")
        for name in ("cameras", "pids"):
            object.__setattr__(self, name, tuple(int(value) for value in getattr(self, name)))
        object.__setattr__(self, "paths", tuple(self.paths))

    def __bool__(self) -> bool:
        return any(getattr(self, one.name) not in (None, "", (), {}) for one in fields(self))

    @property
    def key(self) -> str:
        """Tells the conditions from others."""
        condition, values = self.sql()
        return json.dumps([condition, *values])

    def sql(self) -> tuple[str, list[str | float]]:
        """Return a condition of SQLite and its values; `1` for no condition."""
        parts: list[str] = []
        values: list[str | float] = []
        if self.view is not None:
            parts.append("view = ?")
            values.append(int(self.view))
        for column, wanted in (("camera", self.cameras), ("pid", self.pids), ("path", self.paths)):
            if wanted:  # one value however many they are: SQLite limits their number
                parts.append(f"{column} IN (SELECT value FROM json_each(?))")
                values.append(json.dumps(wanted))
        if self.platform:
            parts.append("platform = ?")
            values.append(self.platform.lower())
        for sign, time in ((">=", self.after), ("<", self.before)):
            if time is not None:
                parts.append(f"time {sign} ?")
                values.append(time)
        for name, value in self.tags.items():
            parts.append("json_extract(tags, ?) = ?")
            values += [f'$."{name}"', value]
        return " AND ".join(parts) or "1", values

    def milvus(self) -> str:
        """Return an expression of Milvus, empty for no condition."""
        parts = [] if self.view is None else [f"view == {int(self.view)}"]
        for column, wanted in (("camera", self.cameras), ("pid", self.pids)):
            if wanted:
                parts.append(f"{column} in {list(wanted)}")
        if self.paths:
            parts.append(f"path in [{', '.join(map(quote, self.paths))}]")
        if self.platform:
            parts.append(f"platform == {quote(self.platform.lower())}")
        if self.after is not None:
            parts.append(f"time >= {self.after!r}")
        if self.before is not None:
            parts.append(f"time > {NO_TIME!r} and time < {self.before!r}")
        parts += [f"tags[{quote(name)}] == {quote(value)}" for name, value in self.tags.items()]
        return " and ".join(parts)


ANY = Where()
"""Every image."""


def quote(text: str) -> str:
    """Return text as Milvus reads it in an expression."""
    return json.dumps(text, ensure_ascii=False)


def parse_time(text: str) -> float:
    """Return seconds since 1970 of `2026-05-31`, `2026-05-31T14:30` (UTC unless it says `+02:00`), or of a number.

    Example:
        >>> parse_time("1970-01-02"), parse_time("1970-01-01T02:00+01:00"), parse_time("7.5")
        (86400.0, 3600.0, 7.5)
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds):
        return seconds
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise InputError(f"time {text!r} cannot be read: write 2026-05-31 or 2026-05-31T14:30") from None
    return (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()
