"""Calibration: the distance up to which two images show the same person, chosen for a false positive rate.

Each direction has its own thresholds: images of two people differ more across views than within one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agreid_plugin.data.atomic_write import atomic_write, write_error_context
from agreid_plugin.data.files import MAX_LABEL, read_json, shorten
from agreid_plugin.data.protocols import Meta, Protocol
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.evaluation.confidence import DRAWS, LEVEL, Interval
from agreid_plugin.evaluation.distances import MEMORY, Distances, FeatureDistances
from agreid_plugin.evaluation.metrics import check_views
from agreid_plugin.evaluation.relevance import Matches
from agreid_plugin.evaluation.roc import Curve, Direction, OperatingPoint, Pairs, collect_pairs
from agreid_plugin.evaluation.validation import FeatureArray

RATES = (1e-4, 1e-3, 1e-2)


@dataclass(frozen=True)
class Calibration:
    """Same-person thresholds of one model, by direction, as `aerial->ground`."""

    protocol: str
    distance: str
    views: str
    level: float
    draws: int
    directions: Mapping[str, Direction]
    notes: tuple[str, ...] = field(default=())

    def point(self, direction: str, fpr: float) -> OperatingPoint:
        """Return the operating point of a direction, `aerial->ground`, at a false positive rate asked for before."""
        if direction not in self.directions:
            raise unknown("direction", direction, self.directions)
        points = {f"{point.fpr:g}": point for point in self.directions[direction].points}
        if f"{fpr:g}" not in points:
            raise unknown(f"{direction}: false positive rate", f"{fpr:g}", points)
        return points[f"{fpr:g}"]

    def true_positive_rates(self) -> dict[str, float]:
        """Return the true positive rate of every operating point, `aerial->ground TPR@FPR=0.001` -> percent."""
        return {
            f"{name} TPR@FPR={point.fpr:g}": 100 * point.tpr
            for name, direction in self.directions.items()
            for point in direction.points
        }

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, lists and dicts."""
        return asdict(self)

    def save(self, path: str | Path) -> None:
        """Write JSON."""
        with write_error_context(path), atomic_write(Path(path)) as draft:
            draft.write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what `save` wrote."""
        content = read_json(Path(path), dict)
        try:
            for name, kind in (("protocol", str), ("distance", str), ("views", str), ("level", float), ("draws", int)):
                if type(content[name]) is not kind:
                    raise TypeError(f"{name} is {shorten(repr(content[name]))}")
            directions = {name: _read_direction(**entry) for name, entry in content.pop("directions").items()}
            return cls(**{**content, "notes": tuple(content["notes"])}, directions=directions)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"{path}: not a calibration: {error}") from error


def calibrate(
    query: FeatureArray,
    gallery: FeatureArray,
    query_meta: Meta,
    gallery_meta: Meta,
    protocol: Protocol,
    *,
    metric: str = "cosine",
    memory: float = MEMORY,
    views: str = "",
    **options: Any,
) -> Calibration:
    """Choose same-person thresholds from features; see `evaluate` and `calibrate_distances` for the arguments.

    Example:
        Two people on a line, asked for by aerial images at 0 and 10; ground images of them are at 1 and 8. The
        squared distances are 1 and 4 to the same person, 64 and 81 to the other one.

        >>> import numpy as np
        >>> from agreid_plugin.data.protocols import Meta, protocol
        >>> from agreid_plugin.types import Record, View
        >>> query = Meta.collect([Record("a", pid=1, view=View.AERIAL), Record("b", pid=2, view=View.AERIAL)])
        >>> gallery = Meta.collect([Record("c", pid=1, view=View.GROUND), Record("d", pid=2, view=View.GROUND)])
        >>> features = np.array([[0.0], [10.0]]), np.array([[1.0], [8.0]])
        >>> options = {"metric": "euclidean", "fprs": [0.5], "draws": 50}
        >>> found = calibrate(*features, query, gallery, protocol("CARGO/A2G"), **options)
        >>> point = found.point("aerial->ground", fpr=0.5)  # one of two negative pairs may pass
        >>> point.threshold, point.tpr
        (64.0, 1.0)
    """
    distances = FeatureDistances([(query, gallery)], metric)
    return calibrate_distances(distances, query_meta, gallery_meta, protocol, memory=memory, views=views, **options)


def calibrate_distances(
    distances: Distances,
    query_meta: Meta,
    gallery_meta: Meta,
    protocol: Protocol,
    *,
    fprs: Sequence[float] = RATES,
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
    memory: float = MEMORY,
    views: str = "",
) -> Calibration:
    """Choose the largest threshold of each direction that keeps each false positive rate.

    Args:
        distances: between queries and gallery.
        query_meta: identities, cameras, views and times of the queries.
        gallery_meta: the same of the gallery.
        protocol: pairs that it hides do not count.
        fprs: false positive rates wanted, shares of 1.
        draws: how often query identities are drawn for the confidence intervals.
        level: share of the draws inside an interval.
        seed: fixes the draws.
        memory: megabytes to use on top of the features; a high rate of very many pairs needs more.
        views: as in `evaluate`.
    """
    if not fprs or not all(0 < fpr < 1 for fpr in fprs):
        raise InputError(f"false positive rates have to be between 0 and 1, got {', '.join(map(str, fprs)) or 'none'}")
    check_views(views)
    matches = Matches(protocol, query_meta, gallery_meta)
    matches.require(distances.shape)
    directions, notes = {}, []
    for name, pairs in collect_pairs(distances, matches, max(fprs), memory).items():
        curve = Curve(pairs)
        measured = [fpr for fpr in fprs if curve.can_measure(fpr)]
        notes += [_describe_too_few(name, pairs, fpr) for fpr in fprs if fpr not in measured]
        if measured:
            directions[name] = curve.direction(measured, draws, level, seed)
    if not directions:
        raise InputError(f"{protocol}: nothing to calibrate on: {'; '.join(notes)}")
    return Calibration(str(protocol), distances.name, views, level, draws, directions, tuple(notes))


def _describe_too_few(name: str, pairs: Pairs, fpr: float) -> str:
    people = np.count_nonzero(pairs.impostors + pairs.genuine)
    counts = f"{pairs.genuine.sum()} genuine and {pairs.impostors.sum()} impostor pairs of {people} query identities"
    return f"{name}: {counts} do not show a false positive rate of {fpr:g}"


def _read_direction(genuine: Any, impostors: Any, points: Any, roc: Any) -> Direction:
    curve = tuple((_read_number(fpr), _read_number(tpr)) for fpr, tpr in roc)
    return Direction(
        _read_count(genuine), _read_count(impostors), tuple(_read_point(**point) for point in points), curve
    )


def _read_point(fpr: Any, threshold: Any, threshold_interval: Any, tpr: Any, tpr_interval: Any) -> OperatingPoint:
    return OperatingPoint(
        fpr=_read_number(fpr),
        threshold=_read_number(threshold),
        threshold_interval=_read_interval(**threshold_interval),
        tpr=_read_number(tpr),
        tpr_interval=_read_interval(**tpr_interval),
    )


def _read_interval(low: Any, high: Any) -> Interval:
    return Interval(_read_number(low), _read_number(high))


def _read_count(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{shorten(repr(value))} is no count")
    _read_number(value)
    return value


def _read_number(value: Any) -> float:
    """Return a number out of a file."""
    if type(value) not in (int, float) or (isinstance(value, int) and abs(value) > MAX_LABEL):
        raise TypeError(f"{shorten(repr(value))} is no number")
    return value
