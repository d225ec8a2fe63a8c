"""Ranks of true matches, and the scores that follow from them: average precision, INP, first rank.

Equal distances are resolved against the query, everywhere: a match stands behind every negative at its distance, so
that constant features never look good and the order of the gallery never matters.

Shapes: Q queries, G gallery images, M matches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MAX_COUNTED = 24  # up to so many limits, counting each is faster than sorting the row


@dataclass(frozen=True)
class Scores:
    """What follows from the ranks of the matches, one entry a group of matches, groups in rising order.

    Attributes:
        group: the group, a query's row for example.
        precision: average precision.
        inverse_penalty: matches divided by the rank of the last match (INP).
        first: rank of the first match, from 1.
    """

    group: np.ndarray
    precision: np.ndarray
    inverse_penalty: np.ndarray
    first: np.ndarray


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


def count_within(distances: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return for each limit how many of the distances are not above it."""
    if len(limits) <= MAX_COUNTED:
        return np.array([np.count_nonzero(distances <= limit) for limit in limits], dtype=np.int64)
    return np.searchsorted(np.sort(distances), limits, side="right")


def score(groups: np.ndarray, negatives: np.ndarray) -> Scores:
    """Score each group of matches.

    Args:
        groups: (M,) the group of each match, in any order.
        negatives: (M,) how many negatives stand before each match.
    """
    order = np.lexsort((negatives, groups))
    groups, negatives = groups[order], negatives[order]
    starts = np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1))
    counts = np.diff(starts, append=len(groups))
    place = np.arange(len(groups)) - np.repeat(starts, counts) + 1
    ranks = negatives + place
    precision = np.add.reduceat(place / ranks, starts) / counts
    return Scores(groups[starts], precision, counts / ranks[starts + counts - 1], ranks[starts])


def rank(distances: np.ndarray, is_match: np.ndarray, hidden: np.ndarray, max_rank: int = 50) -> Ranking:
    """Rank every query's gallery by distance, given whole matrices; `evaluate` does without them.

    Args:
        distances: (Q, G), small is similar.
        is_match: (Q, G) whether the two images show the same person.
        hidden: (Q, G) whether the gallery image is left out for this query.
        max_rank: length of the CMC curve.

    Example:
        By distance this query's gallery is a negative, a match, a negative, a match: the matches have ranks 2 and 4.

        >>> import numpy as np
        >>> distances = np.array([[0.4, 0.1, 0.2, 0.3]])
        >>> is_match = np.array([[True, False, True, False]])
        >>> found = rank(distances, is_match, hidden=np.zeros((1, 4), dtype=bool), max_rank=3)
        >>> found.precision.tolist()  # (1/2 + 2/4) / 2
        [0.5]
        >>> found.inverse_penalty.tolist()  # 2 matches, the last one at rank 4
        [0.5]
        >>> found.cmc.tolist()  # found from rank 2 on
        [0.0, 1.0, 1.0]
    """
    visible = is_match & ~hidden
    valid = visible.any(axis=1)
    counted = [
        count_within(distances[row, ~(is_match[row] | hidden[row])], distances[row, visible[row]])
        for row in np.flatnonzero(valid)
    ]
    negatives = np.concatenate([np.empty(0, dtype=np.int64), *counted])
    scores = score(np.nonzero(visible)[0], negatives)
    found = np.bincount(np.minimum(scores.first, max_rank + 1) - 1, minlength=max_rank + 1)
    cmc = np.cumsum(found[:max_rank]) / max(valid.sum(), 1)
    return Ranking(valid, cmc, scores.precision, scores.inverse_penalty)
