"""True matches of each query, and the number of negatives that rank before each of them.

Most protocols of a dataset let a query see the same gallery images as another protocol does: those are counted once.

Shapes: Q queries, G gallery images, M visible matches, S visible images, B rows and C columns of a block.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agreid_plugin.data.protocols import Meta, Protocol, hidden_mask
from agreid_plugin.data.protocols.selection import explain_unmatched
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.ranking import count_within
from agreid_plugin.evaluation.validation import check_lengths

SAME_PERSON_ONLY = "_same_id"  # how the name of a rule ends that hides no negatives


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
        hides_negatives = tuple(rule for rule in protocol.hide if not rule.endswith(SAME_PERSON_ONLY))
        self._negatives = replace(protocol, hide=hides_negatives)
        self._columns, self._ends = self._visible()
        counts = np.diff(self._ends, prepend=0)
        self.rows = np.flatnonzero(counts)
        reasons = [self._why(row) for row in np.flatnonzero(counts == 0).tolist()]
        self.skipped = dict(Counter(reasons))

    def _why(self, row: int) -> str:
        return explain_unmatched(self.protocol, self.query[[row]], self.gallery[self.same_person(row)])

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

    def visible_groups(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield queries with a match and the gallery images they see, those that rules for one person hide included."""
        compared = [getattr(self.query, rule.split("_")[1])[self.rows] for rule in self._negatives.hide]
        kinds, kind = np.unique(np.stack([np.zeros_like(self.rows), *compared]), axis=1, return_inverse=True)
        for number in range(kinds.shape[1]):
            rows = self.rows[kind.ravel() == number]
            hidden = hidden_mask(self._negatives, self.query[rows[:1]], self.gallery)[0]
            yield rows, np.flatnonzero(~hidden)

    def keep_negatives(self, rows: np.ndarray, distances: np.ndarray) -> np.ndarray:
        """Make (B, G) distances infinite, in place, except those to negatives the queries may see."""
        if self._negatives.hide:
            hidden = hidden_mask(self._negatives, self.query[rows], self.gallery)
            np.copyto(distances, np.inf, where=hidden)
        for place, row in enumerate(rows):
            distances[place, self.same_person(row)] = np.inf
        return distances

    def _visible(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the visible gallery images, query after query, and where each query's end."""
        by_pid = np.argsort(self.query.pid, kind="stable")
        found = [self._visible_to(rows) for rows in np.split(by_pid, _find_steps(self.query.pid[by_pid]))]
        rows, columns = (np.concatenate(parts) for parts in zip(*found, strict=True))
        columns = columns[np.argsort(rows, kind="stable")]
        return columns, np.cumsum(np.bincount(rows, minlength=len(self.query)))

    def _visible_to(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (query, gallery image) of all visible matches of queries of one person."""
        columns = self.same_person(rows[0]) if len(rows) else self._order[:0]
        hidden = hidden_mask(self.protocol, self.query[rows], self.gallery[columns])
        places, matches = np.nonzero(~hidden)
        return rows[places], columns[matches]


def _find_steps(values: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.diff(values)) + 1


@dataclass(frozen=True)
class ProtocolRows:
    """Rows and columns of distances that a protocol compares.

    Attributes:
        matches: the protocol's matches.
        query: (Q,) the row of each query in the distances.
        gallery: (G,) the column of each gallery image. An image is of one person, whatever the protocol.
    """

    matches: Matches
    query: np.ndarray
    gallery: np.ndarray


@dataclass(frozen=True)
class Negatives:
    """The visible matches of a protocol, (M,) each.

    Attributes:
        query: the match's query.
        gallery: the match.
        count: how many negatives stand before it.
    """

    query: np.ndarray
    gallery: np.ndarray
    count: np.ndarray


class NegativeCounter:
    """Counter of negatives, in blocks of distances in which each query of each protocol has to be once.

    Args:
        parts: what the protocols ask of the distances.
    """

    def __init__(self, parts: Sequence[ProtocolRows]):
        self._parts = parts
        requests: dict[bytes, list[_Request]] = defaultdict(list)  # by the columns of the visible images
        pids: dict[bytes, np.ndarray] = {}
        for number, part in enumerate(parts):
            for rows, images in part.matches.visible_groups():
                images = images[np.argsort(part.gallery[images], kind="stable")]
                columns = part.gallery[images].astype(np.int64).tobytes()
                pids[columns] = part.matches.gallery.pid[images]
                requests[columns].append(_request(number, part, rows))
        self._visible_images = [
            _VisibleImages(np.frombuffer(key, dtype=np.int64), pids[key], requests[key]) for key in requests
        ]

    def groups(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield rows and the columns that some protocol asks of them, rising; each row once.

        Queries that see different images are apart, so that no distance is computed that no protocol asks for; rows
        of one group have all their columns in common.
        """
        asks = _flag_places([seen.rows for seen in self._visible_images])
        offers = _flag_places([seen.columns for seen in self._visible_images])
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
        for seen in self._visible_images:
            seen.count(block, rows, columns)

    def negatives(self) -> list[Negatives]:
        """Return what was counted for each protocol."""
        found: list[list[Negatives]] = [[] for _ in self._parts]
        for seen in self._visible_images:
            for each in seen.requests:
                found[each.number].append(Negatives(each.query, each.match, seen.counts(each)))
        return [_concatenate(parts) for parts in found]


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


def _request(number: int, part: ProtocolRows, rows: np.ndarray) -> _Request:
    places, match = part.matches.visible(rows)
    query = rows[places].astype(np.int32)
    return _Request(number, query, match, part.query[query], part.gallery[match])


class _VisibleImages:
    """The images that some queries see, negatives and matches, under one protocol or several.

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
        """Return how many negatives stand before each match of a request."""
        return self._counts[np.searchsorted(self._pairs, self._pair(request))]

    def _pair(self, request: _Request) -> np.ndarray:
        return request.row * (self.columns[-1] + 1) + request.column

    def count(self, block: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> None:
        """Count in a block; see `NegativeCounter.add`."""
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


def _concatenate(parts: Sequence[Negatives]) -> Negatives:
    query, gallery, count = zip(*((part.query, part.gallery, part.count) for part in parts), strict=True)
    return Negatives(np.concatenate(query), np.concatenate(gallery), np.concatenate(count))


def as_slice(places: np.ndarray) -> np.ndarray | slice:
    """Return places as a slice, which copies nothing, if they stand one after the other."""
    return slice(places[0], places[-1] + 1) if np.all(np.diff(places) == 1) else places


def _flag_places(places: Sequence[np.ndarray]) -> np.ndarray:
    flags = np.zeros((len(places), 1 + max(each.max() for each in places)), dtype=bool)
    for line, each in zip(flags, places, strict=True):
        line[each] = True
    return flags
