"""Evaluation under one protocol: features or distances in, `Metrics` out, one block of queries at a time.

Shapes: Q queries, G gallery images, D width, M visible matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from hashlib import blake2b

import numpy as np

from agreid_plugin.data.protocols import Meta, Protocol
from agreid_plugin.evaluation.distances import MEMORY, Distances, FeatureDistances, blocks
from agreid_plugin.evaluation.metrics import Breakdown, Metrics, PerQuery, break_down, check_views, compute_means
from agreid_plugin.evaluation.ranking import Scores, score
from agreid_plugin.evaluation.relevance import Matches, NegativeCounter, Negatives, ProtocolRows
from agreid_plugin.evaluation.validation import FeatureArray, Paths


def evaluate(
    query: FeatureArray,
    gallery: FeatureArray,
    query_meta: Meta,
    gallery_meta: Meta,
    protocol: Protocol,
    *,
    metric: str = "cosine",
    memory: float = MEMORY,
    views: str = "",
    paths: Paths = (None, None),
) -> Metrics:
    """Evaluate features under a protocol.

    Equal distances are resolved against the query: a match stands behind every negative at its distance. Neither the
    order of the images nor `memory` changes a number.

    Args:
        query: (Q, D) features.
        gallery: (G, D) features.
        query_meta: identities, cameras, views and times of the queries.
        gallery_meta: the same of the gallery.
        protocol: says what is hidden from whom; the two sides are taken as given, its filters are `select`'s business.
        metric: `cosine` or `euclidean`.
        memory: megabytes to use on top of the features.
        views: whether the model was `given` views or `predicted` them; empty if it uses none.
        paths: query and gallery images, for complaints about their features.

    Example:
        The query's nearest image is of the same camera, which the protocol hides; then come a negative and a match.

        >>> import numpy as np
        >>> from agreid_plugin.data.protocols import Meta, protocol
        >>> from agreid_plugin.types import Record, View
        >>> query = Meta.collect([Record("q.jpg", pid=1, camera=1, view=View.AERIAL)])
        >>> gallery = Meta.collect(
        ...     [
        ...         Record("a.jpg", pid=1, camera=1, view=View.AERIAL),
        ...         Record("b.jpg", pid=2, camera=6, view=View.GROUND),
        ...         Record("c.jpg", pid=1, camera=6, view=View.GROUND),
        ...     ]
        ... )
        >>> features = np.array([[1, 0]]), np.array([[1, 0], [4, 3], [3, 4]])  # cosines 1, 0.8 and 0.6
        >>> found = evaluate(*features, query, gallery, protocol("CARGO/ALL"))
        >>> found["Rank-1"], found["Rank-5"], found["mAP"]
        (0.0, 100.0, 50.0)
        >>> list(found.directions)
        ['aerial->ground']
    """
    distances = FeatureDistances([(query, gallery)], metric, paths)
    return evaluate_distances(distances, query_meta, gallery_meta, protocol, memory=memory, views=views)


def evaluate_text(
    pairs: Sequence[tuple[FeatureArray, FeatureArray]],
    caption_meta: Meta,
    image_meta: Meta,
    protocol: Protocol,
    *,
    memory: float = MEMORY,
    views: str = "",
) -> Metrics:
    """Evaluate text to image retrieval; Rank-k is what the text literature calls R@k.

    Args:
        pairs: (caption features, image features), one or more, for example global and local ones; their cosine
            similarities are averaged. Each caption is one query.
        caption_meta: identities of the captions, see `caption_meta`.
        image_meta: identities of the gallery images.
        protocol: the protocol.
        memory: megabytes to use on top of the features.
        views: as in `evaluate`.
    """
    return evaluate_distances(FeatureDistances(pairs), caption_meta, image_meta, protocol, memory=memory, views=views)


def evaluate_distances(
    distances: Distances,
    query_meta: Meta,
    gallery_meta: Meta,
    protocol: Protocol,
    *,
    memory: float = MEMORY,
    views: str = "",
) -> Metrics:
    """Evaluate distances, re-ranked ones for example, under a protocol; the arguments are those of `evaluate`."""
    check_views(views)
    matches = Matches(protocol, query_meta, gallery_meta)
    matches.require(distances.shape)
    counter = NegativeCounter([ProtocolRows(matches, np.arange(len(query_meta)), np.arange(len(gallery_meta)))])
    for rows in blocks(matches.rows, len(gallery_meta), memory):
        counter.add(distances.rows(rows), rows, np.arange(len(gallery_meta)))
    return summarize(matches, counter.negatives()[0], distances.name, views)


def summarize(matches: Matches, counted: Negatives, distance: str, views: str = "") -> Metrics:
    """Return a protocol's numbers.

    Args:
        matches: the protocol's visible matches.
        counted: the negatives before each of them.
        distance: how images were compared.
        views: as in `evaluate`.
    """
    query, gallery = matches.query, matches.gallery
    per_query = _per_query(score(counted.query, counted.count), query)
    return Metrics(
        protocol=str(matches.protocol),
        source=matches.protocol.source,
        values=compute_means(per_query),
        queries=len(per_query),
        skipped=matches.skipped,
        gallery=len(gallery),
        directions=_break_down(counted, query.view, gallery.view, view=True),
        cameras=_break_down(counted, query.camera, gallery.camera, view=False),
        distance=distance,
        views=views,
        fingerprint=_fingerprint(query, gallery),
        per_query=per_query,
    )


def _per_query(scores: Scores, query: Meta) -> PerQuery:
    pids = query.pid[scores.group]
    return PerQuery(scores.group, pids, scores.precision, scores.inverse_penalty, scores.first)


def _break_down(counted: Negatives, query: np.ndarray, gallery: np.ndarray, view: bool) -> dict[str, Breakdown]:
    labels, label_numbers = np.unique(gallery[counted.gallery], return_inverse=True)
    scores = score(counted.query * np.int64(len(labels)) + label_numbers, counted.count)
    row, label = np.divmod(scores.group, len(labels))
    return break_down(scores, query[row], labels[label], view)


def _fingerprint(*sides: Meta) -> str:
    digest = blake2b(digest_size=8)
    for side in sides:
        digest.update(len(side).to_bytes(8, "little"))
        for column in fields(side):
            digest.update(np.ascontiguousarray(getattr(side, column.name), dtype="<i8").tobytes())
    return digest.hexdigest()
