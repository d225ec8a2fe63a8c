"""Export of a trained model to a file for other runtimes, compared with the model before it is kept.

Shapes: N images or sentences, D width.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image

from agreid_plugin.data.atomic_write import atomic_write, write_error_context
from agreid_plugin.data.files import list_images
from agreid_plugin.data.images import read_image
from agreid_plugin.deploy import ExportedModel, ModelMetadata
from agreid_plugin.errors import InputError, first_line, unknown
from agreid_plugin.evaluation import FeatureSet
from agreid_plugin.inference.export.files import WRITERS, write_int8
from agreid_plugin.inference.export.graph import Graph
from agreid_plugin.inference.extractor import Extractor, clean_sentence
from agreid_plugin.types import PLATFORMS, Record, View, view_word

BATCHES = (1, 7)
MIN_COSINE = 0.9  # of int8's features with the model's; below, the file is broken
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
Say = Callable[[str], None]


@dataclass(frozen=True)
class ExportTarget:
    """A file to write.

    Attributes:
        path: the file.
        format: one of `WRITERS`.
        tower: `image` or `text`.
        view: `given` or `predicted`.
        int8: weights in 8 bits, of ONNX.
        tolerance: largest difference of a feature's number from the model's.
    """

    path: Path
    format: str = "onnx"
    tower: str = "image"
    view: str = "given"
    int8: bool = False
    tolerance: float = 1e-4


@dataclass(frozen=True)
class Sample:
    """Inputs with the model's features of them.

    Attributes:
        kind: what they are, in the plural.
        features: of the model, (N, D).
        run: passes them to an exported file and returns its features.
    """

    kind: str
    features: np.ndarray
    run: Callable[[ExportedModel], np.ndarray]


def export_files(path: Path) -> list[Path]:
    """Return the files of an export; OpenVINO has weights in a second one."""
    return [path.with_suffix(".bin"), path] if path.suffix == ".xml" else [path]


def check_target(target: ExportTarget, force: bool = False) -> None:
    """Refuse what cannot be written, before a model is built."""
    if target.format not in WRITERS:
        raise unknown("--format", target.format, WRITERS)
    ending = WRITERS[target.format][0]
    if target.path.suffix != ending:
        raise InputError(f"--out {target.path} should end with {ending}")
    if target.int8 and target.format != "onnx":
        raise InputError(f"--int8 is for --format onnx, not for {target.format}")
    if not 0 < target.tolerance < float("inf"):
        raise InputError(f"--tolerance {target.tolerance} should be above 0")
    for path in export_files(target.path):
        if path.exists() and not force:
            raise InputError(f"{path} exists: choose another --out, or replace it with --force")
    if not target.path.parent.is_dir():
        raise InputError(f"--out {target.path}: the folder {target.path.parent} does not exist")


def export(extractor: Extractor, target: ExportTarget, pictures: Pictures | None, say: Say) -> ModelMetadata:
    """Write a model to a file and compare both on real inputs; the file is there only if they agree.

    Args:
        extractor: the model.
        target: the file.
        pictures: images to compare on; the text tower needs none.
        say: called with a line about each comparison.

    Raises:
        InputError: they differ by more than the tolerance, or the model cannot be written so.
    """
    graph = Graph(extractor, target.tower, target.view)
    sample = image_sample(extractor, target.view, pictures) if pictures else sentence_sample(extractor)
    with TemporaryDirectory() as folder:
        draft_path = Path(folder) / target.path.name
        _write(graph, target.format, draft_path)
        _compare(draft_path, sample, target.tolerance, say)
        if target.int8:
            draft_path = _quantize(draft_path, graph.metadata, sample, say)
        for file, path in zip(export_files(draft_path), export_files(target.path), strict=True):
            with write_error_context(path), atomic_write(path) as draft:
                shutil.copyfile(file, draft)
    return ExportedModel(target.path).metadata


def _write(graph: Graph, kind: str, path: Path) -> None:
    try:
        WRITERS[kind][1](graph, path)
    except torch.onnx.OnnxExporterError as error:
        raise InputError(f"{graph.metadata.method} cannot be written as {kind}: {first_line(error)}") from error


def _compare(draft_path: Path, sample: Sample, tolerance: float, say: Say) -> None:
    """Refuse a file that differs; differences of raw features are relative to the largest number."""
    scale = max(1.0, float(np.abs(sample.features).max()))
    for batch in BATCHES:
        difference = float(np.abs(sample.run(ExportedModel(draft_path, batch)) - sample.features).max()) / scale
        say(f"batch {batch}: largest difference {difference:.1e} on {len(sample.features)} {sample.kind}")
        if not difference <= tolerance:
            raise InputError(
                f"the file differs from the model by {difference:.1e} at batch {batch}, more than --tolerance "
                f"{tolerance:g}; it was not kept"
            )


def _quantize(full: Path, metadata: ModelMetadata, sample: Sample, say: Say) -> Path:
    """Write the file in int8, and report its size and its features' cosine with the model's."""
    small = full.with_name(f"int8-{full.name}")
    write_int8(full, metadata, small)
    pair = (sample.run(ExportedModel(small)), sample.features)
    exported, original = (each / np.linalg.norm(each, axis=1, keepdims=True).clip(min=1e-12) for each in pair)
    cosines = (exported * original).sum(axis=1)
    share = small.stat().st_size / full.stat().st_size
    say(f"int8: {share:.0%} of the size; cosine with the model {cosines.mean():.4f}, least {cosines.min():.4f}")
    if not cosines.mean() >= MIN_COSINE:
        raise InputError(f"int8 leaves features with a cosine of {cosines.mean():.2f} to the model's: leave --int8 out")
    return small


def image_sample(extractor: Extractor, view: str, pictures: Pictures) -> Sample:
    """Return pictures with the model's features of them.

    Args:
        extractor: the model.
        view: `given`, where a model that predicts views has to predict every third, or `predicted`.
        pictures: images of both views.
    """
    images, views = pictures
    predicts = extractor.model.predicts_views
    views = [None if view == "predicted" or (predicts and place % 3 == 0) else word for place, word in enumerate(views)]
    return Sample("images", extractor(images, views), lambda model: model(images, views))


def sentence_sample(extractor: Extractor) -> Sample:
    """Return sentences of several lengths with the model's features of them."""
    features, tokenize = extractor.texts(SENTENCES), extractor.model.tokenizer
    tokens = torch.stack([tokenize(clean_sentence(sentence)) for sentence in SENTENCES]).numpy()
    return Sample("sentences", features, lambda model: model.embed_tokens(tokens))


def features_by(model: ExportedModel, like: FeatureSet) -> FeatureSet:
    """Return the features an exported file gives for the same images, to be evaluated like a model's."""
    words = [_place_word(record) for record in like.records]
    images = model([record.path for record in like.records], words)
    return replace(like, images=(images,), views=model.metadata.views)


def _place_word(record: Record) -> str | None:
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
