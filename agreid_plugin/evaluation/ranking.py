"""Where each query's true matches stand in its ranking, and the three numbers that follow.

Shapes: Q queries, G gallery images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Ranking:
    """Per-query results over the queries that have a match left.

    Attributes:
        valid: (Q,) whether the query has a true match that is not hidden.
        cmc: (max_rank,) share of valid queries with a match at that rank or before.
        precision: average precision of each valid query.
        inverse_penalty: matches divided by the rank of the last match, of each valid query (INP).
    """

    valid: np.ndarray
    cmc: np.ndarray
    precision: np.ndarray
    inverse_penalty: np.ndarray


def match_ranks(distances: np.ndarray, is_match: np.ndarray) -> np.ndarray:
    """Return the ranks, from 1, of one query's matches among its gallery.

    Equal distances are resolved against the query: a match stands behind every stranger at its distance, so that
    constant features never look good and the order of the gallery never matters.
    """
    matches = np.sort(distances[is_match])
    strangers = np.sort(distances[~is_match])
    return np.searchsorted(strangers, matches, side="right") + np.arange(1, len(matches) + 1)


def rank(distances: np.ndarray, is_match: np.ndarray, hidden: np.ndarray, max_rank: int = 50) -> Ranking:
    """Rank every query's gallery by distance.

    Args:
        distances: (Q, G), small is similar.
        is_match: (Q, G) whether the two images show the same person.
        hidden: (Q, G) whether the gallery image is left out for this query.
        max_rank: length of the CMC curve.
    """
    valid = (is_match & ~hidden).any(axis=1)
    first = np.zeros(max_rank + 1)
    precision, inverse_penalty = [], []
    for row in np.flatnonzero(valid):
        kept = ~hidden[row]
        ranks = match_ranks(distances[row, kept], is_match[row, kept])
        first[min(ranks[0], max_rank + 1) - 1] += 1
        precision.append(np.mean(np.arange(1, len(ranks) + 1) / ranks))
        inverse_penalty.append(len(ranks) / ranks[-1])
    cmc = np.cumsum(first[:max_rank]) / max(valid.sum(), 1)
    return Ranking(valid, cmc, np.array(precision), np.array(inverse_penalty))
