"""Attributes that a model tells of test images: predicted in batches, kept in a file, counted where they are known."""

import csv
import shutil
from pathlib import Path

import pytest
import torch

from agreid_plugin.data.datasets import load
from agreid_plugin.data.protocols import protocol
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data.predictions import (
    Prediction,
    check_predictions_file,
    compute_accuracy,
    format_accuracy,
    predict,
    write_predictions,
)
from agreid_plugin.types import AttributeGuess, Record, View


@pytest.fixture
def cfg(config_file):
    """A configuration that tests with five images at once."""
    return load_config(config_file, ["MODEL.DEVICE", "cpu", "TEST.IMS_PER_BATCH", "5"])


@pytest.fixture
def tested(described, tmp_path) -> EvaluationSet:
    """A copy of images that a test may damage."""
    shutil.copytree(described / "CP2108", tmp_path / "CP2108")
    return EvaluationSet(load("CP2108", tmp_path), {"ALL": protocol("CP2108", "ALL")})


class Describer(torch.nn.Module):
    """Takes every image from the air for that of a walking man, others for that of a standing one."""

    def __init__(self):
        super().__init__()
        self.modes = set()

    def describe(self, inputs):
        self.modes.add((self.training, torch.is_grad_enabled()))
        assert "attributes" not in inputs
        poses = ["Walking" if view == View.AERIAL else "Standing" for view in inputs["views"].tolist()]
        return [[AttributeGuess("Pose", pose, 0.75), AttributeGuess("Gender", "Male", 0.5)] for pose in poses]


def test_predictions_of_every_image_in_order(cfg, tested):
    model = Describer().train()
    rows = predict(cfg, model, tested)
    assert [row.image for row in rows[::2]] == [record.path for record in tested.records]
    by_path = {record.path: record for record in tested.records}
    assert all(row.value == ("Walking" if by_path[row.image].view == View.AERIAL else "Standing") for row in rows[::2])
    assert all((row.attribute, row.value, row.confidence) == ("Gender", "Male", 0.5) for row in rows[1::2])
    assert model.modes == {(False, False)}
    assert model.training


def test_images_that_cannot_be_read_are_not_described(cfg, tested):
    bad = tested.records[3].path
    Path(bad).write_bytes(b"")
    with pytest.raises(InputError, match="cannot be read"):
        predict(cfg, Describer(), tested)
    cfg.DATASETS.BAD_IMAGES = "skip"
    rows = predict(cfg, Describer(), tested)
    assert [row.image for row in rows[::2]] == [record.path for record in tested.records if record.path != bad]


def test_a_model_that_knows_nothing_of_attributes(cfg, tested):
    with pytest.raises(InputError, match=r"META_ARCHITECTURE Baseline knows nothing of attributes; SVPR does"):
        predict(cfg, torch.nn.Identity(), tested)


def test_predictions_as_a_file(tmp_path):
    path = tmp_path / "attributes.csv"
    rows = [Prediction("a,1.jpg", "Upper Color", "White", 0.98765), Prediction("b\udcff.jpg", "Pose", "Walking", 1.0)]
    write_predictions(path, rows)
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["image", "attribute", "value", "confidence"],
            ["a,1.jpg", "Upper Color", "White", "0.9877"],
            [r"b\udcff.jpg", "Pose", "Walking", "1.0000"],
        ]
    with pytest.raises(InputError, match=r"attributes\.csv exists already"):
        write_predictions(path, [])
    with pytest.raises(InputError, match="folder for the attributes does not exist"):
        check_predictions_file(tmp_path / "no" / "such.csv")


def test_a_file_that_cannot_be_finished_is_not_there(tmp_path):
    def broken():
        yield Prediction("a.jpg", "Pose", "Walking", 1.0)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_predictions(tmp_path / "attributes.csv", broken())
    assert list(tmp_path.iterdir()) == []


def test_accuracy_by_hand():
    records = [
        Record("1.jpg", 1, attributes={"hair": "long", "bag": "none"}),
        Record("2.jpg", 1, attributes={"hair": "short"}),
        Record("3.jpg", 2, attributes={"hair": "long", "hat": "unknown"}),
    ]
    rows = [Prediction(f"{n}.jpg", name, "long", 0.9) for n in (1, 2, 3) for name in ("hair", "bag", "hat")]
    numbers = compute_accuracy(rows, records)
    assert numbers == {"hair": (pytest.approx(200 / 3), 3), "bag": (0.0, 1)}
    lines = format_accuracy(numbers).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == ["hair", "66.67", "3"]
    assert [cell.strip() for cell in lines[-1].split("|")[1:-1]] == ["mean", "33.33", ""]
    assert format_accuracy({}).count("\n") == 1
