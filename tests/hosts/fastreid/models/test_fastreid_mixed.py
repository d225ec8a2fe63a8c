"""Recipes that mix owners: each trains an epoch on a tiny AG-Synth with all of its losses and is evaluated."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.models.losses import LOSSES
from agreid_plugin.synth import make_agsynth

EXAMPLE = ROOT / "projects" / "Example"
SIZE = (64, 32)
TINY = (
    "INPUT.SIZE_TRAIN", "[64, 32]", "INPUT.SIZE_TEST", "[64, 32]", "DATASETS.AGSYNTH.IDS", 0, "SOLVER.MAX_EPOCH", 1,
    "SOLVER.IMS_PER_BATCH", 16, "SOLVER.WARMUP_ITERS", 0, "DATALOADER.NUM_WORKERS", 0, "TEST.PROTOCOLS", "['A2G']",
)  # fmt: skip
VIT = ("MODEL.VIT.LAYERS", 2)
TINY_PARTS = {"build_vdt_backbone": VIT, "build_visa_backbone": (*VIT, "MODEL.VISA.NEIGHBORS", 4)}
"""Backbone -> what makes it small; keys that nothing reads are refused."""


@pytest.fixture(scope="module")
def people(tmp_path_factory) -> Path:
    """AG-Synth as CARGO: 4 people to train on, 4 to test with."""
    root = tmp_path_factory.mktemp("people")
    make_agsynth(root, ids=8, images_per_id=12, size=SIZE, workers=1, progress=False)
    return root


def logged(folder: Path) -> set[str]:
    return {name for line in (folder / "metrics.json").read_text().splitlines() for name in json.loads(line)}


@pytest.mark.parametrize("recipe", sorted((ROOT / "projects" / "Mixed").glob("*.yml")), ids=lambda path: path.stem)
def test_a_mixed_recipe_trains_an_epoch(recipe, people, tmp_path, fastreid_command):
    parts = TINY_PARTS.get(load_config(recipe).MODEL.BACKBONE.NAME, ())
    settings = (*TINY, *parts, "DATASETS.ROOT", people)
    outcome = fastreid_command("train", "--config", recipe, "--output", tmp_path, *settings)
    assert outcome.code == 0, outcome.err
    for name in load_config(recipe).MODEL.LOSSES.NAME:
        assert any(each.startswith(f"loss_{LOSSES[name].log_name}") for each in logged(tmp_path)), name
    assert 0 <= json.loads((tmp_path / "results.json").read_text())["CARGO"]["A2G"]["mAP"] <= 100


@pytest.mark.slow
def test_the_example_plugin_is_found_by_its_entry_point(people, tmp_path):
    """In a process of its own, to which the plugin is installed as pip would: its file and its metadata on the path."""
    assert len((EXAMPLE / "example_plugin.py").read_text().splitlines()) < 60
    declared = (EXAMPLE / "pyproject.toml").read_text()
    name, value = re.search(r'"fastreid.plugins"\]\n(\w+) = "(\w+)"', declared).groups()
    metadata = tmp_path / "site" / "agreid_example_plugin-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: agreid-example-plugin\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(f"[fastreid.plugins]\n{name} = {value}\n")
    (tmp_path / "site" / "example_plugin.py").write_text((EXAMPLE / "example_plugin.py").read_text())

    command = [sys.executable, "-m", "agreid_plugin", "train", "--config", EXAMPLE / "agsynth.yml"]
    command += ["--output", tmp_path / "run", *TINY, "DATASETS.ROOT", people]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert any(name.startswith("loss_spread") for name in logged(tmp_path / "run"))
