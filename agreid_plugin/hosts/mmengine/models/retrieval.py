"""Retrieval by mmpretrain's inferencers and tools: features of images alone, and prototypes to compare them with."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mmengine import dist
from mmengine.logging import print_log
from mmengine.model import BaseModel
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.utils.data import DataLoader

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.data.batches import to_batch
from agreid_plugin.types import ReIDMethod


class PrototypeModel(BaseModel):
    """A model with what `FeatureExtractor`, `ImageRetrievalInferencer` and `get_flops.py` of mmpretrain ask for.

    Attributes:
        prototype: images to find, for `prepare_prototype`: a loader or its configuration, features, or their file.
        prototype_vecs: (N, D) their features; None before they are prepared.
    """

    method: ReIDMethod

    def __init__(self, preprocessor: Any, init_cfg: Mapping[str, Any] | None):
        super().__init__(preprocessor, init_cfg)
        self.prototype: DataLoader | Mapping[str, Any] | Tensor | str | None = None
        self.register_buffer("prototype_vecs", None, persistent=False)
        self._has_guessed = False

    def extract_feat(self, inputs: Tensor, data_samples: Sequence[BaseDataElement] = ()) -> Tensor:
        """Return features; a view that no sample knows is predicted: (B, 3, rows, cols) -> (B, D)."""
        batch = to_batch(inputs, data_samples)
        if batch.views is None and "views" in self.method.inference_inputs and not self._has_guessed:
            print_log("views are not known here: the model predicts them", logger="current", level=logging.WARNING)
            self._has_guessed = True
        batch = self.method.fill_views(batch)
        return self.method.embed(self.method(batch.only(self.method.inference_inputs)))

    @torch.no_grad()
    def prepare_prototype(self) -> None:
        """Compute or read the features of `prototype`, by which predictions are made from then on."""
        found = self.prototype
        if isinstance(found, Mapping):
            found = Runner.build_dataloader(dict(found))
        if isinstance(found, DataLoader):
            found = self._embed_loader(found)
        elif isinstance(found, str):
            found = torch.load(Path(found), map_location="cpu", weights_only=True)
        if not isinstance(found, Tensor):
            raise InputError(f"prototype={self.prototype!r} should be a data loader, features, or a file of them")
        self.prototype_vecs = found.to(next(self.parameters()).device)

    def dump_prototype(self, path: str) -> None:
        """Write the features of the prototypes into a file."""
        if self.prototype_vecs is None:
            self.prepare_prototype()
        torch.save(self.prototype_vecs, path)

    def _embed_loader(self, loader: DataLoader) -> Tensor:
        """Return the features of a loader's images in their order: (N, D)."""
        found = None
        self.eval()
        for data in loader:
            data = self.data_preprocessor(data, False)
            features = self.extract_feat(data["inputs"], data["data_samples"])
            found = features.new_zeros(len(loader.dataset), features.shape[1]) if found is None else found
            found[[sample.sample_idx for sample in data["data_samples"]]] = features
        dist.all_reduce(found)  # each process has its share of the images
        return found

    def _match_prototypes(
        self, inputs: Tensor, data_samples: Sequence[BaseDataElement] | None
    ) -> list[BaseDataElement]:
        """Return the samples with the similarity to each prototype, and their places from the most alike."""
        features = self.extract_feat(inputs, data_samples or ())
        scores = F.normalize(features) @ F.normalize(self.prototype_vecs).T
        samples = [BaseDataElement() for _ in features] if data_samples is None else list(data_samples)
        for sample, score, feature in zip(samples, scores, features, strict=True):
            order = score.argsort(descending=True)
            sample.set_data({"pred_score": score, "pred_label": order, "feature": feature})
        return samples
