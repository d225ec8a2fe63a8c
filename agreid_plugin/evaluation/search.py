"""Search in a gallery: for every query the images most like it, best first.

Shapes: Q queries, G gallery images, K results of a query, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.distances import FeatureDistances, blocks
from agreid_plugin.evaluation.inputs import FeatureArray, check_lengths
from agreid_plugin.types import UNKNOWN, View


@dataclass(frozen=True)
class Gallery:
    """Images to search in.

    Attributes:
        paths: G image files.
        features: (G, D) of them.
        views: (G,) what a model takes their views for, `UNKNOWN` where it does not tell.
    """

    paths: Sequence[str]
    features: np.ndarray
    views: np.ndarray

    def __post_init__(self) -> None:
        check_lengths("gallery", len(self.paths), features=len(self.features), views=len(self.views))

    def of_view(self, view: View) -> Gallery:
        """Keep the images that are taken for one view."""
        (places,) = np.nonzero(self.views == view)
        if not len(places):
            word = view.name.lower()
            raise InputError(f"none of the {len(self.paths)} images is taken for one of the {word} view")
        return replace(
            self,
            paths=[self.paths[place] for place in places],
            features=self.features[places],
            views=self.views[places],
        )


@dataclass(frozen=True)
class Hit:
    """One result: its rank from 1, the image, its cosine with the query, and what its view is taken for."""

    rank: int
    path: str
    score: float
    view: View | None = None

    @property
    def view_word(self) -> str:
        """The view in a word, empty if nobody knows."""
        return "" if self.view is None else self.view.name.lower()


@dataclass(frozen=True)
class Answer:
    """A query in words, what was found, and what should be known of the query."""

    query: str
    hits: tuple[Hit, ...]
    notes: tuple[str, ...] = ()


def rank(features: FeatureArray, queries: FeatureArray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the places in the gallery of each query's best images, and their cosines: (Q, K) and (Q, K).

    K is `top`, or G in a smaller gallery. Of equal images the one that stands first in the gallery comes first.

    Args:
        features: (G, D) of the gallery.
        queries: (Q, D).
        top: images of each query.
    """
    if top < 1:
        raise InputError(f"top={top} should be 1 or more")
    distances = FeatureDistances([(queries, features)])
    places, scores = [], []
    for index in blocks(np.arange(distances.shape[0]), distances.shape[1]):
        block = distances.rows(index)
        order = np.argsort(block, axis=1, kind="stable")[:, :top]
        places.append(order)
        scores.append(1 - np.take_along_axis(block, order, axis=1))
    return np.concatenate(places), np.concatenate(scores)


def answers(gallery: Gallery, queries: Sequence[str], features: FeatureArray, top: int) -> list[Answer]:
    """Answer queries, of which there are features, with the best images of a gallery.

    Args:
        gallery: the images.
        queries: Q queries in words.
        features: (Q, D) of them.
        top: images of each query.
    """
    check_lengths("queries", len(queries), features=len(features))
    found = zip(queries, *rank(gallery.features, features, top), strict=True)
    return [Answer(query, tuple(_hits(gallery, places, scores))) for query, places, scores in found]


def _hits(gallery: Gallery, places: np.ndarray, scores: np.ndarray) -> list[Hit]:
    views = [None if gallery.views[place] == UNKNOWN else View(int(gallery.views[place])) for place in places]
    found = zip(places, scores, views, strict=True)
    return [
        Hit(number, str(gallery.paths[place]), float(score), view)
        for number, (place, score, view) in enumerate(found, start=1)
    ]
