"""Evaluation: exact ranking metrics under a protocol, re-ranking, thresholds, confidence, and the files they go to."""

from agreid_plugin.evaluation.calibration import Calibration, calibrate, calibrate_distances
from agreid_plugin.evaluation.confidence import Difference, Interval, compare, confidence_intervals, require_comparable
from agreid_plugin.evaluation.distances import Distances, FeatureDistances
from agreid_plugin.evaluation.features import FeatureSet, load_features, save_features
from agreid_plugin.evaluation.metrics import NUMBERS, Metrics, PerQuery
from agreid_plugin.evaluation.multi_protocol import (
    caption_meta,
    evaluate_all,
    find_covered,
    list_records,
    select_query_gallery,
)
from agreid_plugin.evaluation.ranking import Ranking, rank
from agreid_plugin.evaluation.reranking import expand, rerank
from agreid_plugin.evaluation.results import (
    format_comparison,
    format_short_table,
    format_table,
    group_by_dataset,
    load_results,
    save_results,
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
    "calibrate",
    "calibrate_distances",
    "caption_meta",
    "compare",
    "confidence_intervals",
    "evaluate",
    "evaluate_all",
    "evaluate_distances",
    "evaluate_text",
    "expand",
    "find_covered",
    "format_comparison",
    "format_short_table",
    "format_table",
    "group_by_dataset",
    "list_records",
    "load_features",
    "load_results",
    "rank",
    "require_comparable",
    "rerank",
    "save_features",
    "save_results",
    "select_query_gallery",
]
