"""Strangers that stand before each visible match, counted for one protocol or for several from the same distances.

Most protocols of a dataset let a query see the same gallery images as another one does: those are counted once.

Shapes: Q queries, G gallery images, M visible matches, S images seen, B rows and C columns of a block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from agreid_plugin.evaluation.ranking import count_within
from agreid_plugin.evaluation.relevance import Matches


@dataclass(frozen=True)
class Share:
    """What a protocol asks of distances.

    Attributes:
        matches: the protocol's matches.
        query: (Q,) the row of each query in the distances.
        gallery: (G,) the column of each gallery image. An image is of one person, whatever the protocol.
    """

    matches: Matches
    query: np.ndarray
    gallery: np.ndarray


@dataclass(frozen=True)
class Strangers:
    """The visible matches of a protocol, (M,) each.

    Attributes:
        query: the match's query.
        gallery: the match.
        count: how many strangers stand before it.
    """

    query: np.ndarray
    gallery: np.ndarray
    count: np.ndarray


class Counting:
    """A count of strangers, made in blocks of distances in which each query of each protocol has to be once.

    Args:
        shares: what the protocols ask of the distances.
    """

    def __init__(self, shares: Sequence[Share]):
        self._shares = shares
        requests: dict[bytes, list[_Request]] = defaultdict(list)  # by the columns of the images that are seen
        pids: dict[bytes, np.ndarray] = {}
        for number, share in enumerate(shares):
            for rows, images in share.matches.sights():
                images = images[np.argsort(share.gallery[images], kind="stable")]
                columns = share.gallery[images].astype(np.int64).tobytes()
                pids[columns] = share.matches.gallery.pid[images]
                requests[columns].append(_request(number, share, rows))
        self._sights = [_Sight(np.frombuffer(key, dtype=np.int64), pids[key], requests[key]) for key in requests]

    def groups(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield rows and the columns that some protocol asks of them, rising; each row once.

        Queries that see different images are apart, so that no distance is computed that no protocol asks for; rows
        of one group have all their columns in common.
        """
        asks = _flags([sight.rows for sight in self._sights])
        offers = _flags([sight.columns for sight in self._sights])
        rows = np.flatnonzero(asks.any(axis=0))
        patterns, pattern = np.unique(asks[:, rows], axis=1, return_inverse=True)
        alike: dict[bytes, list[int]] = {}
        for number, asked in enumerate(patterns.T):
            alike.setdefault(offers[asked].any(axis=0).tobytes(), []).append(number)
        for flags, numbers in alike.items():
            yield rows[np.isin(pattern.ravel(), numbers)], np.flatnonzero(np.frombuffer(flags, dtype=bool))

    def add(self, block: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> None:
        """Count in a block.

        Args:
            block: (B, C) distances, written to meanwhile.
            rows: (B,) their rows, rising.
            columns: (C,) their columns, rising; all that are asked of these rows.
        """
        for sight in self._sights:
            sight.count(block, rows, columns)

    def strangers(self) -> list[Strangers]:
        """Return what was counted for each protocol."""
        found: list[list[Strangers]] = [[] for _ in self._shares]
        for sight in self._sights:
            for each in sight.requests:
                found[each.number].append(Strangers(each.query, each.match, sight.counts(each)))
        return [_join(parts) for parts in found]


@dataclass(frozen=True)
class _Request:
    """The visible matches of some queries of a protocol, (M,) each.

    Attributes:
        number: the protocol's.
        query: the queries.
        match: the matches.
        row: the queries' rows.
        column: the matches' columns.
    """

    number: int
    query: np.ndarray
    match: np.ndarray
    row: np.ndarray
    column: np.ndarray


def _request(number: int, share: Share, rows: np.ndarray) -> _Request:
    places, match = share.matches.visible(rows)
    query = rows[places].astype(np.int32)
    return _Request(number, query, match, share.query[query], share.gallery[match])


class _Sight:
    """The images that some queries see, strangers and matches, under one protocol or several.

    Args:
        columns: (S,) their columns, rising.
        pid: (S,) their identities.
        requests: of each protocol.
    """

    def __init__(self, columns: np.ndarray, pid: np.ndarray, requests: Sequence[_Request]):
        self.columns, self.requests = columns, requests
        self._pairs = np.unique(np.concatenate([self._pair(each) for each in requests]))
        row, column = np.divmod(self._pairs, columns[-1] + 1)
        self.rows, self._starts = np.unique(row, return_index=True)
        self._ends = np.append(self._starts[1:], len(row))
        self._matches = np.searchsorted(columns, column)
        self._counts = np.empty(len(row), dtype=np.int32)
        self._by_pid = np.argsort(pid, kind="stable")
        wanted = pid[self._matches[self._starts]]
        self._first = np.searchsorted(pid[self._by_pid], wanted, side="left")
        self._last = np.searchsorted(pid[self._by_pid], wanted, side="right")

    def counts(self, request: _Request) -> np.ndarray:
        """Return how many strangers stand before each match of a request."""
        return self._counts[np.searchsorted(self._pairs, self._pair(request))]

    def _pair(self, request: _Request) -> np.ndarray:
        return request.row * (self.columns[-1] + 1) + request.column

    def count(self, block: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> None:
        """Count in a block; see `Counting.add`."""
        here = np.flatnonzero(np.isin(self.rows, rows))
        if not len(here):
            return
        places = np.searchsorted(rows, self.rows[here])
        images = as_slice(np.searchsorted(columns, self.columns))
        for place, row in zip(places.tolist(), here.tolist(), strict=True):
            distances = block[place][images]
            pairs = slice(self._starts[row], self._ends[row])
            person = self._by_pid[self._first[row] : self._last[row]]
            kept, limits = distances[person], distances[self._matches[pairs]]
            distances[person] = np.inf
            self._counts[pairs] = count_within(distances, limits)
            distances[person] = kept  # of the block, in which other protocols count


def _join(parts: Sequence[Strangers]) -> Strangers:
    query, gallery, count = zip(*((part.query, part.gallery, part.count) for part in parts), strict=True)
    return Strangers(np.concatenate(query), np.concatenate(gallery), np.concatenate(count))


def as_slice(places: np.ndarray) -> np.ndarray | slice:
    """Return places as a slice, which copies nothing, if they stand one after the other."""
    return slice(places[0], places[-1] + 1) if np.all(np.diff(places) == 1) else places


def _flags(places: Sequence[np.ndarray]) -> np.ndarray:
    flags = np.zeros((len(places), 1 + max(each.max() for each in places)), dtype=bool)
    for line, each in zip(flags, places, strict=True):
        line[each] = True
    return flags
