"""Which images of an index a search or a removal is about, and how each engine is asked for them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone

from agreid_plugin.errors import InputError
from agreid_plugin.retrieval.index.entries import check_tags
from agreid_plugin.types import View

NO_TIME = -1e300  # in Milvus, where every comparison needs a number: no image has this time


@dataclass(frozen=True)
class Where:
    """Conditions that all have to hold; one that is not given does. What nobody knows of an image meets no condition.

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
            parts.append(f"path in [{', '.join(map(quoted, self.paths))}]")
        if self.platform:
            parts.append(f"platform == {quoted(self.platform.lower())}")
        if self.after is not None:
            parts.append(f"time >= {self.after!r}")
        if self.before is not None:
            parts.append(f"time > {NO_TIME!r} and time < {self.before!r}")
        parts += [f"tags[{quoted(name)}] == {quoted(value)}" for name, value in self.tags.items()]
        return " and ".join(parts)


ANY = Where()
"""Every image."""


def quoted(text: str) -> str:
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
        told = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise InputError(f"time {text!r} cannot be read: write 2026-05-31 or 2026-05-31T14:30") from None
    return (told if told.tzinfo else told.replace(tzinfo=timezone.utc)).timestamp()
