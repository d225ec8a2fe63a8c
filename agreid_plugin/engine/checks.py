"""Checks of a run before it starts, for either host: output folder, files, processes, labels of images."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch

from agreid_plugin.engine.distributed.environment import LaunchOptions
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.types import UNKNOWN, platform_label, view_label

MARKER = "last_checkpoint"
"""A file that both hosts leave in a run's folder with the first checkpoint."""
BEGUN = ("run_card.json", "*.pth", "metrics.json", "*/vis_data/scalars.json")
"""Files of which a run has one when it has begun to train."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says of a disk, a quota or a file that takes no more."""


def claim_output(folder: Path, resume: bool) -> None:
    """Make sure a run can write its folder and overwrites no other run."""
    if (folder / MARKER).exists() and not resume:
        raise InputError(f"{folder} holds a run already: continue it with --resume, or choose another folder")
    check_writable(folder)


@contextmanager
def remove_unless_begun(folder: Path) -> Iterator[None]:
    """Remove a run's folder that was not there before, if bad input is found before training begins."""
    is_new = not folder.exists()
    try:
        yield
    except InputError:
        if is_new and not any(path for pattern in BEGUN for path in folder.glob(pattern)):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def check_writable(folder: Path) -> None:
    """Make a folder, and refuse one that cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # of a name that no other machine takes, as by a process number
            pass
    except OSError as error:
        raise InputError(f"output folder {folder} cannot be written: {error.strerror or error}") from None


@contextmanager
def report_full_disk(folder: Path) -> Iterator[None]:
    """Say in one line that the disk does not take what a run cannot do without, such as its configuration."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        path = error.filename or f"output folder {folder}"
        raise InputError(f"{path} cannot be written: {error.strerror}; make room, or choose another --output") from None


def check_features_file(path: Path) -> None:
    """Refuse a file for features that exists, or whose folder does not."""
    if path.exists():
        raise InputError(f"--save-features {path} exists already; choose another name")
    if not path.absolute().parent.is_dir():
        raise InputError(f"--save-features {path}: its folder does not exist")


def process_count(options: LaunchOptions) -> int:
    """Return the number of processes on this machine, at most one a GPU where there are any."""
    gpus = torch.cuda.device_count()
    if options.num_gpus is not None and options.num_gpus > gpus:
        raise InputError(
            f"--num-gpus {options.num_gpus}, but this machine has {gpus}; use --num-processes N for CPU processes"
        )
    processes = options.num_processes or options.num_gpus or 1
    if gpus and processes > gpus:
        raise InputError(f"--num-processes {processes}, but this machine has {gpus} GPUs, one for each process")
    return processes


class LabeledImage(NamedTuple):
    """An image by its path with its labels as in a batch, `UNKNOWN` where they are not known."""

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
    asked = _list_inputs(method, "training_inputs")
    images = list(images) if asked else []
    for field in asked:
        unknown_ones = _find_unlabeled(images, field)
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
    asked = _list_inputs(method, "inference_inputs")
    records = test_set.records if asked else []
    images = [LabeledImage(each.path, view_label(each.view), platform_label(each.platform)) for each in records]
    for field in asked:
        unknown_ones = _find_unlabeled(images, field)
        if unknown_ones:
            raise InputError(
                f"{type(method).__name__} needs the {field[:-1]} of every test image, but {len(unknown_ones)} of "
                f"{test_set.dataset.name} have none, for example {unknown_ones[0]}; set {key} predicted"
            )


def _list_inputs(method: Any, inputs: str) -> list[str]:
    return [field for field in LABELS if field in getattr(method, inputs, ())]


def _find_unlabeled(images: Sequence[LabeledImage], field: str) -> list[str]:
    return [image.path for image in images if LABELS[field](image) == UNKNOWN]
