"""Bad images in fast-reid's runs: refused, or passed over and told of; workers that die."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import yaml
from conftest import SMALL_CONFIG, assert_one_line
from fastreid.utils import comm
from PIL import Image
from processes import in_a_process, in_processes

from agreid_plugin.evaluation import load_features, load_results
from agreid_plugin.hosts.fastreid import transforms
from agreid_plugin.hosts.fastreid.config import load_config
from agreid_plugin.hosts.fastreid.distributed import local_group
from agreid_plugin.hosts.fastreid.trainer import Trainer

SKIP = ["DATASETS.BAD_IMAGES", "skip", "SOLVER.MAX_EPOCH", 1]


@pytest.fixture
def folder(tmp_path, market) -> Path:
    """A copy of the tiny Market-1501, to be damaged."""
    shutil.copytree(market, tmp_path / "data")
    (folder,) = (tmp_path / "data").iterdir()
    return folder


@pytest.fixture
def config(tmp_path, folder) -> Path:
    path = tmp_path / "small.yml"
    path.write_text(yaml.safe_dump({**SMALL_CONFIG, "DATASETS": {"ROOT": str(folder.parent)}}))
    return path


def damaged(folder: Path, part: str, place: int) -> str:
    """Damage an image of a part of the dataset; return its path."""
    path = sorted((folder / part).iterdir())[place]
    path.write_bytes(path.read_bytes()[:200])
    return str(path)


def test_a_bad_image_ends_the_run_and_is_named(fastreid_command, config, folder, tmp_path):
    path = damaged(folder, "bounding_box_test", 3)
    assert_one_line(fastreid_command("train", "--config", config, "--output", tmp_path / "run"), path)
    path = damaged(folder, "bounding_box_train", 5)
    workers = ["DATALOADER.NUM_WORKERS", 1]
    assert_one_line(fastreid_command("train", "--config", config, "--output", tmp_path / "run", *workers), path)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_passed_over_and_told_of(fastreid_command, config, folder, tmp_path, workers):
    trained = [damaged(folder, "bounding_box_train", place) for place in (5, 11)]
    tested = [damaged(folder, "query", 0), damaged(folder, "bounding_box_test", 3)]
    run, options = tmp_path / "run", [*SKIP, "DATALOADER.NUM_WORKERS", workers]
    outcome = fastreid_command("train", "--config", config, "--output", run, *options)
    assert outcome.code == 0, outcome.err
    assert f"unreadable training images, passed over: 2, first {trained[0]}" in outcome.out
    assert "Market1501: test images that cannot be read and are not in these numbers: 2" in outcome.out
    assert (run / "bad_images.txt").read_text().splitlines() == sorted(trained + tested)
    entry = load_results(run)["Market1501"]["ALL"]
    assert (entry.unreadable, entry.queries, entry.gallery) == (2, 15, 31)


def test_the_numbers_are_those_without_the_images(fastreid_command, config, folder, tmp_path):
    evaluate = ["eval", "--config", config, "--weights", tmp_path / "run" / "model_final.pth", *SKIP]
    fastreid_command("train", "--config", config, "--output", tmp_path / "run", "SOLVER.MAX_EPOCH", 1)
    paths = [damaged(folder, "query", 0), damaged(folder, "bounding_box_test", 3)]
    kept = tmp_path / "features.npz"
    fastreid_command(*evaluate[:5], "--output", tmp_path / "passed", "--save-features", kept, *SKIP)
    again = ["eval", "--config", config, "--features", kept, "--output", tmp_path / "again"]
    outcome = fastreid_command(*again)
    assert "cannot be read and are not in these numbers: 2" in outcome.out
    assert not {record.path for record in load_features(kept).records}.intersection(paths)
    for path in paths:
        os.unlink(path)
    fastreid_command(*evaluate[:5], "--output", tmp_path / "without")
    numbers = {
        name: json.loads((tmp_path / name / "results.json").read_text()) for name in ("passed", "again", "without")
    }
    unread = numbers["passed"]["Market1501"]["ALL"].pop("unreadable")
    assert unread == numbers["again"]["Market1501"]["ALL"].pop("unreadable") == 2
    assert numbers["passed"] == numbers["again"] == numbers["without"]


def test_all_processes_put_theirs_on_the_list(config, folder, tmp_path):
    paths = [damaged(folder, "bounding_box_train", place) for place in (0, 11, 23, 35)]
    cfg = load_config(config, [str(option) for option in (*SKIP, "OUTPUT_DIR", tmp_path, "MODEL.DEVICE", "cpu")])
    assert in_processes(2, lambda: _train(cfg)) == ["trained", "trained"]
    listed = (tmp_path / "bad_images.txt").read_text().splitlines()
    assert listed
    assert set(listed) <= set(paths)


def _train(cfg) -> str:
    with local_group(comm.get_world_size()):
        Trainer(cfg).train()
    return "trained"


def test_a_worker_that_dies_names_its_file(fastreid_command, config, folder, tmp_path, monkeypatch):
    path = sorted((folder / "bounding_box_train").iterdir())[7]
    Image.new("RGB", (5, 5)).save(path)  # by its size it will be known

    class Deadly:
        def __call__(self, image: Image.Image) -> Image.Image:
            if image.size == (5, 5):
                os.kill(os.getpid(), signal.SIGKILL)
            return image

    monkeypatch.setitem(transforms.TRANSFORMS, "Deadly", lambda _: [Deadly()])
    options = ["INPUT.PIPELINE", "['Deadly', 'host']", "DATALOADER.NUM_WORKERS", 2]
    command = ["train", "--config", config, "--output", tmp_path / "run", *options]
    outcome = in_a_process(fastreid_command, command)
    assert_one_line(outcome, "a data worker (pid ", "killed by signal: Killed", f"worked on is {path}")


def test_a_policy_that_nobody_knows(fastreid_command, config):
    outcome = fastreid_command("train", "--config", config, "DATASETS.BAD_IMAGES", "ignore")
    assert_one_line(outcome, "DATASETS.BAD_IMAGES 'ignore' unknown", "known: error, skip")
