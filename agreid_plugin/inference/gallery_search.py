"""Searching in a gallery by images or sentences, with a model of either host.

Shapes: Q queries, D width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from agreid_plugin.data.bad_images import describe_images
from agreid_plugin.data.files import list_images, require_existing
from agreid_plugin.data.images import iter_pictures
from agreid_plugin.errors import InputError
from agreid_plugin.inference.extractor import CUT_OUT, LIKE_FRAMES, Extractor, clean_sentence, format_frames
from agreid_plugin.nn.clip import Tokenizer
from agreid_plugin.retrieval.feature_cache import FeatureCache
from agreid_plugin.retrieval.index import (
    GalleryIndex,
    SearchResult,
    Where,
    build_index,
    check_fingerprint,
    open_index,
    search_queries,
)
from agreid_plugin.retrieval.listing import BAD_NAMES, separate
from agreid_plugin.types import View, view_label

ONE_TOKEN = 3  # start and end of a sentence stand around it
PREDICTING_METHODS = (
    "ViSA or SVPR trained with this package, or TAGCLIP with MODEL.TAG_CLIP.BLOCK hr_moe and VIEW_LOSS True"
)
Notify = Callable[[str], None]


@dataclass(frozen=True)
class Queries:
    """What is looked for.

    Attributes:
        names: Q, in words or as paths of images.
        vectors: (Q, D).
        notes: Q, what should be known of each.
        are_images: whether they are images.
    """

    names: Sequence[str]
    vectors: np.ndarray
    notes: Sequence[tuple[str, ...]]
    are_images: bool = False


def image_queries(extractor: Extractor, images: Sequence[str], view: str | None = None) -> Queries:
    """Return images, files and those of folders, as queries; all of one view, if it is known.

    Where the model goes by given views and none is, each query notes the view that it is taken for.
    """
    paths = [picture.path for picture in iter_pictures([require_existing(image) for image in images])]
    parts = list(extractor.stream(paths, view, skip_bad_images=True))
    if bad := [path for part in parts for path in part.bad]:
        raise InputError(f"{describe_images(bad)}: name other images to look for")
    vectors = np.concatenate([part.features for part in parts])
    method = extractor.model.method
    guessed = view is None and method is not None and method.view_source == "given"
    seen = [(path in part.frames, each) for part in parts for path, each in zip(part.paths, part.views, strict=True)]
    notes = [tuple(_image_notes(frame, each if guessed else None)) for frame, each in seen]
    return Queries(paths, vectors, notes, are_images=True)


def _image_notes(is_frame: bool, guess: View | None) -> Iterator[str]:
    """Say what keeps an image from being found, and which view it was taken for if the model goes by that."""
    if is_frame:
        yield f"the image is {LIKE_FRAMES}; {CUT_OUT}"
    if guess is not None:
        yield f"the image is taken for {guess.word}, which its feature depends on; --query-view gives its view"


def text_queries(extractor: Extractor, sentences: Sequence[str]) -> Queries:
    """Return sentences as queries."""
    vectors, tokenize = extractor.texts(sentences), extractor.model.tokenizer
    return Queries(sentences, vectors, [_notes(tokenize, clean_sentence(sentence)) for sentence in sentences])


def search(index: GalleryIndex, queries: Queries, top: int, where: Where) -> list[SearchResult]:
    """Find the images of an index that are most like each query; no match if no image meets the conditions.

    A result notes where the query's own file is among its matches.

    Args:
        index: where to search.
        queries: what is looked for.
        top: images of each result.
        where: the images to search in.
    """
    found = search_queries(index, queries.names, queries.vectors, top, where)
    results = [
        replace(result, notes=notes, is_image=queries.are_images)
        for result, notes in zip(found, queries.notes, strict=True)
    ]
    return [replace(result, notes=(*result.notes, *_note_itself(result))) for result in results]


def _note_itself(result: SearchResult) -> Iterator[str]:
    """Yield the rank at which a query's own file was found."""
    query = os.path.realpath(result.query)
    for rank, match in enumerate(result.matches if result.is_image else (), start=1):
        if os.path.realpath(match.entry.path) == query:
            yield f"rank {rank} is the query's file itself, which is in the gallery"


def read_index_fingerprint(uri: str, token: str) -> str:
    """Return the fingerprint of the model that made an index; empty where nothing is known of it."""
    with open_index(uri, token=token) as index:
        return index.info().fingerprint


@contextmanager
def open_checked(uri: str, extractor: Extractor, token: str, say: Notify) -> Iterator[GalleryIndex]:
    """Open an index to search with a model, which has to be the one that made it."""
    with open_index(uri, token=token) as index:
        if index.info().fingerprint:
            check_fingerprint(index.info(), extractor.fingerprint)
        else:
            say(f"the vectors of {uri} have no fingerprint: results are right only if this model made them")
        yield index


@contextmanager
def index_folder(
    extractor: Extractor, folder: str, cache: str | None, skip_bad_images: bool, say: Notify
) -> Iterator[GalleryIndex]:
    """Give an exact index of a folder's images, for as long as it is needed.

    Args:
        extractor: makes the features.
        folder: the images, at any depth.
        cache: the file that keeps the features of the images; see `FeatureCache`.
        skip_bad_images: leave out images that cannot be read, instead of refusing them.
        say: called with lines for the user.
    """
    paths, bad = separate(((path, path) for path in _images(folder)), skip_bad_images)
    if not paths:
        raise InputError(f"{describe_images(bad, BAD_NAMES)}: no other image is in the gallery")
    if bad:
        say(f"left out: {describe_images(bad, BAD_NAMES)}")
    store = FeatureCache(cache, extractor.fingerprint if cache else "")
    if store.outdated:
        say(f"{cache} is of other weights or another configuration: made anew")
    _fill(store, extractor, paths, skip_bad_images, say)
    with TemporaryDirectory() as place:
        build_index(Path(place) / "index", [store.chunk(paths)], kind="flat")
        with open_index(Path(place) / "index") as index:
            yield index


def check_view_filter(extractor: Extractor) -> None:
    """Refuse a filter by views that the model does not predict."""
    if not extractor.model.predicts_views:
        raise InputError(f"--view needs a model that learned to predict views: {PREDICTING_METHODS}")


def _fill(store: FeatureCache, extractor: Extractor, paths: Sequence[str], skip_bad: bool, say: Notify) -> None:
    """Make the features that are missing; what was made stays in the store in any case."""
    bad, frames = [], []
    missing = store.missing(paths)
    try:
        for part in extractor.stream(missing, skip_bad_images=skip_bad):
            bad += part.bad
            frames += part.frames
            for path, feature, view in zip(part.paths, part.features, part.views, strict=True):
                store.put(path, feature, view_label(view))
    finally:
        store.save()
    if len(bad) == len(paths):
        raise InputError(f"{describe_images(bad)}: no other image is in the gallery")
    if bad:
        say(f"left out: {describe_images(bad)}")
    if frames:
        say(format_frames(frames, len(paths)))


def _images(folder: str) -> list[str]:
    place = require_existing(folder)
    paths = [str(path) for path in list_images(place)] if place.is_dir() else []
    if not paths:
        raise InputError(f"{place} {'has no images in it' if place.is_dir() else 'is no folder'}: name one of images")
    return paths


def _notes(tokenize: Tokenizer, sentence: str) -> tuple[str, ...]:
    """Say what keeps a cleaned sentence from being understood."""
    notes = []
    if tokenize.is_long(sentence):
        notes.append(f"the sentence has more than {tokenize.length} tokens: its end was not read")
    words = [word for word in sentence.replace(",", " ").split() if len(word) > 1]
    if not any(int((tokenize(word) != 0).sum()) == ONE_TOKEN for word in words):
        notes.append("the sentence has no word that CLIP knows, which is trained on English: expect nothing of it")
    return tuple(notes)
