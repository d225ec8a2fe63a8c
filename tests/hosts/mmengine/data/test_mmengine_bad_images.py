"""Bad images in mmengine's runs: refused, or passed over and told of; workers that die."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from conftest import assert_one_line
from mmengine.registry import TRANSFORMS
from processes import in_a_process
from small_mmengine_config import write_config

from agreid_plugin.evaluation import load_results

SKIP = [
    word
    for loader in ("train_dataloader", "test_dataloader")
    for word in (f"{loader}.dataset.bad_images", "skip", f"{loader}.num_workers", 1)
]


@pytest.fixture
def data(tmp_path, agsynth) -> Path:
    """A copy of AG-Synth, to be damaged."""
    shutil.copytree(agsynth, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def config(tmp_path, data) -> Path:
    return write_config(tmp_path / "tiny.py", data)


def images(data: Path, part: str) -> list[Path]:
    found = sorted((data / "CARGO" / part).rglob("*.jpg"))
    assert found
    return found


def damaged(data: Path, part: str, place: int) -> str:
    path = images(data, part)[place]
    path.write_bytes(path.read_bytes()[:100])
    return str(path)


def test_a_bad_image_ends_the_run_and_is_named(fastreid_command, config, data, tmp_path):
    path = damaged(data, "train", 5)
    outcome = fastreid_command("train", "--config", config, "--output", tmp_path / "run")
    assert_one_line(outcome, f"image {path} cannot be read")


def test_bad_images_are_passed_over_and_told_of(fastreid_command, config, data, tmp_path):
    trained, tested = [damaged(data, "train", place) for place in (5, 7)], damaged(data, "gallery", 0)
    run = tmp_path / "run"
    outcome = fastreid_command("train", "--config", config, "--output", run, *SKIP)
    assert outcome.code == 0, outcome.err
    assert f"unreadable training images, passed over: 2, first {trained[0]}" in outcome.out
    assert (run / "bad_images.txt").read_text().splitlines() == trained

    weights = ["--weights", run / "epoch_1.pth", "--output", tmp_path / "eval"]
    assert_one_line(fastreid_command("eval", "--config", config, *weights), f"image {tested} cannot be read")
    outcome = fastreid_command("eval", "--config", config, *weights, *SKIP)
    assert outcome.code == 0, outcome.err
    assert f"unreadable CARGO test images, passed over: 1, first {tested}" in outcome.out
    assert "CARGO: test images that cannot be read and are not in these numbers: 1" in outcome.out
    passed = load_results(tmp_path / "eval")["CARGO"]
    assert {entry.unreadable for entry in passed.values()} == {1}
    os.unlink(tested)
    fastreid_command("eval", "--config", config, *weights[:2], "--output", tmp_path / "without")
    without = load_results(tmp_path / "without")["CARGO"]
    assert {name: (entry.values, entry.gallery) for name, entry in passed.items()} == {
        name: (entry.values, entry.gallery) for name, entry in without.items()
    }


class Deadly:
    """Kills the process that comes upon a file of this name."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self, results: dict) -> dict:
        if results["img_path"].endswith(self.name):
            os.kill(os.getpid(), signal.SIGKILL)
        return results


def test_a_worker_that_dies_names_its_file(fastreid_command, config, data, tmp_path, monkeypatch):
    monkeypatch.setitem(TRANSFORMS._module_dict, "Deadly", Deadly)
    path = images(data, "train")[9]
    config.write_text(config.read_text().replace("images = [", f"images = [dict(type='Deadly', name={path.name!r}),"))
    options = ["train_dataloader.num_workers", 2]
    command = ["train", "--config", config, "--output", tmp_path / "run", *options]
    outcome = in_a_process(fastreid_command, command)
    assert_one_line(outcome, "a data worker (pid ", "(out of memory? use fewer", f"worked on is {path}")


def test_a_policy_that_nobody_knows(fastreid_command, config, tmp_path):
    options = ["train_dataloader.dataset.bad_images", "ignore"]
    outcome = fastreid_command("train", "--config", config, "--output", tmp_path / "run", *options)
    assert_one_line(outcome, "bad_images 'ignore' unknown", "known: error, skip")
