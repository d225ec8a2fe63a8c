"""Graph of an exported file: a trained model of fixed shape with the steps before and after it.

Shapes: B images or sentences, H rows, W columns, L tokens, D width.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from agreid_plugin.data.datasets.custom import VIEW_WORDS
from agreid_plugin.deploy.metadata import INTERPOLATIONS, ModelMetadata
from agreid_plugin.deploy.model import resize
from agreid_plugin.errors import InputError
from agreid_plugin.inference.extractor import LABELS, ExtractionModel, Extractor
from agreid_plugin.nn.experts import make_traceable
from agreid_plugin.types import Batch, platform_label
from agreid_plugin.version import __version__

TRACED = 3  # images in the batch that a graph is traced with: not 1, which broadcasts, nor the number of views


class Graph(nn.Module):
    """Raw inputs to features: the model of an extractor, which it copies, on the CPU and without branches.

    Attributes:
        metadata: the description that the file holds.

    Args:
        extractor: the model; features are of length 1 if its are.
        tower: `image` or `text`.
        view: `given` or `predicted`, of a method that needs views.
    """

    def __init__(self, extractor: Extractor, tower: str = "image", view: str = "given"):
        super().__init__()
        self._extraction = _make_fixed(extractor.model)
        self.model, self._normalize = self._extraction.network, extractor.normalize
        self._labels = _input_labels(self._extraction, view) if tower == "image" else ()
        self._predicted = (
            self._extraction.needs if tower == "image" and self._extraction.predicts_views else frozenset()
        )
        self.metadata = _describe(extractor, tower, self._labels)
        self.eval()
        with torch.no_grad():
            self.metadata = replace(self.metadata, width=self(*self.example()).shape[1])

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return features: (B, 3, H, W) of 0 to 255 with views and platforms as far as they are inputs, or (B, L)."""
        batch = Batch(**dict(zip(self.metadata.inputs, inputs, strict=True)))
        if batch.images is not None:
            batch = batch.with_(images=batch.images.float())
        if self._predicted:
            batch = self._extraction.predict_labels(batch, self._predicted)
        features = self._extraction.embed(batch)[0].float()
        return F.normalize(features) if self._normalize else features

    def example(self) -> tuple[Tensor, ...]:
        """Return inputs to trace the graph with."""
        if self.metadata.tower == "text":
            words = [self._extraction.tokenizer(words) for words in ("a man in red", "someone", "a woman with a bag")]
            return (torch.stack(words),)
        draw = torch.Generator().manual_seed(0)
        images = torch.randint(256, (TRACED, 3, *self.metadata.size), generator=draw, dtype=torch.uint8)
        return images, *(torch.arange(TRACED) % 2 for _ in self._labels)


def _make_fixed(model: ExtractionModel) -> ExtractionModel:
    """Return a copy of a model on the CPU whose graph does not depend on values."""
    model = deepcopy(model)
    model.network.cpu().eval().requires_grad_(False)
    make_traceable(model.network)
    return model


def _input_labels(model: ExtractionModel, view: str) -> tuple[str, ...]:
    """Return the labels of images that are inputs of the graph."""
    if view == "given" or not model.needs:
        return tuple(name for name in LABELS if name in model.needs)
    if not model.predicts_views:
        raise InputError(
            f"--view predicted: {model.settings.name} needs views, and its weights have no view predictor (released "
            "files never had one); leave it out, and the file takes views as an input"
        )
    return ()


def _describe(extractor: Extractor, tower: str, labels: tuple[str, ...]) -> ModelMetadata:
    model = extractor.model
    common = {
        "package": __version__,
        "method": model.settings.name,
        "fingerprint": model.settings.fingerprint,
        "tower": tower,
        "width": 0,  # set from the graph
        "normalized": extractor.normalize,
    }
    if tower == "text":
        return ModelMetadata(**common, inputs=("tokens",), text_length=model.tokenizer.length)
    size, interpolation = _find_resizing(model)
    source = "" if model.method is None else model.method.view_source
    return ModelMetadata(
        **common,
        inputs=("images", *labels),
        views=("given" if labels else "predicted") if model.needs else source,
        unknown_views=bool(labels) and model.predicts_views,
        labels={word: (int(view), platform_label(word)) for word, view in VIEW_WORDS.items()} if labels else {},
        size=size,
        interpolation=interpolation,
    )


def _find_resizing(model: ExtractionModel) -> tuple[tuple[int, int], str]:
    """Find the size and the interpolation of PIL that test images are resized with."""
    noise = np.random.default_rng(0).integers(0, 256, (3, 97, 53, 3), dtype=np.uint8)
    pictures = [Image.fromarray(each[:rows]) for each, rows in zip(noise, (97, 41, 13), strict=True)]
    expected = [model.settings.transform(picture).numpy() for picture in pictures]
    rows, columns = expected[0].shape[1:]
    for name in INTERPOLATIONS:
        found = [resize(picture, (rows, columns), name) for picture in pictures]
        if all(np.array_equal(*pair) for pair in zip(found, expected, strict=True)):
            return (rows, columns), name
    raise InputError(
        "test images go through more than a resizing to one size (INPUT of fast-reid, the pipeline of mmengine), which "
        "an exported file cannot hold: leave cropping and the like out of the configuration"
    )
