"""Every protocol of a dataset from features that were extracted once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from agreid_plugin.data.datasets import Dataset
from agreid_plugin.data.protocols import Meta, Protocol, select, usable
from agreid_plugin.evaluation.distances import MEMORY, Distances, FeatureDistances
from agreid_plugin.evaluation.features import FeatureSet
from agreid_plugin.evaluation.metrics import Metrics
from agreid_plugin.evaluation.retrieval import evaluate_distances
from agreid_plugin.types import Record

MakeDistances = Callable[[np.ndarray, np.ndarray], Distances]


def cosine(query: np.ndarray, gallery: np.ndarray) -> Distances:
    """Return cosine distances between features."""
    return FeatureDistances([(query, gallery)])


def records_to_extract(dataset: Dataset, protocols: Iterable[Protocol]) -> list[Record]:
    """Return every image that one of the protocols asks for, once, sorted by path."""
    found: dict[str, Record] = {}
    for protocol in protocols:
        chosen = select(protocol, dataset)
        found.update({record.path: record for record in (*chosen.query, *chosen.gallery)})
    return [found[path] for path in sorted(found)]


def evaluate_all(
    features: FeatureSet,
    protocols: Sequence[Protocol] | None = None,
    *,
    distances: MakeDistances = cosine,
    memory: float = MEMORY,
) -> dict[str, Metrics]:
    """Evaluate protocols from one set of features.

    Args:
        features: the dataset's features; image protocols use the first kind, text protocols average all kinds.
        protocols: the protocols; by default `covered`.
        distances: makes distances from query and gallery features; `rerank`, for example.
        memory: megabytes to use on top of the features and of the copy of them that one protocol asks for.

    Returns:
        Full name of the protocol -> its numbers.

    Example:
        Five images, each with one feature, are queries and gallery of all protocols of CARGO that they allow.

        >>> import numpy as np
        >>> from agreid_plugin.data.datasets import Dataset
        >>> from agreid_plugin.types import Record, View
        >>> records = (
        ...     Record("0.jpg", pid=1, camera=1, view=View.AERIAL, split="query"),
        ...     Record("1.jpg", pid=1, camera=6, view=View.GROUND, split="query"),
        ...     Record("2.jpg", pid=1, camera=2, view=View.AERIAL, split="gallery"),
        ...     Record("3.jpg", pid=1, camera=7, view=View.GROUND, split="gallery"),
        ...     Record("4.jpg", pid=2, camera=7, view=View.GROUND, split="gallery"),
        ... )
        >>> features = np.array([[1, 0], [0, 1], [1, 0], [0, 1], [1, 1]])
        >>> found = evaluate_all(FeatureSet(Dataset("CARGO", "", records), records, (features,)))
        >>> for name, metrics in found.items():
        ...     print(f"{name:14} {metrics['mAP']:5.1f} %, queries: {metrics.queries}, gallery: {metrics.gallery}")
        CARGO/ALL       83.3 %, queries: 2, gallery: 3
        CARGO/A2A      100.0 %, queries: 1, gallery: 1
        CARGO/G2G      100.0 %, queries: 1, gallery: 2
        CARGO/A2G       50.0 %, queries: 1, gallery: 2
        CARGO/G2A      100.0 %, queries: 1, gallery: 1
        CARGO/AG-both   50.0 %, queries: 2, gallery: 3
        CARGO/AG-cross  75.0 %, queries: 2, gallery: 3
    """
    if protocols is None:
        protocols = covered(features)
    return {str(protocol): _evaluate(features, protocol, distances, memory) for protocol in protocols}


def covered(features: FeatureSet) -> list[Protocol]:
    """Return the protocols that the dataset allows and of whose images every one has a feature."""
    return [protocol for protocol in usable(features.dataset)[0].values() if _covers(features, protocol)]


def _covers(features: FeatureSet, protocol: Protocol) -> bool:
    chosen = select(protocol, features.dataset)
    speaks = protocol.kind == "image" or bool(features.captions)
    return speaks and features.covers((*chosen.query, *chosen.gallery))


def sides(features: FeatureSet, protocol: Protocol) -> tuple[np.ndarray, np.ndarray, Meta, Meta]:
    """Return the first kind of features of a protocol's queries and gallery images, and what is known of both."""
    query, gallery = _pairs(features, protocol)[0]
    return query, gallery, *metas(features, protocol)


def metas(features: FeatureSet, protocol: Protocol) -> tuple[Meta, Meta]:
    """Return what is known of a protocol's queries, images or captions, and of its gallery images."""
    chosen = select(protocol, features.dataset)
    query = caption_meta(chosen.query) if protocol.kind == "text" else Meta.of(chosen.query)
    return query, Meta.of(chosen.gallery)


def distances_of(features: FeatureSet, protocol: Protocol, make: MakeDistances) -> Distances:
    """Return the distances that a protocol's numbers are made from.

    Args:
        features: of the dataset.
        protocol: the protocol; captions are compared with images by the cosine, the mean over all kinds of features.
        make: makes the distances of an image protocol from the first kind.
    """
    pairs = _pairs(features, protocol)
    return FeatureDistances(pairs) if protocol.kind == "text" else make(*pairs[0])


def _pairs(features: FeatureSet, protocol: Protocol) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the features of queries and gallery: of every kind for a text protocol, else of the first."""
    chosen = select(protocol, features.dataset)
    gallery = features.rows(chosen.gallery)
    if protocol.kind == "image":
        return [(features.images[0][features.rows(chosen.query)], features.images[0][gallery])]
    captions = features.caption_rows(chosen.query)
    return [(text[captions], image[gallery]) for text, image in zip(features.captions, features.images, strict=True)]


def caption_meta(records: Iterable[Record]) -> Meta:
    """Return identities and the rest of all captions of some records, one record after the other."""
    return Meta.of(record for record in records for _ in record.captions)


def _evaluate(features: FeatureSet, protocol: Protocol, distances: MakeDistances, memory: float) -> Metrics:
    made, known = distances_of(features, protocol, distances), metas(features, protocol)
    found = evaluate_distances(made, *known, protocol, memory=memory, views=features.views)
    return replace(found, unreadable=features.unreadable)
