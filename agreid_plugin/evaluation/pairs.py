"""The distances of pairs, same person or not, in one direction: all genuine ones, and the nearest of the impostors.

There are as many impostor pairs as queries times gallery images, but thresholds lie among the nearest few.
"""

from __future__ import annotations

import numpy as np

from agreid_plugin.evaluation.distances import Distances, blocks
from agreid_plugin.evaluation.metrics import label_name
from agreid_plugin.evaluation.relevance import Matches

KEPT = 2**20  # so many impostor pairs are always kept
SPARE = 2  # times the highest rate asked for: a draw of identities may have to look further than the whole set


class Pairs:
    """Pairs of one direction.

    Args:
        identities: number of query identities, I.
        possible: number of pairs there may be.
        highest_rate: highest false positive rate that will be asked for.

    Attributes:
        impostors: (I,) impostor pairs of each query identity, the forgotten ones too.
        genuine: (I,) genuine pairs of each query identity.
    """

    def __init__(self, identities: int, possible: int, highest_rate: float):
        self.impostors = np.zeros(identities, dtype=np.int64)
        self.genuine = np.zeros(identities, dtype=np.int64)
        self._same: list[tuple[np.ndarray, np.ndarray]] = []
        self._near: list[tuple[np.ndarray, np.ndarray]] = []
        self._held = 0
        self._capacity = max(KEPT, int(np.ceil(SPARE * highest_rate * possible)))
        self._bound = np.float32(np.inf)

    def add_genuine(self, distances: np.ndarray, identities: np.ndarray) -> None:
        """Add pairs of one person, and the query's identity for each."""
        self.genuine += np.bincount(identities, minlength=len(self.genuine))
        self._same.append((distances, identities))

    def add_impostors(self, distances: np.ndarray, identity: int) -> None:
        """Add a query's pairs with strangers; the farthest are forgotten when there are too many."""
        self.impostors[identity] += len(distances)
        near = distances[distances <= self._bound]
        self._near.append((near, np.full(len(near), identity, dtype=np.int32)))
        self._held += len(near)
        if self._held > 1.25 * self._capacity:
            self._forget()

    def nearest_impostors(self) -> tuple[np.ndarray, np.ndarray]:
        """Return distances and query identities of the impostor pairs that were kept, nearest first."""
        return _sorted(self._near)

    def genuine_pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return distances and query identities of the genuine pairs, nearest first."""
        return _sorted(self._same)

    def _forget(self) -> None:
        distances, identities = (np.concatenate(column) for column in zip(*self._near, strict=True))
        kept = np.argpartition(distances, self._capacity)[: self._capacity]
        self._near = [(distances[kept], identities[kept])]
        self._held = len(kept)
        self._bound = distances[kept].max()


def collect_pairs(distances: Distances, matches: Matches, highest_rate: float, memory: float) -> dict[str, Pairs]:
    """Return the pairs that a protocol lets be seen, of each direction, `aerial->ground`; every query takes part."""
    views = np.unique(matches.query.view), np.unique(matches.gallery.view)
    pids, identity = np.unique(matches.query.pid, return_inverse=True)
    found = {
        (query, gallery): Pairs(len(pids), _possible(matches, query, gallery), highest_rate)
        for query in views[0]
        for gallery in views[1]
    }
    for rows in blocks(np.arange(len(matches.query)), distances.shape[1], memory / 2):  # the pairs take the other half
        block = distances.rows(rows)
        _add_genuine(found, block, rows, identity, matches)
        _add_impostors(found, matches.leave_strangers(rows, block), rows, identity, matches)
    return {f"{label_name(q, view=True)}->{label_name(g, view=True)}": pairs for (q, g), pairs in found.items()}


def _add_genuine(found: dict, block: np.ndarray, rows: np.ndarray, identity: np.ndarray, matches: Matches) -> None:
    places, columns = matches.visible(rows)
    values = block[places, columns]
    query, gallery = matches.query.view[rows[places]], matches.gallery.view[columns]
    for direction, pairs in found.items():
        chosen = (query == direction[0]) & (gallery == direction[1])
        pairs.add_genuine(values[chosen], identity[rows[places[chosen]]])


def _add_impostors(found: dict, block: np.ndarray, rows: np.ndarray, identity: np.ndarray, matches: Matches) -> None:
    columns = {view: np.flatnonzero(matches.gallery.view == view) for view in np.unique(matches.gallery.view)}
    for place, row in enumerate(rows):
        for view, places in columns.items():
            values = block[place, places]
            pairs = found[matches.query.view[row], view]
            pairs.add_impostors(values[values < np.inf], identity[row])


def _possible(matches: Matches, query_view: int, gallery_view: int) -> int:
    return int(np.sum(matches.query.view == query_view)) * int(np.sum(matches.gallery.view == gallery_view))


def _sorted(chunks: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    distances, identities = (np.concatenate(column) for column in zip(*chunks, strict=True))
    order = np.argsort(distances)
    return distances[order], identities[order]
