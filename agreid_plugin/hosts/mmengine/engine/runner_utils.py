"""What hooks ask a runner for."""

from __future__ import annotations

from typing import Any

from mmengine.model import is_model_wrapper
from mmengine.runner import BaseLoop, Runner
from torch import nn
from torch.utils.data import DataLoader

from agreid_plugin.hosts.mmengine.engine.metrics import MultiProtocolMetric


def plain_model(runner: Runner) -> nn.Module:
    """Return the model, taken out of a wrapper for many processes."""
    return runner.model.module if is_model_wrapper(runner.model) else runner.model


def method_of(runner: Runner) -> nn.Module:
    """Return the method inside a model of ours, any other model itself."""
    model = plain_model(runner)
    return getattr(model, "method", model)


def loops(runner: Runner) -> dict[str, BaseLoop]:
    """Return the loops that have been built, by `train`, `val` and `test`.

    Asking the runner for one would build it, with its dataset.
    """
    found = {"train": runner._train_loop, "val": runner._val_loop, "test": runner._test_loop}
    return {name: loop for name, loop in found.items() if isinstance(loop, BaseLoop)}


def epoch_of(runner: Runner) -> int:
    """Return how many epochs are done, 0 where nothing is trained."""
    train = loops(runner).get("train")
    return 0 if train is None else train.epoch


def metrics_of(loop: BaseLoop | None) -> list[MultiProtocolMetric]:
    """Return the metrics of ours that a loop of validation or test computes."""
    metrics = loop.evaluator.metrics if loop is not None else []
    return [each for each in metrics if isinstance(each, MultiProtocolMetric)]


def metainfo(loader: DataLoader) -> dict[str, Any]:
    """Return what the dataset of a loader tells of itself; nothing of one that does not."""
    return getattr(loader.dataset, "metainfo", {})
