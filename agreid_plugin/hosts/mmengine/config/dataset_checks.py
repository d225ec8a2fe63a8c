"""Checks of datasets against the model before a run: identities, views, batches."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import DataLoader, Dataset

from agreid_plugin.data.samplers import EpochSampler
from agreid_plugin.engine.checks import LabeledImage, check_test_labels, check_training_labels
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.engine.runner import get_method, get_metrics, has_data, loops, metainfo
from agreid_plugin.hosts.mmengine.registry import HOOKS
from agreid_plugin.types import UNKNOWN

LABEL_KEYS = {"img_path": "", "view": UNKNOWN, "platform": UNKNOWN}
"""Entries of an item in the order of `LabeledImage`, and what stands for one that is not there."""


@HOOKS.register_module()
class IdentityCheck(Hook):
    """Checks that the model has as many identities as the training set, and that views it goes by are known.

    Batches, too, have to be as large as the sampler of identities has planned them.
    """

    priority = "VERY_HIGH"

    def before_train(self, runner: Runner) -> None:
        """Check the training set, and the set to validate with before days of training."""
        if not has_data(runner):
            return
        check_batches_agree(runner.train_dataloader)
        check_identities(runner.cfg.get("model"), metainfo(runner.train_dataloader))
        check_training_labels(get_method(runner), list_labeled_images(runner.train_dataloader.dataset))
        self._check_test(runner, "val")

    def before_val(self, runner: Runner) -> None:
        """Check the set to validate with."""
        self._check_test(runner, "val")

    def before_test(self, runner: Runner) -> None:
        """Check the test set."""
        self._check_test(runner, "test")

    @staticmethod
    def _check_test(runner: Runner, name: str) -> None:
        for metric in get_metrics(loops(runner).get(name)):
            check_test_labels(get_method(runner), metric.test_set, "model.view")


def check_batches_agree(loader: DataLoader) -> None:
    """Check that a sampler of identities plans batches of the size that its loader cuts.

    Others would be trained on without a word: people with fewer images than planned, torn between two batches.
    """
    planned = getattr(loader.sampler, "batch_size", None)
    if isinstance(loader.sampler, EpochSampler) and loader.batch_size not in (None, planned):
        raise InputError(
            f"train_dataloader.batch_size is {loader.batch_size}, but its sampler plans batches of {planned}: give "
            "train_dataloader.sampler.batch_size the same"
        )


def check_identities(model: Any, about: dict[str, Any]) -> None:
    """Check `num_ids` of a model's configuration, or `num_classes` of its head, against the training set's.

    Args:
        model: the configuration; a model that was built elsewhere, or has neither, is taken on trust.
        about: the dataset's metainfo.
    """
    if not isinstance(model, dict):
        return
    head, there = model.get("head"), about.get("num_ids")
    classes = head.get("num_classes") if isinstance(head, dict) else None
    for key, expected in (("num_ids", model.get("num_ids")), ("head.num_classes", classes)):
        if expected is not None and there is not None and expected != there:
            raise InputError(
                f"model.{key} is {expected}, but {about.get('name', 'the dataset')} has {there} identities to train "
                f"on: set {key.rpartition('.')[2]}={there}"
            )


def list_labeled_images(dataset: Dataset) -> list[LabeledImage]:
    """Return path, view and platform of each item."""
    infos = [dataset.get_data_info(index) for index in range(len(dataset))]
    return [LabeledImage(*(info.get(key, unknown) for key, unknown in LABEL_KEYS.items())) for info in infos]
