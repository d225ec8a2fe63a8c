"""Recipes that mix owners: each trains an epoch on a tiny AG-Synth with all of its losses and is evaluated."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, slow

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
TINY_PARTS = {"build_vdt_backbone": VIT, "build_visa_backbone": VIT}
"""Backbone -> what makes it small; keys that nothing reads are refused."""
LAYOUTS = {"CARGO": "cargo", "CP2108": "cp2108", "TAG_PEDES": "tag-pedes"}
PROTOCOL = {"CARGO": "A2G", "CP2108": "A2G", "TAG_PEDES": "T2I"}


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> dict[str, Path]:
    """AG-Synth in each layout: 4 people to train on, 4 to test with."""
    found = {name: tmp_path_factory.mktemp(layout) for name, layout in LAYOUTS.items()}
    for name, root in found.items():
        make_agsynth(root, ids=8, images_per_id=12, size=SIZE, layout=LAYOUTS[name], workers=1, progress=False)
    return found


@pytest.fixture(scope="module")
def people(roots) -> Path:
    """That of CARGO."""
    return roots["CARGO"]


def logged(folder: Path) -> set[str]:
    return {name for line in (folder / "metrics.json").read_text().splitlines() for name in json.loads(line)}


FAST = {"osnet_etgm_dlfm", "timm_vit_visa", "timm_vit_svpr", "timm_vit_tag_clip"}
"""Of the mixes of parts, one a method."""
RECIPES = sorted((ROOT / "projects" / "Mixed").glob("*.yml"))
PARTS = [path for path in RECIPES if "agsynth_minutes" in path.read_text()]


@pytest.mark.parametrize(
    "recipe",
    [
        *(path for path in RECIPES if path not in PARTS or path.stem in FAST),
        *slow(*(path for path in PARTS if path.stem not in FAST)),
    ],
    ids=lambda path: path.stem,
)
def test_a_mixed_recipe_trains_an_epoch(recipe, roots, tmp_path, fastreid_command):
    cfg = load_config(recipe)
    (dataset,) = cfg.DATASETS.TESTS
    changes = [*TINY, *TINY_PARTS.get(cfg.MODEL.BACKBONE.NAME, ()), "TEST.PROTOCOLS", f"[{PROTOCOL[dataset]}]"]
    changes += ["MODEL.VISA.NEIGHBORS", 4] if cfg.MODEL.META_ARCHITECTURE == "ViSA" else []
    outcome = fastreid_command(
        "train", "--config", recipe, "--output", tmp_path, *changes, "DATASETS.ROOT", roots[dataset]
    )
    assert outcome.code == 0, outcome.err
    for name in cfg.MODEL.LOSSES.NAME:
        assert any(each.startswith(f"loss_{LOSSES[name].log_name}") for each in logged(tmp_path)), name
    (found,) = json.loads((tmp_path / "results.json").read_text()).values()
    assert 0 <= found[PROTOCOL[dataset]]["mAP"] <= 100


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
