"""Features of other toolboxes' models for our metrics, and test-time augmentation by mirrored images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.model import BaseTTAModel
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.engine.metrics import MultiProtocolMetric
from agreid_plugin.hosts.mmengine.engine.runner import get_method, plain_model
from agreid_plugin.hosts.mmengine.models.base import ReIDModel
from agreid_plugin.hosts.mmengine.registry import MODELS
from agreid_plugin.methods.vif import take_vector


def prepare_evaluation(runner: Runner, metrics: Sequence[MultiProtocolMetric]) -> None:
    """Have our metrics know the model's view source, and a model of another toolbox leave features in its samples."""
    for metric in metrics:
        metric.views = getattr(get_method(runner), "view_source", "")
    if metrics and isinstance(runner.model, BaseTTAModel) and not isinstance(runner.model, FlipTTA):
        kind = type(runner.model).__name__
        raise InputError(f"tta_model: {kind} merges no features: set tta_model = dict(type='agreid_plugin.FlipTTA')")
    model = plain_model(runner)
    is_ready = isinstance(model, ReIDModel) or any(isinstance(each, _Capture) for each in model._forward_hooks.values())
    if metrics and not is_ready and hasattr(model, "extract_feat"):
        capture = _Capture()
        model.register_forward_pre_hook(capture.begin, with_kwargs=True)
        model.register_forward_hook(capture, with_kwargs=True)


class _Capture:
    """Pair of forward hooks by which the samples that a model predicts hold what its head makes logits of.

    That is `pre_logits` of the head, or where the head has none what `extract_feat` gives. The model computes it for
    its own prediction; a second pass is needed only where it does not ask its `extract_feat`.
    """

    def __init__(self) -> None:
        self._found: list[Any] = []

    def begin(self, model: nn.Module, _: tuple, inputs: Mapping[str, Any]) -> None:
        """Note what `extract_feat` returns to a prediction."""
        self._found.clear()
        if inputs.get("mode") == "predict":
            native = type(model).extract_feat

            def extract_feat(*args: Any, **kwargs: Any) -> Any:
                self._found.append(native(model, *args, **kwargs))
                return self._found[-1]

            model.extract_feat = extract_feat

    def __call__(self, model: nn.Module, args: tuple, inputs: Mapping[str, Any], samples: Any) -> None:
        """Put the features into the samples, unless the model has."""
        model.__dict__.pop("extract_feat", None)
        if inputs.get("mode") != "predict" or all("feature" in sample for sample in samples):
            return
        found = self._found.pop() if self._found else model.extract_feat(args[0] if args else inputs["inputs"])
        features = _take_feature(getattr(model, "head", None), found)
        for sample, feature in zip(samples, features.float(), strict=True):
            sample.set_data({"feature": feature})


def _take_feature(head: nn.Module | None, found: Any) -> Tensor:
    """Return one vector an image; several that a head classifies by are joined: -> (B, D)."""
    if not hasattr(head, "pre_logits") or isinstance(found, Tensor):  # heads take a tuple, of several stages
        return take_vector(found)
    vectors = head.pre_logits(found)
    return torch.cat(vectors, dim=1) if isinstance(vectors, list | tuple) else take_vector(vectors)


@MODELS.register_module()
class FlipTTA(BaseTTAModel):
    """Test-time augmentation: the mean of the features of an image and of its mirror image.

    It is a `tta_model` for `tools/test.py --tta`, with the pipeline of the test as `tta_pipeline`.

    Args:
        module: the model.
        data_preprocessor: see mmengine's.
    """

    def test_step(self, data: Mapping[str, Any]) -> list[BaseDataElement]:
        """Return the samples of a batch with their features."""
        images, samples = data["inputs"], data["data_samples"]
        mirrored = [None if image is None else image.flip(-1) for image in images]
        mirrored = torch.stack(mirrored) if isinstance(images, Tensor) else mirrored
        twice = {"inputs": [images, mirrored], "data_samples": [samples, [sample.new() for sample in samples]]}
        return super().test_step(twice)

    def merge_preds(self, data_samples_list: Sequence[Sequence[BaseDataElement]]) -> list[BaseDataElement]:
        """Return one sample of each image, with the mean of its features."""
        merged = [each[0].new() for each in data_samples_list]
        for sample, each in zip(merged, data_samples_list, strict=True):
            sample.set_data({"feature": torch.stack([one.feature for one in each]).mean(dim=0)})
        return merged
