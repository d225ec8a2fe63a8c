"""True against false positive rates in one direction, and how they move when identities are drawn anew.

Shapes: I query identities, T thresholds on a grid, R draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agreid_plugin.evaluation.bootstrap import Interval, draws_of
from agreid_plugin.evaluation.pairs import Pairs

GRID = 1000  # thresholds looked at in a draw, dense where impostors are few
ROC_POINTS = 100  # of them that a report keeps


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold and what it does; rates are shares of 1.

    Attributes:
        fpr: the false positive rate asked for; the one measured is as near below as the pairs allow.
        threshold: pairs up to this distance are the same person.
        threshold_interval: its confidence interval.
        tpr: share of genuine pairs within the threshold.
        tpr_interval: its confidence interval, the threshold chosen anew in every draw.
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

    def measures(self, rate: float) -> bool:
        """Say whether there are pairs enough to measure a false positive rate, and people enough to draw from."""
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
                Interval.of(samples[:, place, 0], level),
                self._tpr(threshold),
                Interval.of(samples[:, place, 1], level),
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
        within = [_within(*pairs, grid, len(self._genuine)) for pairs in (self._false, self._true)]
        found = []
        for drawn in draws_of(len(self._genuine), draws, seed):
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


def _within(distances: np.ndarray, identities: np.ndarray, grid: np.ndarray, count: int) -> np.ndarray:
    """Return how many pairs of each identity are within each threshold, (I, T)."""
    bins = np.searchsorted(grid, distances, side="left")
    inside = bins < len(grid)
    cells = identities[inside] * np.int64(len(grid)) + bins[inside]
    counts = np.bincount(cells, minlength=count * len(grid))
    return np.cumsum(counts.reshape(count, len(grid)), axis=1).astype(np.float64)
