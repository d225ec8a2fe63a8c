"""Which gallery images show a query's person, which of them it may see, and why some queries see none.

Shapes: Q queries, G gallery images, B queries of a block, M visible matches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from agreid_plugin.data.protocols import Meta, Protocol, hidden_mask
from agreid_plugin.data.protocols.matching import why_unmatched
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.validation import check_lengths

SAME_PERSON_ONLY = "_same_id"  # how the name of a rule ends that hides no stranger


class Matches:
    """The visible matches of every query of a protocol, found through identities rather than a (Q, G) matrix.

    Attributes:
        protocol: the protocol.
        query: the queries.
        gallery: the gallery.
        rows: queries that have a visible match.
        skipped: reason -> number of queries without one.
    """

    def __init__(self, protocol: Protocol, query: Meta, gallery: Meta):
        self.protocol, self.query, self.gallery = protocol, query, gallery
        self._order = np.argsort(gallery.pid, kind="stable").astype(np.int32)
        sorted_pids = gallery.pid[self._order]
        self._first = np.searchsorted(sorted_pids, query.pid, side="left")
        self._last = np.searchsorted(sorted_pids, query.pid, side="right")
        hides_strangers = tuple(rule for rule in protocol.hide if not rule.endswith(SAME_PERSON_ONLY))
        self._strangers = replace(protocol, hide=hides_strangers)
        self._columns, self._ends = self._visible()
        counts = np.diff(self._ends, prepend=0)
        self.rows = np.flatnonzero(counts)
        reasons = [self._why(row) for row in np.flatnonzero(counts == 0).tolist()]
        self.skipped = dict(Counter(reasons))

    def _why(self, row: int) -> str:
        return why_unmatched(self.protocol, self.query[[row]], self.gallery[self.same_person(row)])

    def require(self, shape: tuple[int, int]) -> None:
        """Refuse distances of another shape, and queries of which none has a match."""
        check_lengths("query", len(self.query), features=shape[0])
        check_lengths("gallery", len(self.gallery), features=shape[1])
        if not len(self.rows):
            reasons = "; ".join(f"{count} {reason}" for reason, count in self.skipped.items())
            raise InputError(
                f"{self.protocol}: none of the {len(self.query)} queries has a match left among "
                f"{len(self.gallery)} gallery images ({reasons})"
            )

    def same_person(self, row: int) -> np.ndarray:
        """Return the gallery images of a query's person, hidden ones included."""
        return self._order[self._first[row] : self._last[row]]

    def visible(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the visible matches of some queries: place in `rows` and gallery image, (M,) each, places rising."""
        ends = self._ends[rows]
        starts = np.where(rows > 0, self._ends[rows - 1], 0)
        columns = [self._columns[start:end] for start, end in zip(starts, ends, strict=True)]
        return np.repeat(np.arange(len(rows)), ends - starts), np.concatenate([self._columns[:0], *columns])

    def sights(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield queries with a match and the gallery images they see, those that rules for one person hide included."""
        compared = [getattr(self.query, rule.split("_")[1])[self.rows] for rule in self._strangers.hide]
        kinds, kind = np.unique(np.stack([np.zeros_like(self.rows), *compared]), axis=1, return_inverse=True)
        for number in range(kinds.shape[1]):
            rows = self.rows[kind.ravel() == number]
            hidden = hidden_mask(self._strangers, self.query[rows[:1]], self.gallery)[0]
            yield rows, np.flatnonzero(~hidden)

    def leave_strangers(self, rows: np.ndarray, distances: np.ndarray) -> np.ndarray:
        """Make (B, G) distances infinite, in place, except those to strangers the queries may see."""
        if self._strangers.hide:
            hidden = hidden_mask(self._strangers, self.query[rows], self.gallery)
            np.copyto(distances, np.inf, where=hidden)
        for place, row in enumerate(rows):
            distances[place, self.same_person(row)] = np.inf
        return distances

    def _visible(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the visible gallery images, query after query, and where each query's end."""
        by_pid = np.argsort(self.query.pid, kind="stable")
        found = [self._visible_to(rows) for rows in np.split(by_pid, _steps(self.query.pid[by_pid]))]
        rows, columns = (np.concatenate(parts) for parts in zip(*found, strict=True))
        columns = columns[np.argsort(rows, kind="stable")]
        return columns, np.cumsum(np.bincount(rows, minlength=len(self.query)))

    def _visible_to(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (query, gallery image) of all visible matches of queries of one person."""
        columns = self.same_person(rows[0]) if len(rows) else self._order[:0]
        hidden = hidden_mask(self.protocol, self.query[rows], self.gallery[columns])
        places, matches = np.nonzero(~hidden)
        return rows[places], columns[matches]


def _steps(values: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.diff(values)) + 1
