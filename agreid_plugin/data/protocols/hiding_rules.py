"""Hiding rules: which gallery images a query must not see. An unknown camera, view or time never hides anything.

Shapes: Q queries, G gallery images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from agreid_plugin.errors import require_known, unknown
from agreid_plugin.types import UNKNOWN, Record, view_label


@dataclass(frozen=True)
class Meta:
    """Labels that hiding rules compare, one number an image, `UNKNOWN` where not known.

    Attributes:
        pid: identities.
        camera: cameras.
        view: views.
        time: times of day as numbers without order.
    """

    pid: np.ndarray
    camera: np.ndarray
    view: np.ndarray
    time: np.ndarray

    @classmethod
    def collect(cls, records: Iterable[Record]) -> Meta:
        """Collect the numbers of some records."""
        records = list(records)
        words = [record.tags.get("time", "") for record in records]
        times = {word: _hash_time(word) for word in set(words)}
        columns = (
            [record.pid for record in records],
            [record.camera for record in records],
            [view_label(record.view) for record in records],
            [times[word] for word in words],
        )
        return cls(*(np.array(column, dtype=np.int64) for column in columns))

    def __len__(self) -> int:
        return len(self.pid)

    def __getitem__(self, index: slice | np.ndarray | Sequence[int]) -> Meta:
        return Meta(self.pid[index], self.camera[index], self.view[index], self.time[index])


def _hash_time(word: str) -> int:
    # The same word has to be the same number in every list of records, so it cannot be a place in one of them.
    return int.from_bytes(blake2b(word.encode(), digest_size=7).digest(), "big") if word else UNKNOWN


def _same(query: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    return query[:, None] == gallery[None, :]  # (Q, G)


def _same_known(query: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    return _same(query, gallery) & (query != UNKNOWN)[:, None]


RULES: dict[str, Callable[[Meta, Meta], np.ndarray]] = {
    "same_camera_same_id": lambda q, g: _same(q.pid, g.pid) & _same_known(q.camera, g.camera),
    "same_view_same_id": lambda q, g: _same(q.pid, g.pid) & _same_known(q.view, g.view),
    "same_view": lambda q, g: _same_known(q.view, g.view),
    "same_time": lambda q, g: _same_known(q.time, g.time),
}


def mask(rules: Iterable[str], query: Meta, gallery: Meta) -> np.ndarray:
    """Return (Q, G), True where one of the rules hides the gallery image from the query."""
    hidden = np.zeros((len(query), len(gallery)), dtype=bool)
    for rule in rules:
        hidden |= RULES[require_known("hiding rule", rule, RULES)](query, gallery)
    return hidden


def hides(rule: str, query: Record, gallery: Record) -> bool:
    """Return whether one rule hides one gallery image from one query; the slow form of `mask`."""
    same_id = query.pid == gallery.pid
    if rule == "same_camera_same_id":
        return same_id and query.camera == gallery.camera != UNKNOWN
    if rule == "same_view_same_id":
        return same_id and query.view is not None and query.view == gallery.view
    if rule == "same_view":
        return query.view is not None and query.view == gallery.view
    if rule == "same_time":
        return query.tags.get("time", "") == gallery.tags.get("time", "") != ""
    raise unknown("hiding rule", rule, RULES)
