"""A protocol's task: the features that it compares and what is known of them, chosen once.

Shapes: Q queries, G gallery images, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from agreid_plugin.data.protocols import Meta, Protocol, Selection, select
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.features import FeatureSet
from agreid_plugin.evaluation.relevance import Matches

Pairs = list[tuple[np.ndarray, np.ndarray]]


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

    def pairs(self) -> Pairs:
        """Return the features of both sides, (Q, D) and (G, D): of every kind under a text protocol, else the first."""
        pairs = feature_pairs(self.features, self.protocol.kind)
        return [(query[self.query], gallery[self.gallery]) for query, gallery in pairs]


def feature_pairs(features: FeatureSet, kind: str) -> Pairs:
    """Return the features that all protocols of a kind choose from, for queries and for the gallery."""
    if kind == "image":
        return [(features.images[0], features.images[0])]
    return list(zip(features.captions, features.images, strict=True))
