"""Random sets of images with what goes wrong in real ones, and the plain loop that evaluation has to equal."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from agreid_plugin.data.protocols import RULES, Meta, Protocol, is_hidden
from agreid_plugin.types import UNKNOWN, Record, View

RULE_SETS = [rules for size in range(len(RULES) + 1) for rules in combinations(RULES, size)]
TINY = 1e-6  # megabytes: one query at a time


@dataclass(frozen=True)
class Case:
    """One set, its features small whole numbers, so that squared distances are exact and often equal."""

    query: list[Record]
    gallery: list[Record]
    query_features: np.ndarray
    gallery_features: np.ndarray

    @property
    def metas(self) -> tuple[Meta, Meta]:
        return Meta.collect(self.query), Meta.collect(self.gallery)

    @property
    def features(self) -> tuple[np.ndarray, np.ndarray]:
        return self.query_features, self.gallery_features


def make_protocol(*hide: str, name: str = "ALL", **values) -> Protocol:
    return Protocol("TEST", name, hide=hide, source=values.pop("source", "a test"), **values)


def random_case(seed: int, queries: int = 12, gallery: int = 40, people: int = 6) -> Case:
    """Few people, so that some queries match nobody, some one image, and hiding leaves others nothing."""
    rng = np.random.default_rng(seed)
    sides = [[_random_record(rng, people, side, n) for n in range(count)] for side, count in _sizes(queries, gallery)]
    features = [rng.integers(-2, 3, size=(len(side), 3)).astype(np.float32) for side in sides]
    features[1][-gallery // 4 :] = features[0][0]  # copies of a query, of anybody
    return Case(*sides, *features)


def _sizes(queries: int, gallery: int) -> list[tuple[str, int]]:
    return [("query", queries), ("gallery", gallery)]


def _random_record(rng: np.random.Generator, people: int, side: str, number: int) -> Record:
    time = rng.choice(["", "day", "night"])
    return Record(
        path=f"{side}/{number}.jpg",
        pid=int(rng.integers(people + (side == "query"))),  # the last one is in no gallery
        camera=int(rng.choice([UNKNOWN, 0, 1, 2])),
        view=rng.choice([None, View.AERIAL, View.GROUND]),
        split=side,
        tags={"time": str(time)} if time else {},
    )


def squared_distances(case: Case) -> np.ndarray:
    a, b = (features.astype(np.float64) for features in case.features)
    return ((a[:, None] - b[None]) ** 2).sum(axis=2)


def every(query: Record, image: Record) -> bool:
    return True


def oracle(case: Case, protocol: Protocol, distances: np.ndarray, counts=every) -> dict[int, tuple]:
    """Return query -> (average precision, INP, first rank), one query, image and match after the other.

    Matches that do not count are neither matches nor strangers.
    """
    found = {}
    for row, query in enumerate(case.query):
        seen = [g for g, image in enumerate(case.gallery) if not is_hidden(protocol, query, image)]
        strangers = [distances[row, g] for g in seen if case.gallery[g].pid != query.pid]
        matches = sorted(
            distances[row, g] for g in seen if case.gallery[g].pid == query.pid and counts(query, case.gallery[g])
        )
        ranks = [n + sum(d <= match for d in strangers) for n, match in enumerate(matches, start=1)]
        if ranks:
            precisions = [n / rank for n, rank in enumerate(ranks, start=1)]
            found[row] = (sum(precisions) / len(ranks), len(ranks) / ranks[-1], ranks[0])
    return found


def oracle_numbers(found: dict[int, tuple]) -> dict[str, float]:
    precision, penalty, first = zip(*found.values(), strict=True)
    ranks = {f"Rank-{k}": 100 * np.mean([rank <= k for rank in first]) for k in (1, 5, 10, 20)}
    return {**ranks, "mAP": 100 * np.mean(precision), "mINP": 100 * np.mean(penalty)}
