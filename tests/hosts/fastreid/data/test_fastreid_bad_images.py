"""Bad images in fast-reid's runs: refused, or passed over and told of; workers that die."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from conftest import assert_one_line
from PIL import Image
from processes import in_a_process, in_processes
from small_fastreid import train_in_group

from agreid_plugin.evaluation import load_features, load_results
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data import transforms

SKIP = ["DATASETS.BAD_IMAGES", "skip", "SOLVER.MAX_EPOCH", 1]


@pytest.fixture
def market(tmp_path, market) -> Path:
    """A copy of the dataset, to be damaged, on which `config_file` trains."""
    return shutil.copytree(market, tmp_path / "data")


def damaged(market: Path, part: str, place: int) -> str:
    """Damage an image of a part of the dataset; return its path."""
    path = images(market, part)[place]
    path.write_bytes(path.read_bytes()[:200])
    return str(path)


def images(market: Path, part: str) -> list[Path]:
    return sorted(market.glob(f"*/{part}/*.jpg"))


def test_a_bad_image_ends_the_run_and_is_named(fastreid_command, config_file, market, tmp_path):
    path = damaged(market, "bounding_box_test", 3)
    assert_one_line(fastreid_command("train", "--config", config_file, "--output", tmp_path / "run"), path)
    path = damaged(market, "bounding_box_train", 5)
    workers = ["DATALOADER.NUM_WORKERS", 1]
    assert_one_line(fastreid_command("train", "--config", config_file, "--output", tmp_path / "run", *workers), path)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_passed_over_and_told_of(fastreid_command, config_file, market, tmp_path, workers):
    trained = [damaged(market, "bounding_box_train", place) for place in (5, 11)]
    tested = [damaged(market, "query", 0), damaged(market, "bounding_box_test", 3)]
    run, options = tmp_path / "run", [*SKIP, "DATALOADER.NUM_WORKERS", workers]
    outcome = fastreid_command("train", "--config", config_file, "--output", run, *options)
    assert outcome.code == 0, outcome.err
    assert f"unreadable training images, passed over: 2, first {trained[0]}" in outcome.out
    assert "Market1501: test images that cannot be read and are not in these numbers: 2" in outcome.out
    assert (run / "bad_images.txt").read_text().splitlines() == sorted(trained + tested)
    entry = load_results(run)["Market1501"]["ALL"]
    assert (entry.unreadable, entry.queries, entry.gallery) == (2, 15, 31)


def test_the_numbers_are_those_without_the_images(fastreid_command, config_file, market, tmp_path):
    run = tmp_path / "run"
    assert fastreid_command("train", "--config", config_file, "--output", run, "SOLVER.MAX_EPOCH", 1).code == 0
    paths = [damaged(market, "query", 0), damaged(market, "bounding_box_test", 3)]
    kept, evaluate = tmp_path / "features.npz", ["eval", "--config", config_file]
    asked = [*evaluate, "--weights", run / "model_final.pth", "--output"]
    assert fastreid_command(*asked, tmp_path / "passed", "--save-features", kept, *SKIP).code == 0
    outcome = fastreid_command(*evaluate, "--features", kept, "--output", tmp_path / "again")
    assert "cannot be read and are not in these numbers: 2" in outcome.out
    assert not {record.path for record in load_features(kept).records}.intersection(paths)
    for path in paths:
        os.unlink(path)
    assert fastreid_command(*asked, tmp_path / "without").code == 0
    numbers = {
        name: json.loads((tmp_path / name / "results.json").read_text()) for name in ("passed", "again", "without")
    }
    unread = numbers["passed"]["Market1501"]["ALL"].pop("unreadable")
    assert unread == numbers["again"]["Market1501"]["ALL"].pop("unreadable") == 2
    assert numbers["passed"] == numbers["again"] == numbers["without"]


def test_all_processes_put_theirs_on_the_list(config_file, market, tmp_path):
    """Of an epoch in which each image is drawn once, by one of them."""
    paths = [damaged(market, "bounding_box_train", place) for place in (0, 11, 23, 35)]
    once = ("DATALOADER.SAMPLER_TRAIN", "TrainingSampler", "OUTPUT_DIR", tmp_path, "MODEL.DEVICE", "cpu")
    cfg = load_config(config_file, [str(option) for option in (*SKIP, *once)])
    assert in_processes(2, lambda: train_in_group(cfg)) == ["trained", "trained"]
    assert (tmp_path / "bad_images.txt").read_text().splitlines() == sorted(paths)


def test_a_worker_that_dies_names_its_file(fastreid_command, config_file, market, tmp_path, monkeypatch):
    path = images(market, "bounding_box_train")[7]
    Image.new("RGB", (5, 5)).save(path)  # by its size it will be known

    class Deadly:
        def __call__(self, image: Image.Image) -> Image.Image:
            if image.size == (5, 5):
                os.kill(os.getpid(), signal.SIGKILL)
            return image

    monkeypatch.setitem(transforms.TRANSFORMS, "Deadly", lambda _: [Deadly()])
    options = ["INPUT.PIPELINE", "['Deadly', 'host']", "DATALOADER.NUM_WORKERS", 2]
    command = ["train", "--config", config_file, "--output", tmp_path / "run", *options]
    outcome = in_a_process(fastreid_command, command)
    assert_one_line(outcome, "a data worker (pid ", "(out of memory? use fewer", f"worked on is {path}")


def test_a_policy_that_nobody_knows(fastreid_command, config_file):
    outcome = fastreid_command("train", "--config", config_file, "DATASETS.BAD_IMAGES", "ignore")
    assert_one_line(outcome, "DATASETS.BAD_IMAGES 'ignore' unknown", "known: error, skip")
