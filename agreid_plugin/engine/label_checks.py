"""Labels that a method goes by, looked for before a run and their lack said in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.types import UNKNOWN, platform_label, view_label


class LabeledImage(NamedTuple):
    """An image by its path with its labels as batches have them, `UNKNOWN` where nobody knows."""

    path: str
    view: int
    platform: int


LABELS: dict[str, Callable[[LabeledImage], int]] = {"views": attrgetter("view"), "platforms": attrgetter("platform")}
"""What a method calls labels that some images lack -> an image's own."""


def check_training_labels(method: Any, images: Iterable[LabeledImage]) -> None:
    """Check that a method which learns from views, or from platforms, knows that of every training image.

    Args:
        method: a method, or a model of a host's own, which asks for nothing.
        images: the training images, which are gone through only if something is asked for.
    """
    asked = _asked(method, "training_inputs")
    images = list(images) if asked else []
    for field in asked:
        unknown_ones = _lacking(images, field)
        if unknown_ones:
            raise InputError(
                f"{type(method).__name__} learns from the {field[:-1]} of every image, but {len(unknown_ones)} of "
                f"{len(images)} training images have none, for example {unknown_ones[0]}; train on an aerial-ground "
                "set"
            )


def check_test_labels(method: Any, test_set: EvaluationSet, key: str) -> None:
    """Check that a method which is given the views of test images, or their platforms, can have them.

    Args:
        method: a method, or a model of a host's own, which asks for nothing.
        test_set: what is tested on.
        key: the key of the configuration that says where views come from.
    """
    asked = _asked(method, "inference_inputs")
    records = test_set.records if asked else []
    images = [LabeledImage(each.path, view_label(each.view), platform_label(each.platform)) for each in records]
    for field in asked:
        unknown_ones = _lacking(images, field)
        if unknown_ones:
            raise InputError(
                f"{type(method).__name__} needs the {field[:-1]} of every test image, but {len(unknown_ones)} of "
                f"{test_set.dataset.name} have none, for example {unknown_ones[0]}; set {key} predicted"
            )


def _asked(method: Any, inputs: str) -> list[str]:
    return [field for field in LABELS if field in getattr(method, inputs, ())]


def _lacking(images: Sequence[LabeledImage], field: str) -> list[str]:
    return [image.path for image in images if LABELS[field](image) == UNKNOWN]
