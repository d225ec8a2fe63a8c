"""Predicted attributes of test images: a table of them, and their accuracy."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import torch
from fastreid.evaluation import inference_context
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from fastreid.utils import comm
from tabulate import tabulate
from torch import nn

from agreid_plugin.data.atomic_write import atomic_write
from agreid_plugin.data.attributes import is_known
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.hosts.fastreid.data.loaders import build_test_loader
from agreid_plugin.hosts.fastreid.engine.distributed import plain
from agreid_plugin.types import AttributeGuess, Record


@dataclass(frozen=True)
class Prediction:
    """One row of the table: an image, an attribute, its predicted value, and the confidence from 0 to 1."""

    image: str
    attribute: str
    value: str
    confidence: float


COLUMNS = tuple(field.name for field in fields(Prediction))


def predict(cfg, model: nn.Module, test_set: EvaluationSet) -> list[Prediction]:
    """Predict the attributes of every image of a test set.

    Args:
        cfg: the configuration.
        model: has a method `describe`, from the host's dictionary of a batch to a list of `AttributeGuess` an image.
        test_set: the images.

    Returns:
        The guesses in the order of the test set's records on the main process, nothing on the others. With
        `DATASETS.BAD_IMAGES: skip` there are none of an image that cannot be read.
    """
    method = plain(model)
    require_describing(cfg, method)
    loader = build_test_loader(cfg, test_set.records, cfg.DATASETS.BAD_IMAGES)
    loader.progress = loader.progress and "describing"
    found: dict[str, list[AttributeGuess]] = {}
    with inference_context(model), torch.no_grad():
        for inputs in loader:
            found.update(zip(inputs["img_paths"], method.describe(inputs), strict=True))
    found.update((path, []) for path in loader.dataset.bad_images.paths())  # each was replaced by another image
    by_path = {path: guesses for part in comm.gather(found, dst=0) for path, guesses in part.items()}
    records = test_set.records if comm.is_main_process() else ()
    return [Prediction(r.path, g.name, g.value, g.confidence) for r in records for g in by_path[r.path]]


def require_describing(cfg, method: nn.Module | type[nn.Module]) -> None:
    """Refuse a configuration whose model, or the class of it, cannot predict attributes."""
    if not hasattr(method, "describe"):
        able = [name for name, kind in META_ARCH_REGISTRY._obj_map.items() if hasattr(kind, "describe")]
        raise InputError(
            f"MODEL.META_ARCHITECTURE {cfg.MODEL.META_ARCHITECTURE} knows nothing of attributes; "
            f"{', '.join(able)} {'do' if len(able) > 1 else 'does'}"
        )


def check_predictions_file(path: str | Path) -> Path:
    """Return the path of a new table: its folder has to exist, and the file must not."""
    path = Path(path)
    if path.exists():
        raise InputError(f"{path} exists already; choose another name for the attributes")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: the folder for the attributes does not exist")
    return path


def write_predictions(path: str | Path, rows: Iterable[Prediction]) -> None:
    """Write predictions atomically as a CSV file; a file that exists is refused."""
    path = check_predictions_file(path)
    with (
        atomic_write(path) as draft,
        draft.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,  # names may be no UTF-8
    ):
        table = csv.writer(file)
        table.writerow(COLUMNS)
        table.writerows((*astuple(row)[:-1], f"{row.confidence:.4f}") for row in rows)


def compute_accuracy(rows: Iterable[Prediction], records: Iterable[Record]) -> dict[str, tuple[float, int]]:
    """Return attribute -> (percent of images with a right prediction, images with a known value).

    Attributes without a known value are left out.
    """
    known = {record.path: record.attributes for record in records}
    right: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        value = known[row.image].get(row.attribute, "")
        if is_known(value):
            right[row.attribute].append(row.value == value)
    return {name: (100 * sum(hits) / len(hits), len(hits)) for name, hits in right.items()}


def format_accuracy(numbers: Mapping[str, tuple[float, int]]) -> str:
    """Return accuracies as a table, their mean in the last line."""
    rows = [[name, percent, images] for name, (percent, images) in numbers.items()]
    if rows:
        rows.append(["mean", sum(percent for percent, _ in numbers.values()) / len(rows), ""])
    return tabulate(rows, ["attribute", "accuracy", "images"], tablefmt="github", floatfmt=".2f")
