"""What a model takes for granted of its datasets, checked before a run and said in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import DataLoader, Dataset

from agreid_plugin.data.samplers import EpochSampler
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.test_sets import TestSet
from agreid_plugin.hosts.mmengine.registry import HOOKS
from agreid_plugin.hosts.mmengine.runner_parts import loops, metainfo, method_of, metrics_of
from agreid_plugin.types import UNKNOWN, Record, platform_label

LABELS = {"views": "view", "platforms": "platform"}
"""What a method calls labels that some images lack -> what an image's own is called."""
OF_RECORD: dict[str, Callable[[Record], bool]] = {
    "views": lambda record: record.view is not None,
    "platforms": lambda record: platform_label(record.platform) != UNKNOWN,
}


@HOOKS.register_module()
class IdentityCheck(Hook):
    """Checks that the model has as many identities as the training set, and that views it goes by are known.

    Batches, too, have to be as large as the sampler of identities has planned them.
    """

    priority = "VERY_HIGH"

    def before_train(self, runner: Runner) -> None:
        """Check the training set, and the set to validate with before days of training."""
        check_batches_agree(runner.train_dataloader)
        check_identities(runner.cfg.get("model"), metainfo(runner.train_dataloader))
        check_training_labels(method_of(runner), runner.train_dataloader.dataset)
        self._check_test(runner, "val")

    def before_val(self, runner: Runner) -> None:
        """Check the set to validate with."""
        self._check_test(runner, "val")

    def before_test(self, runner: Runner) -> None:
        """Check the test set."""
        self._check_test(runner, "test")

    @staticmethod
    def _check_test(runner: Runner, name: str) -> None:
        for metric in metrics_of(loops(runner).get(name)):
            check_test_labels(method_of(runner), metric.test_set)


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
    """Check `num_ids` of a model's configuration against the training set's.

    Args:
        model: the configuration; a model that was built elsewhere, or has no `num_ids`, is taken on trust.
        about: the dataset's metainfo.
    """
    said = model.get("num_ids") if isinstance(model, dict) else None
    there = about.get("num_ids")
    if said is not None and there is not None and said != there:
        raise InputError(
            f"model.num_ids is {said}, but {about.get('name', 'the dataset')} has {there} identities to train on: set "
            f"num_ids={there}"
        )


def check_training_labels(method: Any, dataset: Dataset) -> None:
    """Check that a method which learns from views, or from platforms, knows that of every training image."""
    for field, name in _asked(method, "training_inputs"):
        infos = (dataset.get_data_info(index) for index in range(len(dataset)))
        unknown_ones = [info["img_path"] for info in infos if info.get(name, UNKNOWN) == UNKNOWN]
        if unknown_ones:
            raise InputError(
                f"{type(method).__name__} learns from the {field[:-1]} of every image, but {len(unknown_ones)} of "
                f"{len(dataset)} training images have none, for example {unknown_ones[0]}; train on an aerial-ground "
                "set"
            )


def check_test_labels(method: Any, test_set: TestSet) -> None:
    """Check that a method which is given the views of test images, or their platforms, can have them."""
    for field, _ in _asked(method, "inference_inputs"):
        unknown_ones = [record.path for record in test_set.records if not OF_RECORD[field](record)]
        if unknown_ones:
            raise InputError(
                f"{type(method).__name__} needs the {field[:-1]} of every test image, but {len(unknown_ones)} of "
                f"{test_set.dataset.name} have none, for example {unknown_ones[0]}; set model.view to 'predicted'"
            )


def _asked(method: Any, inputs: str) -> Iterable[tuple[str, str]]:
    return [(field, name) for field, name in LABELS.items() if field in getattr(method, inputs, ())]
