"""Metrics of one evaluation: CMC, mAP and mINP, per query and by direction and camera pair.

Shapes: N queries that have a match.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.ranking import Scores
from agreid_plugin.types import UNKNOWN, VIEW_SOURCES, View

RANKS = (1, 5, 10, 20)
NUMBERS = (*(f"Rank-{rank}" for rank in RANKS), "mAP", "mINP")

Breakdown = Mapping[str, float]


@dataclass(frozen=True)
class PerQuery:
    """Results query by query, over those that have a match.

    Attributes:
        row: (N,) the query's place in the list of queries, rising.
        pid: (N,) its identity.
        precision: (N,) its average precision.
        inverse_penalty: (N,) its matches divided by the rank of the last one (INP).
        first: (N,) the rank of its first match, from 1.
    """

    row: np.ndarray
    pid: np.ndarray
    precision: np.ndarray
    inverse_penalty: np.ndarray
    first: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def percents(self) -> dict[str, np.ndarray]:
        """Return for each of `NUMBERS` the queries' shares in it, (N,); their mean is the number."""
        ranks = {f"Rank-{rank}": 100.0 * (self.first <= rank) for rank in RANKS}
        return {**ranks, "mAP": 100.0 * self.precision, "mINP": 100.0 * self.inverse_penalty}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class Metrics:
    """One protocol's numbers in percent, and what they were made from.

    A match of another camera pair or direction counts only in its own breakdown: `aerial->ground` is how well ground
    images of aerial queries are found among all negatives in the protocol's gallery.

    Attributes:
        protocol: its full name, `CARGO/A2G`.
        source: where the protocol was read.
        values: `NUMBERS` -> percent.
        queries: queries that have a match; the numbers are their means.
        skipped: reason -> queries that have none.
        gallery: gallery images.
        directions: `aerial->ground`, query view to gallery view -> queries, Rank-1, mAP and mINP.
        cameras: the same for each pair of cameras, `1->6`.
        distance: how images were compared.
        views: whether the model was `given` the test images' views, `predicted` them or, empty, uses none.
        fingerprint: of the query and gallery sets.
        unreadable: test images of the dataset that could not be read and are neither query nor gallery.
        per_query: results query by query; None when they were not kept.
    """

    protocol: str
    source: str
    values: Mapping[str, float]
    queries: int
    skipped: Mapping[str, int]
    gallery: int
    directions: Mapping[str, Breakdown] = field(default_factory=dict)
    cameras: Mapping[str, Breakdown] = field(default_factory=dict)
    distance: str = "cosine"
    views: str = ""
    fingerprint: str = ""
    unreadable: int = 0
    per_query: PerQuery | None = None

    def __getitem__(self, number: str) -> float:
        return self.values[number]

    @property
    def skipped_queries(self) -> int:
        """How many queries have no match."""
        return sum(self.skipped.values())

    def as_dict(self) -> dict[str, float]:
        """Return the numbers of a results.json entry, percents and counts."""
        counts = {"queries": self.queries, "skipped_queries": self.skipped_queries, "gallery": self.gallery}
        return {**self.values, **counts}


def check_views(views: str) -> None:
    """Refuse a view source that is neither empty nor one of `VIEW_SOURCES`."""
    if views not in ("", *VIEW_SOURCES):
        raise InputError(f"view source {views!r} unknown; it is given, predicted or, where no view is used, empty")


def format_views(views: str) -> str:
    """Return where views come from in words, of those that use none too."""
    return views or "not used"


def compute_means(per_query: PerQuery) -> dict[str, float]:
    """Return `NUMBERS`, the means over queries."""
    return {name: float(values.mean()) for name, values in per_query.percents().items()}


def break_down(
    scores: Scores, query_labels: np.ndarray, gallery_labels: np.ndarray, view: bool
) -> dict[str, Breakdown]:
    """Return the numbers of each pair of query label and gallery label.

    Args:
        scores: of groups, each the matches of one query that have one gallery label.
        query_labels: the query's label, of each group.
        gallery_labels: the gallery label, of each group.
        view: whether labels are views, not cameras.
    """
    pairs, which = np.unique(np.stack([query_labels, gallery_labels]), axis=1, return_inverse=True)
    which = which.ravel()
    counts = np.bincount(which, minlength=pairs.shape[1])
    numbers = {"Rank-1": scores.first <= 1, "mAP": scores.precision, "mINP": scores.inverse_penalty}
    columns = {name: 100 * np.bincount(which, weights=values) / counts for name, values in numbers.items()}
    return {
        f"{format_label(query, view)}->{format_label(gallery, view)}": {
            "queries": int(counts[pair]),
            **{name: float(column[pair]) for name, column in columns.items()},
        }
        for pair, (query, gallery) in enumerate(pairs.T)
    }


def format_label(label: int, view: bool) -> str:
    """Return the name of a view or camera number."""
    if label == UNKNOWN:
        return "unknown"
    return View(label).word if view else str(label)
