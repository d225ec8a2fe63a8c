"""Rank lists: the first images of a query's ranking under a protocol, in the order that the metrics use.

Shapes: Q queries, G gallery images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agreid_plugin.data.protocols import Protocol, hidden_mask
from agreid_plugin.errors import InputError, require_known
from agreid_plugin.evaluation.features import FeatureSet
from agreid_plugin.evaluation.metrics import PerQuery
from agreid_plugin.evaluation.multi_protocol import Task
from agreid_plugin.evaluation.ranking_options import RankingOptions
from agreid_plugin.types import Record

CHOICES = ("even", "worst", "best", "random")


@dataclass(frozen=True)
class RankedImage:
    """One gallery image of a ranking: its rank from 1, distance, and whether it shows the query's person."""

    rank: int
    record: Record
    distance: float
    right: bool


@dataclass(frozen=True)
class RankList:
    """A query, an image or with `caption` a sentence about it, and the first images of its ranking.

    Attributes:
        protocol: its full name.
        row: the query's place in the protocol.
        query: the image.
        listed: the first images of the ranking.
        first_right: the rank of the first image of the same person, listed or not; None without any.
        caption: the sentence, if one asks.
    """

    protocol: str
    row: int
    query: Record
    listed: tuple[RankedImage, ...]
    first_right: int | None = None
    caption: str = ""


def choose_queries(per_query: PerQuery, count: int, choice: str = "even", seed: int = 0) -> list[int]:
    """Choose queries that have a match.

    Args:
        per_query: the queries.
        count: how many, or all if there are fewer.
        choice: `even` for some all along the set, `worst` for those of least average precision, `best` for those of
            most, `random` for any.
        seed: of `random`.
    """
    require_known("choice", choice, CHOICES)
    if count < 1:
        raise InputError(f"count={count} should be 1 or more")
    if choice in ("worst", "best"):
        precision = per_query.precision if choice == "worst" else -per_query.precision
        return per_query.row[np.argsort(precision, kind="stable")[:count]].tolist()
    if choice == "random":
        drawn = np.random.default_rng(seed).permutation(len(per_query.row))[:count]
        return per_query.row[np.sort(drawn)].tolist()
    places = np.linspace(0, len(per_query.row) - 1, min(count, len(per_query.row)))
    return per_query.row[places.round().astype(int)].tolist()


def build_rank_lists(
    features: FeatureSet, protocol: Protocol, comparison: RankingOptions, rows: Sequence[int], top: int = 10
) -> list[RankList]:
    """Return the rankings of some queries, without the images that the protocol hides from them.

    Of images at one distance negatives stand first, as in the numbers.

    Args:
        features: of the dataset.
        protocol: the protocol.
        comparison: how the numbers' distances were made.
        rows: the queries' places in the protocol; of a text protocol each caption is a query.
        top: images of each.
    """
    if top < 1:
        raise InputError(f"top={top} should be 1 or more")
    comparison.check(protocol)
    task = Task.choose(features, protocol)
    queries, gallery = _queries(protocol, task.selection.query), task.selection.gallery
    query_meta, gallery_meta = task.metas
    wanted = np.asarray(rows, dtype=np.int64)
    distances = comparison.compute_distances(task).rows(wanted)
    hidden = hidden_mask(protocol, query_meta[wanted], gallery_meta)
    found = []
    for row, far, out in zip(wanted.tolist(), distances, hidden, strict=True):
        right = gallery_meta.pid == query_meta.pid[row]
        order = [place for place in np.lexsort((right, far)) if not out[place]]
        listed = [RankedImage(n, gallery[p], float(far[p]), bool(right[p])) for n, p in enumerate(order[:top], 1)]
        first = next((rank for rank, place in enumerate(order, 1) if right[place]), None)
        query, caption = queries[row]
        found.append(RankList(str(protocol), row, query, tuple(listed), first, caption))
    return found


def _queries(protocol: Protocol, records: Sequence[Record]) -> list[tuple[Record, str]]:
    if protocol.kind == "text":
        return [(record, caption) for record in records for caption in record.captions]
    return [(record, "") for record in records]
