"""Sample inputs with the model's features, to compare an exported file with.

Shapes: N images or sentences, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from agreid_plugin.data.datasets.files import list_images
from agreid_plugin.data.images import read_image
from agreid_plugin.deploy import ExportedModel
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import FeatureSet
from agreid_plugin.inference.extractor import Extractor, cleaned
from agreid_plugin.types import PLATFORMS, Record, View, view_word

IMAGES = 14
WORDS = {View.AERIAL: "uav", View.GROUND: "cctv"}  # platforms, from which views follow
SENTENCES = (
    "a man in a red coat and blue jeans with a black backpack",
    "a woman",
    "an old man with short gray hair who carries a brown bag in his left hand and wears a long dark coat",
    "someone in white shoes",
    "a person in a yellow shirt, seen from above",
    "a child with a green hat",
    "a woman with long hair in a black skirt",
    "two people with umbrellas",
)

Pictures = tuple[Sequence[Image.Image], Sequence[str]]
"""Images, and the platform of each."""


@dataclass(frozen=True)
class Sample:
    """Inputs with the model's features of them.

    Attributes:
        kind: what they are, in the plural.
        features: of the model, (N, D).
        run: gives them to an exported file, and returns its features.
    """

    kind: str
    features: np.ndarray
    run: Callable[[ExportedModel], np.ndarray]


def image_sample(extractor: Extractor, view: str, pictures: Pictures) -> Sample:
    """Return pictures with the model's features of them.

    Args:
        extractor: the model.
        view: `given`, where a model that predicts views has to predict every third, or `predicted`.
        pictures: images of both views.
    """
    images, views = pictures
    predicts = extractor.encoder.tells_views
    views = [None if view == "predicted" or (predicts and place % 3 == 0) else word for place, word in enumerate(views)]
    return Sample("images", extractor(images, views), lambda model: model(images, views))


def sentence_sample(extractor: Extractor) -> Sample:
    """Return sentences of several lengths with the model's features of them."""
    features, tokenize = extractor.texts(SENTENCES), extractor.encoder.tokenizer
    tokens = torch.stack([tokenize(cleaned(sentence)) for sentence in SENTENCES]).numpy()
    return Sample("sentences", features, lambda model: model.of_tokens(tokens))


def features_by(model: ExportedModel, like: FeatureSet) -> FeatureSet:
    """Return the features an exported file gives for the same images, to be evaluated like a model's."""
    words = [_word(record) for record in like.records]
    images = model([record.path for record in like.records], words)
    return replace(like, images=(images,), views=model.about.views)


def _word(record: Record) -> str | None:
    """Return the most specific word for the place an image was taken from."""
    if record.platform.lower() in PLATFORMS:
        return record.platform
    return view_word(record.view) or None


def read_folder(folder: Path) -> Pictures:
    """Read pictures of a folder, some repeatedly if they are few; every other counts as aerial."""
    paths = list_images(folder) if folder.is_dir() else []
    if not paths:
        raise InputError(f"--images {folder} has no images: name a folder with some")
    paths = paths[:: max(1, len(paths) // IMAGES)]
    paths = [paths[place % len(paths)] for place in range(IMAGES)]
    return [read_image(path) for path in paths], [WORDS[View(place % 2)] for place in range(IMAGES)]


def read_records(records: Sequence[Record]) -> Pictures:
    """Read the pictures of a dataset's first records."""
    records = records[:IMAGES]
    return [read_image(record.path) for record in records], [WORDS[record.view] for record in records]
