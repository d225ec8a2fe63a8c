"""View prediction: a classifier of patch embeddings, and methods whose view is given or predicted.

A `view_head` supervises a method's view token. A `view_predictor` guesses the view of an image from its patches, before
they have met any view token, so that a model can be used where views are unknown.

Shapes: B images, N patches, D width, V view classes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_given, require_known
from agreid_plugin.types import UNKNOWN, VIEW_SOURCES, Batch, ReIDMethod, View, known_or

LABELS = ("views", "platforms")
"""Fields of a `Batch` that view classes depend on."""


class ViewPredictor(nn.Module):
    """A small classifier of patch embeddings.

    It gives the embeddings no gradient, so that a method learns the same with it or without. Later tokens would not do:
    an image's tokens have mixed with the token of its given view, and give that view away.

    Args:
        width: D.
        hidden: width of its hidden layer.
        classes: V.
    """

    def __init__(self, width: int, hidden: int = 128, classes: int = len(View)):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, hidden)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, patches: Tensor) -> Tensor:
        """Return the logits of view classes, from patch embeddings with their positions: (B, N, D) -> (B, V)."""
        return self.classifier(F.gelu(self.hidden(self.norm(patches.detach()))).amax(dim=1))


class ViewClasses:
    """The classes that views are predicted in: here the two views.

    Attributes:
        inputs: fields of a `Batch` that a class depends on, among `LABELS`.
    """

    inputs: frozenset[str] = frozenset({"views"})

    def __len__(self) -> int:
        return len(View)

    def encode(self, views: Tensor, platforms: Tensor | None = None) -> Tensor:  # noqa: ARG002 - others read platforms
        """Return each image's class, `UNKNOWN` without one: (B,), (B,) -> (B,)."""
        return views

    def decode(self, classes: Tensor, batch: Batch) -> Batch:
        """Return a batch in which views and platforms of these classes stand for unknown ones: (B,)."""
        return batch.with_(views=known_or(batch.views, classes))

    def mask(self, logits: Tensor, views: Tensor | None) -> Tensor:  # noqa: ARG002 - here a class is a view
        """Return the logits without the classes that a known view excludes: (B, V), (B,) -> (B, V)."""
        return logits


class ViewAwareMethod(ReIDMethod):
    """A method that goes by the view of every image: given in training, given or predicted at test time.

    Its outputs have the logits of the predictor as `predicted`.

    Attributes:
        title: the method's name in messages.
        view_predictor: None in a model that needs no views.
        view_classes: classes of the predictor.
    """

    title: str
    view_predictor: ViewPredictor | None
    view_classes: ViewClasses

    def set_view_source(self, source: str) -> None:
        """Declare which labels training and test images need, after the predictor is set."""
        require_known("view", source, VIEW_SOURCES)
        if self.view_predictor is None:
            return
        self.view_source = source
        self.training_inputs |= self.view_classes.inputs
        if source == "given":
            self.inference_inputs |= self.view_classes.inputs

    @abstractmethod
    def embed_patches(self, images: Tensor) -> Tensor:
        """Return the patch embeddings with their positions: (B, 3, rows, cols) -> (B, N, D)."""

    def predict_views(self, batch: Batch) -> Tensor | None:
        """Return the logits of view classes where the predictor learns or is asked, else None: (B, V)."""
        if self.training or self.view_source == "predicted":
            return self._classify(batch)
        return None

    def select_views(self, batch: Batch, predicted: Tensor | None) -> Tensor | None:
        """Return the view classes to go by: the true ones in training, at test time those of `view_source`: (B,)."""
        if self.view_predictor is None:
            return None
        return self._require_views(batch) if self.training or predicted is None else predicted.argmax(dim=1)

    @property
    def predicts_views(self) -> bool:
        """Whether there is a view predictor."""
        return self.view_predictor is not None

    def predicted_views(self, outputs: Any) -> Tensor | None:
        """Return the views predicted for test images, (B,); None where they were given."""
        if outputs.predicted is None:
            return None
        return self.view_classes.decode(outputs.predicted.argmax(dim=1), Batch()).views

    def fill_views(self, batch: Batch) -> Batch:
        """Return a batch in which predicted views, and platforms, stand for unknown ones."""
        logits = self._classify(batch)
        if logits is None:
            return batch
        return self.view_classes.decode(self.view_classes.mask(logits, batch.views).argmax(dim=1), batch)

    def _classify(self, batch: Batch) -> Tensor | None:
        if self.view_predictor is None:
            return None
        return self.view_predictor(self.embed_patches(require_given("images", batch.images)))

    def _require_views(self, batch: Batch) -> Tensor:
        """Return the class of each image's given view: (B,), or refuse a batch that lacks one."""
        hint = "training has no way around it" if self.training else "view='predicted' needs none"
        needed = [name for name in LABELS if name in self.view_classes.inputs]
        for name in needed:
            if getattr(batch, name) is None:
                raise InputError(f"{name}=None, but {self.title} needs the {name[:-1]} of every image; {hint}")
        classes = self.view_classes.encode(require_given("views", batch.views), batch.platforms)
        checked = classes.device.type == "cpu" and not torch.compiler.is_compiling()  # on a GPU it would wait
        if checked and (classes == UNKNOWN).any():
            name = next(name for name in needed if (getattr(batch, name) == UNKNOWN).any())
            needs = f"{self.title} needs the {name[:-1]} of every image"
            raise InputError(f"{name} has {UNKNOWN} (unknown), but {needs}; {hint}")
        return classes
