"""Host fixes of mmpretrain for today's Python, numpy and transformers, and for its wrong counts."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from agreid_plugin.hosts.host_fixes import HostFixes
from agreid_plugin.hosts.safe_torch import SafeTorch

HOST_FIXES = HostFixes()

# mmcv-lite says so at every import, and nothing here needs the operator.
warnings.filterwarnings("ignore", "Fail to import ``MultiScaleDeformableAttention``")

# Optional packages -----------------------------------------------------------------------------------------------

DEPENDENCY = "mmpretrain.utils.dependency"
TRANSFORMERS_NAMES = {
    "transformers": ("AutoTokenizer", "BasicTokenizer", "PreTrainedModel", "WordpieceTokenizer"),
    "transformers.modeling_utils": (
        *("GenerationConfig", "GenerationMixin", "PretrainedConfig"),
        *("apply_chunking_to_forward", "find_pruneable_heads_and_indices", "prune_linear_layer"),
    ),
}
"""Names that mmpretrain's multimodal models import, most of which transformers has moved or dropped."""


def _transformers_is_too_new() -> bool:
    if not sys.modules[DEPENDENCY].WITH_MULTIMODAL:
        return False
    try:
        return any(
            not hasattr(importlib.import_module(module), name)
            for module, names in TRANSFORMERS_NAMES.items()
            for name in names
        )
    except ImportError:
        return True


@HOST_FIXES.add(
    DEPENDENCY,
    "transformers has dropped names that mmpretrain's multimodal models import: no model of mmpretrain loads",
    _transformers_is_too_new,
)
def no_multimodal_models() -> None:
    """Leave the multimodal models out, as mmpretrain does without transformers."""
    sys.modules[DEPENDENCY].WITH_MULTIMODAL = False


# Backbones -------------------------------------------------------------------------------------------------------

BACKBONE = "mmpretrain.models.backbones.base_backbone"


def _train_returns_nothing() -> bool:
    class Probe(sys.modules[BACKBONE].BaseBackbone):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images

        def train(self, mode: bool = True) -> None:  # as most of mmpretrain's backbones have it
            super().train(mode)

    return Probe().eval() is None


@HOST_FIXES.add(
    BACKBONE, "train() and eval() of mmpretrain's backbones return nothing, not the backbone", _train_returns_nothing
)
def train_returns_the_backbone() -> None:
    """Return the backbone from `train`, as torch does, in every class that has one."""
    base = sys.modules[BACKBONE].BaseBackbone
    base.train = _returning_self(base.train)

    def __init_subclass__(cls, **options: Any) -> None:
        super(base, cls).__init_subclass__(**options)
        if "train" in cls.__dict__:
            cls.train = _returning_self(cls.train)

    base.__init_subclass__ = classmethod(__init_subclass__)
    for kind in _subclasses(base):
        if "train" in kind.__dict__:
            kind.train = _returning_self(kind.train)


def _subclasses(kind: type) -> list[type]:
    return [found for each in kind.__subclasses__() for found in (each, *_subclasses(each))]


def _returning_self(train: Callable) -> Callable:
    @wraps(train)
    def train_and_return(self, mode: bool = True) -> torch.nn.Module:
        train(self, mode)
        return self

    return train_and_return


# Retrieval -------------------------------------------------------------------------------------------------------

METRICS = "mmpretrain.evaluation.metrics.retrieval"


def _recall_needs_in1d() -> bool:
    try:
        sys.modules[METRICS].RetrievalRecall.calculate([[0]], [[0]], topk=1, pred_indices=True, target_indices=True)
    except AttributeError:
        return True
    return False


@HOST_FIXES.add(METRICS, "np.in1d was removed in numpy 2.4: mmpretrain's retrieval metrics fail", _recall_needs_in1d)
def numpy_in1d() -> None:
    """Restore `np.in1d`."""
    np.in1d = lambda first, second, **options: np.isin(np.ravel(first), np.ravel(second), **options)


def _averages_local_results() -> bool:
    metric = sys.modules[METRICS].RetrievalAveragePrecision(topk=1)
    metric.results = [torch.tensor(0.0)]
    return metric.compute_metrics([torch.tensor(0.0), torch.tensor(1.0)]) != {"mAP@1": 0.5}


@HOST_FIXES.add(
    METRICS, "RetrievalAveragePrecision averages what rank 0 has, not what all have", _averages_local_results
)
def average_over_all() -> None:
    """Average the results that were collected."""
    kind = sys.modules[METRICS].RetrievalAveragePrecision
    native = kind.compute_metrics

    @wraps(native)
    def compute_metrics(self, results: list) -> dict:
        with _swapped(self, results=results):
            return native(self, results)

    kind.compute_metrics = compute_metrics


RETRIEVER = "mmpretrain.models.retrievers.image2image"


class _Gallery(list):
    """A loader of batches, with the dataset that mmpretrain counts."""

    dataset = (0,)


class _Retriever:
    """The part of a retriever that mmpretrain uses to encode a gallery: here every image becomes (1, 1)."""

    eval = train = staticmethod(lambda mode=False: None)  # noqa: ARG005
    data_preprocessor = staticmethod(lambda batch, training: {})  # noqa: ARG005

    def __call__(self) -> torch.Tensor:
        return torch.ones(1, 2)


def _sums_padding() -> bool:
    """Have the one image of a gallery come from two processes, as a sampler that fills up the last batch does."""
    module = sys.modules[RETRIEVER]
    twice = SimpleNamespace(all_reduce=lambda tensor: tensor.mul_(2))  # two processes with equal tensors
    gallery = _Gallery([{"data_samples": [{"sample_idx": 0}]}])
    with _swapped(module, dist=twice, track_on_main_process=lambda loader, text: loader):  # noqa: ARG005
        encode = module.ImageToImageRetriever._get_prototype_vecs_from_dataloader
        return not torch.equal(encode(_Retriever(), gallery), torch.ones(1, 2))


@HOST_FIXES.add(
    RETRIEVER, "ImageToImageRetriever adds up gallery images that two processes have encoded", _sums_padding
)
def gallery_counts_images_once() -> None:
    """Divide each feature by the number of processes that have encoded its image."""
    module = sys.modules[RETRIEVER]

    def encode_gallery(self, data_loader) -> torch.Tensor:
        self.eval()
        features = times = None
        for batch in module.track_on_main_process(data_loader, "Prepare prototype"):
            found = self(**self.data_preprocessor(batch, False))
            found = found[-1] if isinstance(found, tuple) else found  # (B, D)
            if features is None:
                features = torch.zeros(len(data_loader.dataset), found.shape[-1])
                times = torch.zeros(len(data_loader.dataset), 1)
            places = [sample.get("sample_idx") for sample in batch["data_samples"]]
            features[places] = found.to(features)
            times[places] = 1
        module.dist.all_reduce(features)
        module.dist.all_reduce(times)
        return features / times.clamp(min=1)

    module.ImageToImageRetriever._get_prototype_vecs_from_dataloader = encode_gallery


@HOST_FIXES.add(
    RETRIEVER,
    "ImageToImageRetriever runs code in a file of gallery features on torch < 2.6",
    lambda: sys.modules[RETRIEVER].torch is torch,
)
def safe_gallery_features() -> None:
    """Read tensors only."""
    sys.modules[RETRIEVER].torch = SafeTorch()


@contextmanager
def _swapped(owner: Any, **values: Any) -> Iterator[None]:
    """Replace attributes of an object temporarily."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
