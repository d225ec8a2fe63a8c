"""Images and conditions as Milvus takes them: rows of a collection, where every field has a value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from agreid_plugin.retrieval.index.entries import FIELDS, Entry
from agreid_plugin.retrieval.index.filters import NO_TIME, Where


def to_row(entry: Entry, vector: np.ndarray) -> dict[str, Any]:
    """Return an image as Milvus keeps it."""
    values = dict(zip(FIELDS, entry.fields, strict=True))
    time = NO_TIME if entry.time is None else entry.time
    return {**values, "time": time, "tags": dict(entry.tags), "vector": vector}


def from_row(row: dict[str, Any]) -> Entry:
    """Return an image of what Milvus gave."""
    time = None if row["time"] == NO_TIME else row["time"]
    values = {**row, "time": time, "tags": json.dumps(row["tags"])}
    return Entry.from_fields([values[name] for name in FIELDS])


def parts(where: Where, size: int) -> Iterator[Where]:
    """Give conditions with `size` paths at a time, as Milvus does not read any number of them."""
    starts = range(0, max(1, len(where.paths)), size)
    return (replace(where, paths=where.paths[start : start + size]) for start in starts)
