"""Ranking options: metric, re-ranking and query expansion, and the metrics and thresholds computed with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from agreid_plugin.data.protocols import Protocol
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.calibration import Calibration, calibrate_distances
from agreid_plugin.evaluation.distances import MEMORY, Distances, FeatureDistances
from agreid_plugin.evaluation.features import FeatureSet
from agreid_plugin.evaluation.metrics import Metrics
from agreid_plugin.evaluation.multi_protocol import Task, evaluate_all
from agreid_plugin.evaluation.reranking import expand, rerank


@dataclass(frozen=True)
class Reranking:
    """k-reciprocal re-ranking; see `rerank`."""

    k1: int = 20
    k2: int = 6
    weight: float = 0.3


@dataclass(frozen=True)
class Expansion:
    """Average query expansion; see `expand`."""

    k: int = 10
    alpha: float = 3.0
    times: int = 1


@dataclass(frozen=True)
class RankingOptions:
    """How an evaluation computes distances.

    Attributes:
        metric: `cosine` or `euclidean`.
        rerank: how to re-rank the distances; None leaves them as they are.
        expansion: how to expand the features of both sides before; None leaves them as they are.
        memory: megabytes to use on top of the features.
        keys: the user's names of `rerank` and `expansion`, for error messages.
    """

    metric: str = "cosine"
    rerank: Reranking | None = None
    expansion: Expansion | None = None
    memory: float = MEMORY
    keys: tuple[str, str] = ("rerank", "expansion")

    def check(self, protocol: Protocol) -> None:
        """Refuse re-ranking and expansion under a text protocol: both need the query to be an image."""
        for key, chosen in zip(self.keys, (self.rerank, self.expansion), strict=True):
            if chosen and protocol.kind == "text":
                raise InputError(f"{protocol} asks with sentences, which {key} cannot compare: switch it off")

    def compute(self, features: FeatureSet, protocols: Iterable[Protocol]) -> list[Metrics]:
        """Compute protocols from features, in their order."""
        protocols = list(protocols)
        for each in protocols:
            self.check(each)
        made = self.distances if self.rerank or self.expansion else None
        return list(evaluate_all(features, protocols, metric=self.metric, distances=made, memory=self.memory).values())

    def calibrate(self, features: FeatureSet, protocol: Protocol) -> Calibration:
        """Choose same-person thresholds under a protocol."""
        self.check(protocol)
        task = Task.choose(features, protocol)
        distances = self.compute_distances(task)
        return calibrate_distances(distances, *task.metas, protocol, memory=self.memory, views=features.views)

    def compute_distances(self, task: Task) -> Distances:
        """Return the distances between a protocol's queries and its gallery that `compute` uses."""
        pairs = task.pairs()
        return FeatureDistances(pairs) if task.protocol.kind == "text" else self.distances(*pairs[0])

    def distances(self, query: np.ndarray, gallery: np.ndarray) -> Distances:
        """Return the distances between query and gallery features, (Q, D) and (G, D)."""
        if self.expansion:
            query, gallery = expand(query, gallery, **asdict(self.expansion))
        if self.rerank:
            return rerank(query, gallery, metric=self.metric, **asdict(self.rerank))
        return FeatureDistances([(query, gallery)], self.metric)
