"""Bootstrap over query identities: confidence intervals, and whether one model beats another.

A draw takes all images of a person or none of them.

Shapes: R draws, I identities, N values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.metrics import NUMBERS, Metrics, PerQuery

CHUNK = 128  # draws held together
LEVEL = 0.95
DRAWS = 1000
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"[{self.low:.2f}, {self.high:.2f}]"

    @classmethod
    def from_samples(cls, samples: np.ndarray, level: float = LEVEL) -> Interval:
        """Return the interval that holds the share `level` of the samples; samples that are NaN do not count."""
        if not 0 < level < 1:
            raise InputError(f"confidence level {level} is not between 0 and 1")
        low, high = np.nanquantile(samples, [(1 - level) / 2, (1 + level) / 2])
        return cls(float(low), float(high))


def bootstrap_counts(identities: int, draws: int = DRAWS, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield how often each identity was drawn, (at most `CHUNK`, I), `draws` rows in all; the seed fixes them."""
    if identities < 2 or draws < 1:
        raise InputError(f"a bootstrap needs two identities and one draw at least, got {identities} and {draws}")
    generator = np.random.default_rng(seed)
    even = np.full(identities, 1 / identities)
    for start in range(0, draws, CHUNK):
        yield generator.multinomial(identities, even, size=min(CHUNK, draws - start)).astype(np.float64)


def resample_means(values: np.ndarray, pids: np.ndarray, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """Return the mean of each column of values (N, C) in each draw of identities, (R, C)."""
    _, which = np.unique(pids, return_inverse=True)
    counts = np.bincount(which)  # (I,)
    sums = np.stack([np.bincount(which, weights=column) for column in values.T], axis=1)  # (I, C)
    return np.concatenate(
        [(drawn @ sums) / (drawn @ counts)[:, None] for drawn in bootstrap_counts(len(counts), draws, seed)]
    )


@dataclass(frozen=True)
class Difference:
    """How much better B is than A in one number.

    Attributes:
        points: B minus A, in percent points.
        interval: its confidence interval.
        p: two-sided bootstrap p-value of no difference.
    """

    points: float
    interval: Interval
    p: float

    def __str__(self) -> str:
        verdict = "no difference shown"
        if self.p < SIGNIFICANT:
            verdict = "B beats A" if self.points > 0 else "A beats B"
        return f"{verdict} with p={self.p:.3g}: {self.points:+.2f} {self.interval}"


def confidence_intervals(
    metrics: Metrics, *, draws: int = DRAWS, level: float = LEVEL, seed: int = 0
) -> dict[str, Interval]:
    """Return a confidence interval for each number of an evaluation.

    Args:
        metrics: the evaluation.
        draws: how often identities are drawn, with replacement.
        level: share of the draws inside the interval.
        seed: fixes the draws.
    """
    per_query = _per_query(metrics)
    means = resample_means(_columns(per_query), per_query.pid, draws, seed)
    return {name: Interval.from_samples(column, level) for name, column in zip(NUMBERS, means.T, strict=True)}


def compare(
    a: Metrics, b: Metrics, *, draws: int = DRAWS, level: float = LEVEL, seed: int = 0
) -> dict[str, Difference]:
    """Compare two models on the same queries, number by number; the arguments are those of `confidence_intervals`.

    Example:
        A finds each of three people behind a negative, B finds them first.

        >>> import numpy as np
        >>> from agreid_plugin.data.protocols import Meta, protocol
        >>> from agreid_plugin.evaluation import evaluate
        >>> from agreid_plugin.types import Record
        >>> people = Meta.collect([Record(name, pid) for pid, name in enumerate("abc")])
        >>> gallery = np.eye(3)
        >>> a, b = (
        ...     evaluate(query, gallery, people, people, protocol("CARGO/A2G"))
        ...     for query in (gallery + 2 * gallery[[1, 2, 0]], gallery)
        ... )
        >>> str(compare(a, b)["mAP"])
        'B beats A with p=0.002: +50.00 [50.00, 50.00]'
    """
    require_comparable({"A": a, "B": b})
    pair = _per_query(a), _per_query(b)
    gains = _columns(pair[1]) - _columns(pair[0])
    means = resample_means(gains, pair[0].pid, draws, seed)
    return {
        name: Difference(float(gain.mean()), Interval.from_samples(column, level), _p_value(column))
        for name, gain, column in zip(NUMBERS, gains.T, means.T, strict=True)
    }


def require_comparable(runs: Mapping[str, Metrics]) -> None:
    """Refuse to set numbers side by side that answer different questions.

    These are other protocols, other query or gallery sets, and views given against views predicted; a model that
    uses no views compares with both.
    """
    _all_equal("protocols", {name: f"{run.protocol} ({run.source})" for name, run in runs.items()})
    _all_equal("view sources", {name: run.views for name, run in runs.items() if run.views})
    _all_equal("query or gallery sets", {name: _set(run) for name, run in runs.items()})


def _all_equal(what: str, values: Mapping[str, str]) -> None:
    if len(set(values.values())) > 1:
        listed = "; ".join(f"{name}: {value}" for name, value in values.items())
        raise InputError(f"different {what} do not compare: {listed}")


def _set(run: Metrics) -> str:
    return f"{run.queries} of {run.queries + run.skipped_queries} queries, {run.gallery} images, {run.fingerprint}"


def _per_query(metrics: Metrics) -> PerQuery:
    if metrics.per_query is None:
        raise InputError(f"{metrics.protocol}: results of single queries were not kept; evaluate again to have them")
    return metrics.per_query


def _columns(per_query: PerQuery) -> np.ndarray:
    percents = per_query.percents()
    return np.stack([percents[name] for name in NUMBERS], axis=1)


def _p_value(differences: np.ndarray) -> float:
    # One is added to both counts: a finite number of draws never shows that something is impossible.
    against = min(np.sum(differences <= 0), np.sum(differences >= 0))
    return float(min(1.0, 2 * (against + 1) / (len(differences) + 1)))
