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
from agreid_plugin.evaluation.inputs import FeatureArray, Paths
from agreid_plugin.evaluation.matches import Matches
from agreid_plugin.evaluation.metrics import Metrics, Part, PerQuery, check_views, means, parts
from agreid_plugin.evaluation.ranking import Scores, count_within, score


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

    Equal distances are resolved against the query: a match stands behind every stranger at its distance. Neither the
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
        The query's nearest image is of its own camera, which the protocol hides; then come a stranger and a match.

        >>> import numpy as np
        >>> from agreid_plugin.data.protocols import Meta, protocol
        >>> from agreid_plugin.types import Record, View
        >>> query = Meta.of([Record("q.jpg", pid=1, camera=1, view=View.AERIAL)])
        >>> gallery = Meta.of(
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
            similarities are averaged. Each caption is a query of its own.
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
    rows, columns, strangers = count_strangers(distances, matches, memory)
    per_query = _per_query(score(rows, strangers), query_meta)
    return Metrics(
        protocol=str(protocol),
        source=protocol.source,
        values=means(per_query),
        queries=len(per_query),
        skipped=matches.skipped,
        gallery=len(gallery_meta),
        directions=_parts(rows, columns, strangers, query_meta.view, gallery_meta.view, view=True),
        cameras=_parts(rows, columns, strangers, query_meta.camera, gallery_meta.camera, view=False),
        distance=distances.name,
        views=views,
        fingerprint=_fingerprint(query_meta, gallery_meta),
        per_query=per_query,
    )


def count_strangers(
    distances: Distances, matches: Matches, memory: float = MEMORY
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all visible matches, (M,) each: query, gallery image, and the strangers that stand before it."""
    found = [_count_in_block(distances, matches, rows) for rows in blocks(matches.rows, distances.shape[1], memory)]
    rows, columns, strangers = (np.concatenate(column) for column in zip(*found, strict=True))
    return rows, columns, strangers


def _count_in_block(
    distances: Distances, matches: Matches, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    block = distances.rows(rows)
    places, columns = matches.visible(rows)
    limits = np.split(block[places, columns], np.searchsorted(places, np.arange(1, len(rows))))
    strangers = matches.leave_strangers(rows, block)
    counts = np.concatenate([count_within(*pair) for pair in zip(strangers, limits, strict=True)])
    return rows[places].astype(np.int32), columns, counts.astype(np.int32)


def _per_query(scores: Scores, query: Meta) -> PerQuery:
    pids = query.pid[scores.group]
    return PerQuery(scores.group, pids, scores.precision, scores.inverse_penalty, scores.first)


def _parts(
    rows: np.ndarray, columns: np.ndarray, strangers: np.ndarray, query: np.ndarray, gallery: np.ndarray, view: bool
) -> dict[str, Part]:
    labels, numbered = np.unique(gallery, return_inverse=True)
    scores = score(rows * np.int64(len(labels)) + numbered[columns], strangers)
    row, label = np.divmod(scores.group, len(labels))
    return parts(scores, query[row], labels[label], view)


def _fingerprint(*sides: Meta) -> str:
    digest = blake2b(digest_size=8)
    for side in sides:
        digest.update(len(side).to_bytes(8, "little"))
        for column in fields(side):
            digest.update(np.ascontiguousarray(getattr(side, column.name), dtype="<i8").tobytes())
    return digest.hexdigest()
