"""Evaluation of several protocols from features extracted once and distances computed once.

Shapes: Q queries, G gallery images, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from agreid_plugin.data.datasets import Dataset
from agreid_plugin.data.protocols import Meta, Protocol, Selection, select
from agreid_plugin.data.protocols import protocols as known_protocols
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.distances import MEMORY, Distances, FeatureDistances, blocks
from agreid_plugin.evaluation.features import FeatureSet
from agreid_plugin.evaluation.metrics import Metrics, check_views
from agreid_plugin.evaluation.relevance import Matches, NegativeCounter, ProtocolRows, as_slice
from agreid_plugin.evaluation.retrieval import evaluate_distances, summarize
from agreid_plugin.types import Record

MakeDistances = Callable[[np.ndarray, np.ndarray], Distances]
FeaturePairs = list[tuple[np.ndarray, np.ndarray]]


def list_records(dataset: Dataset, protocols: Iterable[Protocol]) -> list[Record]:
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
    metric: str = "cosine",
    distances: MakeDistances | None = None,
    memory: float = MEMORY,
) -> dict[str, Metrics]:
    """Evaluate protocols from one set of features.

    Args:
        features: the dataset's features; image protocols use the first kind, text protocols average all kinds.
        protocols: the protocols; by default `find_covered`.
        metric: of image protocols, `cosine` or `euclidean`; what several of them compare is compared once.
        distances: makes the distances of each image protocol instead, from its query and gallery features; `rerank`,
            for example.
        memory: megabytes to use on top of the features and of one copy of them.

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
    check_views(features.views)
    tasks = (
        _covered_tasks(features) if protocols is None else [Task.choose(features, protocol) for protocol in protocols]
    )
    images = [task for task in tasks if task.protocol.kind == "image"]
    texts = [task for task in tasks if task.protocol.kind == "text"]
    found = _evaluate_together(texts, "cosine", memory)
    found |= (
        _evaluate_together(images, metric, memory) if distances is None else _evaluate_apart(images, distances, memory)
    )
    return {str(task.protocol): replace(found[str(task.protocol)], unreadable=features.unreadable) for task in tasks}


def find_covered(features: FeatureSet) -> list[Protocol]:
    """Return the protocols that the dataset allows and of whose images every one has a feature."""
    return [task.protocol for task in _covered_tasks(features)]


def select_query_gallery(features: FeatureSet, protocol: Protocol) -> tuple[np.ndarray, np.ndarray, Meta, Meta]:
    """Return the first kind of features of a protocol's queries and gallery images, and what is known of both."""
    task = Task.choose(features, protocol)
    return *task.pairs()[0], *task.metas


def caption_meta(records: Iterable[Record]) -> Meta:
    """Return identities and the rest of all captions of some records, one record after the other."""
    return Meta.collect(record for record in records for _ in record.captions)


def _covered_tasks(features: FeatureSet) -> list[Task]:
    found = []
    for protocol in known_protocols(features.dataset).values():
        with suppress(InputError):  # the dataset does not allow it, or not every image has a feature
            found.append(Task.choose(features, protocol))
    return found


def _evaluate_together(tasks: Sequence[Task], metric: str, memory: float) -> dict[str, Metrics]:
    """Return the numbers of protocols of one kind by the distances between features."""
    if not tasks:
        return {}
    counter = NegativeCounter([ProtocolRows(task.matches, task.query, task.gallery) for task in tasks])
    pairs = feature_pairs(tasks[0].features, tasks[0].protocol.kind)
    for rows, columns in counter.groups():
        _count(counter, pairs, rows, columns, metric, memory)
    return {
        str(task.protocol): summarize(task.matches, negatives, metric, task.features.views)
        for task, negatives in zip(tasks, counter.negatives(), strict=True)
    }


def _count(
    counter: NegativeCounter, pairs: FeaturePairs, rows: np.ndarray, columns: np.ndarray, metric: str, memory: float
) -> None:
    chosen = [(query[as_slice(rows)], gallery[as_slice(columns)]) for query, gallery in pairs]
    distances = FeatureDistances(chosen, metric)
    for block in blocks(np.arange(len(rows)), len(columns), memory):
        counter.add(distances.rows(block), rows[block], columns)


def _evaluate_apart(tasks: Sequence[Task], distances: MakeDistances, memory: float) -> dict[str, Metrics]:
    """Return the numbers of protocols by distances that are made for each."""
    return {
        str(task.protocol): evaluate_distances(
            distances(*task.pairs()[0]), *task.metas, task.protocol, memory=memory, views=task.features.views
        )
        for task in tasks
    }


@dataclass(frozen=True)
class Task:
    """What a protocol compares.

    Attributes:
        protocol: the protocol.
        features: of its dataset.
        selection: the images of both sides.
        query: (Q,) the queries' rows in the features of images or, under a text protocol, of captions.
        gallery: (G,) the gallery's rows in the features of images.
        query_meta: what is known of the queries.
        gallery_meta: what is known of the gallery images.
    """

    protocol: Protocol
    features: FeatureSet
    selection: Selection
    query: np.ndarray
    gallery: np.ndarray
    query_meta: Meta
    gallery_meta: Meta

    @classmethod
    def choose(cls, features: FeatureSet, protocol: Protocol) -> Task:
        """Choose what a protocol compares; an image or a caption without a feature is refused."""
        chosen = select(protocol, features.dataset)
        if protocol.kind == "image":
            rows, meta = features.rows(chosen.query), chosen.query_meta
        elif features.captions:
            rows = features.caption_rows(chosen.query)
            counts = [len(record.captions) for record in chosen.query]
            meta = chosen.query_meta[np.repeat(np.arange(len(counts)), counts)]
        else:
            raise InputError(f"{protocol} asks with sentences, and there are no features of sentences")
        return cls(protocol, features, chosen, rows, features.rows(chosen.gallery), meta, chosen.gallery_meta)

    @cached_property
    def matches(self) -> Matches:
        """The visible matches of its queries; a protocol of which no query has one is refused."""
        found = Matches(self.protocol, *self.metas)
        found.require((len(self.query), len(self.gallery)))
        return found

    @property
    def metas(self) -> tuple[Meta, Meta]:
        """What is known of both sides."""
        return self.query_meta, self.gallery_meta

    def pairs(self) -> FeaturePairs:
        """Return the features of both sides, (Q, D) and (G, D): of every kind under a text protocol, else the first."""
        pairs = feature_pairs(self.features, self.protocol.kind)
        return [(query[self.query], gallery[self.gallery]) for query, gallery in pairs]


def feature_pairs(features: FeatureSet, kind: str) -> FeaturePairs:
    """Return the features that all protocols of a kind choose from, for queries and for the gallery."""
    if kind == "image":
        return [(features.images[0], features.images[0])]
    return list(zip(features.captions, features.images, strict=True))
