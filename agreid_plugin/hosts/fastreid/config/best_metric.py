"""`TEST.BEST_METRIC`: the number that selects the best model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agreid_plugin.errors import unknown
from agreid_plugin.evaluation import NUMBERS, Metrics
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet


def check_best_metric(cfg, sets: Iterable[EvaluationSet]) -> None:
    """Check that `TEST.BEST_METRIC` names a number that an evaluation will give."""
    known = [f"{each}/{number}" for entry in sets for each in entry.protocols.values() for number in NUMBERS]
    if cfg.TEST.BEST_METRIC and cfg.TEST.BEST_METRIC not in known:
        raise unknown("TEST.BEST_METRIC", cfg.TEST.BEST_METRIC, known)


def best_metric(cfg, metrics: Sequence[Metrics], sets: Sequence[EvaluationSet]) -> float | None:
    """Return the number that selects the best model, None if nothing may.

    Without a name it is the first test set's; see `EvaluationSet.selecting`.
    """
    if cfg.TEST.BEST_METRIC:
        protocol, _, number = cfg.TEST.BEST_METRIC.rpartition("/")
        return next(entry[number] for entry in metrics if entry.protocol == protocol)
    return sets[0].selection_score(metrics)
