"""Collector of features: gathers those of an evaluation set from all processes and computes its protocols."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from agreid_plugin.data.protocols import Protocol
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.evaluation.features import FeatureSet
from agreid_plugin.evaluation.metrics import Metrics
from agreid_plugin.evaluation.ranking_options import RankingOptions
from agreid_plugin.evaluation.validation import describe_collapse

Part = tuple[list[str | int], np.ndarray, list[str]]
"""Keys and features of a process, and the images that it could not read."""


@dataclass(frozen=True)
class Evaluation:
    """Features and metrics of an evaluation set, and how the features were compared.

    Attributes:
        test_set: what was evaluated.
        features: the features.
        metrics: the numbers of each protocol, in their order.
        comparison: how features were compared.
        rates: true positive rates at small false positive rates by the protocol's name, where they are asked for.
        unreadable: images that could not be read.
    """

    test_set: EvaluationSet
    features: FeatureSet
    metrics: Sequence[Metrics]
    comparison: RankingOptions
    rates: dict[str, dict[str, float]] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()


class FeatureCollector:
    """Collects features in one process by the image's path, or by the caption's number; each counts once."""

    def __init__(self) -> None:
        self._features: dict[str | int, np.ndarray] = {}

    def add(self, key: str | int, feature: np.ndarray) -> None:
        """Keep the feature, (D,), of an image or a caption."""
        self._features[key] = feature

    def reset(self) -> None:
        """Forget what was collected."""
        self._features = {}

    def take(self, unreadable: Collection[str] = ()) -> Part:
        """Return what was collected, as one array, which travels faster than many, and forget it.

        Args:
            unreadable: images that this process could not read.
        """
        features = np.stack(list(self._features.values())) if self._features else np.empty((0, 0))
        part = list(self._features), features, list(unreadable)
        self.reset()
        return part


def evaluate_parts(
    parts: Sequence[Part],
    test_set: EvaluationSet,
    comparison: RankingOptions,
    *,
    views: str = "",
    roc: bool = False,
    logger: logging.Logger,
) -> Evaluation:
    """Compute every protocol of an evaluation set from what all processes have collected.

    Args:
        parts: of each process.
        test_set: what is evaluated.
        comparison: how features are compared.
        views: where the model has the views of test images from, `given` or `predicted`; empty if it uses none.
        roc: whether true positive rates are asked for.
        logger: the host's.

    Raises:
        InputError: an image or a caption has no feature, or features cannot be compared.
    """
    by_key = {key: feature for keys, features, _ in parts for key, feature in zip(keys, features, strict=True)}
    unreadable = frozenset(path for *_, paths in parts for path in paths)
    features = test_set.feature_set(by_key, views, unreadable)
    alike = describe_collapse(features.images[0])
    if alike:
        # mmengine's logger shows a warning of the same words, before they are filled in, but once
        logger.warning(f"{test_set.dataset.name}: {alike}; the model does not tell people apart")
    metrics = comparison.compute(features, test_set.protocols.values())
    asked = test_set.protocols if roc else {}
    rates = {name: _true_positive_rates(features, each, comparison, logger) for name, each in asked.items()}
    return Evaluation(test_set, features, metrics, comparison, rates, unreadable)


def _true_positive_rates(
    features: FeatureSet, protocol: Protocol, comparison: RankingOptions, logger: logging.Logger
) -> dict[str, float]:
    try:
        return comparison.calibrate(features, protocol).true_positive_rates()
    except InputError as error:  # too few pairs for a rate are no reason to end a training
        logger.warning(str(error))
        return {}
