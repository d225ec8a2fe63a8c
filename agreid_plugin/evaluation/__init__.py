"""Evaluation: exact ranking metrics under a protocol, re-ranking, thresholds, confidence, and the files they go to."""

from agreid_plugin.evaluation.calibration import Calibration, calibrate, calibrate_distances
from agreid_plugin.evaluation.confidence import Difference, Interval, compare, confidence, require_comparable
from agreid_plugin.evaluation.distances import Distances, FeatureDistances
from agreid_plugin.evaluation.features import FeatureSet, load_features, save_features
from agreid_plugin.evaluation.metrics import NUMBERS, Metrics, PerQuery
from agreid_plugin.evaluation.multi_protocol import caption_meta, covered, evaluate_all, records_to_extract, sides
from agreid_plugin.evaluation.ranking import Ranking, rank
from agreid_plugin.evaluation.reranking import expand, rerank
from agreid_plugin.evaluation.results import (
    as_results,
    comparison_table,
    load_results,
    save_results,
    short_table,
    table,
)
from agreid_plugin.evaluation.retrieval import evaluate, evaluate_distances, evaluate_text
from agreid_plugin.evaluation.roc import Direction, OperatingPoint

__all__ = [
    "NUMBERS",
    "Calibration",
    "Difference",
    "Direction",
    "Distances",
    "FeatureDistances",
    "FeatureSet",
    "Interval",
    "Metrics",
    "OperatingPoint",
    "PerQuery",
    "Ranking",
    "as_results",
    "calibrate",
    "calibrate_distances",
    "caption_meta",
    "compare",
    "comparison_table",
    "confidence",
    "covered",
    "evaluate",
    "evaluate_all",
    "evaluate_distances",
    "evaluate_text",
    "expand",
    "load_features",
    "load_results",
    "rank",
    "records_to_extract",
    "require_comparable",
    "rerank",
    "save_features",
    "save_results",
    "short_table",
    "sides",
    "table",
]
