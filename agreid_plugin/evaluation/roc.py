"""ROC curves of one direction: distances of genuine and impostor pairs, rates at thresholds, bootstrap intervals.

There are as many impostor pairs as queries times gallery images, but thresholds lie among the nearest few, so only
those are kept.

Shapes: I query identities, T thresholds on a grid, R draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agreid_plugin.evaluation.confidence import Interval, bootstrap_counts
from agreid_plugin.evaluation.distances import Distances, blocks
from agreid_plugin.evaluation.metrics import format_label
from agreid_plugin.evaluation.relevance import Matches

GRID = 1000  # thresholds looked at in a draw, dense where impostors are few
ROC_POINTS = 100  # of them that a report keeps
MIN_IMPOSTORS = 2**20  # fewer impostor pairs are never dropped
RATE_MARGIN = 2  # times the highest rate asked for: a draw of identities may have to look further than the whole set


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold and what it does; rates are shares of 1.

    Attributes:
        fpr: the false positive rate asked for; the one measured is as near below as the pairs allow.
        threshold: pairs up to this distance are the same person.
        threshold_interval: its confidence interval.
        tpr: share of genuine pairs within the threshold.
        tpr_interval: its confidence interval, with a threshold chosen in every draw.
    """

    fpr: float
    threshold: float
    threshold_interval: Interval
    tpr: float
    tpr_interval: Interval


@dataclass(frozen=True)
class Direction:
    """One direction's pairs and operating points.

    Attributes:
        genuine: pairs of one person.
        impostors: pairs of two.
        points: one for each rate that the impostors suffice to measure.
        roc: (false positive rate, true positive rate) along the curve, up to where impostors were kept.
    """

    genuine: int
    impostors: int
    points: tuple[OperatingPoint, ...]
    roc: tuple[tuple[float, float], ...] = ()


class Curve:
    """The rates of one direction at every threshold among its nearest impostors."""

    def __init__(self, pairs: Pairs):
        present = np.flatnonzero(pairs.impostors + pairs.genuine)
        self._impostors, self._genuine = pairs.impostors[present], pairs.genuine[present]
        self._false, self._true = (
            (distances, np.searchsorted(present, identities))
            for distances, identities in (pairs.nearest_impostors(), pairs.genuine_pairs())
        )

    def can_measure(self, rate: float) -> bool:
        """Whether there are enough pairs to measure a false positive rate, and enough people to draw from."""
        return bool(rate * self._impostors.sum() >= 1 and self._genuine.any() and len(self._genuine) > 1)

    def direction(self, rates: Sequence[float], draws: int, level: float, seed: int) -> Direction:
        """Return the operating points at some false positive rates, their intervals from draws of identities."""
        thresholds = [self._threshold(rate) for rate in rates]
        grid = self._grid(thresholds)
        samples = self._draw(grid, rates, draws, seed)  # (R, rates, 2)
        points = [
            OperatingPoint(
                rate,
                float(threshold),
                Interval.from_samples(samples[:, place, 0], level),
                self._tpr(threshold),
                Interval.from_samples(samples[:, place, 1], level),
            )
            for place, (rate, threshold) in enumerate(zip(rates, thresholds, strict=True))
        ]
        return Direction(int(self._genuine.sum()), int(self._impostors.sum()), tuple(points), self._roc(grid))

    def _threshold(self, rate: float) -> np.float32:
        """Return the largest distance that no more than this share of the impostor pairs is within."""
        distances = self._false[0]
        allowed = int(rate * self._impostors.sum())
        # Where several impostors are equally far, all of them pass or none.
        passing = np.searchsorted(distances, distances[min(allowed, len(distances) - 1)], side="left")
        return distances[passing - 1] if passing else np.nextafter(distances[0], np.float32(-np.inf))

    def _tpr(self, threshold: np.float32) -> float:
        return float(np.searchsorted(self._true[0], threshold, side="right") / self._genuine.sum())

    def _grid(self, thresholds: Sequence[np.float32]) -> np.ndarray:
        distances = self._false[0]
        ranks = np.geomspace(1, len(distances), GRID).astype(np.int64) - 1
        none = np.nextafter(distances[0], np.float32(-np.inf))
        return np.unique(np.concatenate([[none], distances[ranks], thresholds]).astype(np.float32))

    def _draw(self, grid: np.ndarray, rates: Sequence[float], draws: int, seed: int) -> np.ndarray:
        within = [_count_within(*pairs, grid, len(self._genuine)) for pairs in (self._false, self._true)]
        found = []
        for drawn in bootstrap_counts(len(self._genuine), draws, seed):
            with np.errstate(invalid="ignore"):  # a draw without pairs has no rate: NaN, left out
                fpr = drawn @ within[0] / (drawn @ self._impostors)[:, None]
                tpr = drawn @ within[1] / (drawn @ self._genuine)[:, None]
            chosen = np.stack([np.maximum(np.sum(fpr <= rate, axis=1) - 1, 0) for rate in rates], axis=1)
            thresholds = np.where(np.isnan(fpr[:, :1]), np.nan, grid[chosen])
            found.append(np.stack([thresholds, np.take_along_axis(tpr, chosen, axis=1)], axis=2))
        return np.concatenate(found)

    def _roc(self, grid: np.ndarray) -> tuple[tuple[float, float], ...]:
        shown = grid[np.linspace(0, len(grid) - 1, min(ROC_POINTS, len(grid))).astype(np.int64)]
        fpr = np.searchsorted(self._false[0], shown, side="right") / self._impostors.sum()
        return tuple((float(rate), self._tpr(threshold)) for rate, threshold in zip(fpr, shown, strict=True))


def _count_within(distances: np.ndarray, identities: np.ndarray, grid: np.ndarray, count: int) -> np.ndarray:
    """Return how many pairs of each identity are within each threshold, (I, T)."""
    bins = np.searchsorted(grid, distances, side="left")
    inside = bins < len(grid)
    cells = identities[inside] * np.int64(len(grid)) + bins[inside]
    counts = np.bincount(cells, minlength=count * len(grid))
    return np.cumsum(counts.reshape(count, len(grid)), axis=1).astype(np.float64)


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
        self._capacity = max(MIN_IMPOSTORS, int(np.ceil(RATE_MARGIN * highest_rate * possible)))
        self._bound = np.float32(np.inf)

    def add_genuine(self, distances: np.ndarray, identities: np.ndarray) -> None:
        """Add pairs of one person, and the query's identity for each."""
        self.genuine += np.bincount(identities, minlength=len(self.genuine))
        self._same.append((distances, identities))

    def add_impostors(self, distances: np.ndarray, identity: int) -> None:
        """Add a query's impostor pairs; the farthest are dropped when there are too many."""
        self.impostors[identity] += len(distances)
        near = distances[distances <= self._bound]
        self._near.append((near, np.full(len(near), identity, dtype=np.int32)))
        self._held += len(near)
        if self._held > 1.25 * self._capacity:
            self._drop_farthest()

    def nearest_impostors(self) -> tuple[np.ndarray, np.ndarray]:
        """Return distances and query identities of the impostor pairs that were kept, nearest first."""
        return _sort_pairs(self._near)

    def genuine_pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return distances and query identities of the genuine pairs, nearest first."""
        return _sort_pairs(self._same)

    def _drop_farthest(self) -> None:
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
        (query, gallery): Pairs(len(pids), _count_possible(matches, query, gallery), highest_rate)
        for query in views[0]
        for gallery in views[1]
    }
    for rows in blocks(np.arange(len(matches.query)), distances.shape[1], memory / 2):  # the pairs take the other half
        block = distances.rows(rows)
        _add_genuine(found, block, rows, identity, matches)
        _add_impostors(found, matches.keep_negatives(rows, block), rows, identity, matches)
    return {f"{format_label(q, view=True)}->{format_label(g, view=True)}": pairs for (q, g), pairs in found.items()}


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


def _count_possible(matches: Matches, query_view: int, gallery_view: int) -> int:
    return int(np.sum(matches.query.view == query_view)) * int(np.sum(matches.gallery.view == gallery_view))


def _sort_pairs(chunks: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    distances, identities = (np.concatenate(column) for column in zip(*chunks, strict=True))
    order = np.argsort(distances)
    return distances[order], identities[order]
