"""Configurations of both hosts and grids of runs, damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import yaml
from data import trees
from fuzz_cases import damaged_json, damaged_yaml
from fuzz_targets import Target

from agreid_plugin.cli.ablate import read_grid
from agreid_plugin.engine import ablation
from agreid_plugin.engine.ablation import RECORD
from agreid_plugin.hosts.fastreid.config import checks
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.mmengine.config import loading as of_mmengine

VDT = {
    "MODEL": {
        "DEVICE": "cpu",
        "META_ARCHITECTURE": "VDT",
        "BACKBONE": {"NAME": "build_vdt_backbone", "DEPTH": "tiny", "STRIDE_SIZE": [8, 8], "FEAT_DIM": 16},
        "VIT": {"PATCH_SIZE": 8, "WIDTH": 16, "LAYERS": 2, "HEADS": 2},
        "HEADS": {"NAME": "BNNeckHead", "NUM_CLASSES": 4},
        "LOSSES": {"NAME": ["CrossEntropyLoss", "TripletLoss"], "TRI": {"MARGIN": 0.3}},
        "PIXEL_MEAN": [127.5, 127.5, 127.5],
    },
    "INPUT": {"SIZE_TRAIN": [32, 16], "SIZE_TEST": [32, 16], "PIPELINE": ["host", "PLRM"]},
    "DATALOADER": {"SAMPLER_TRAIN": "ViewBalancedIdentitySampler", "NUM_WORKERS": 0, "NUM_INSTANCE": 4},
    "DATASETS": {"NAMES": ["CARGO"], "TESTS": ["CARGO_A2G"], "ROOT": "datasets"},
    "SOLVER": {"IMS_PER_BATCH": 8, "MAX_EPOCH": 1, "BASE_LR": 3e-4, "STEPS": [30], "OPT": "Adam", "WARMUP_ITERS": 0},
    "TEST": {"IMS_PER_BATCH": 16, "EXPECTED_RESULTS": [["CARGO/A2G", "mAP", 1.0, 0.5]], "PROTOCOLS": ["A2G"]},
}
"""A small VDT, with a key of every kind of value."""
GRID = {
    "config": "tiny.yml",
    "seeds": [0, 1],
    "protocols": ["ALL", "A2G"],
    "metrics": ["Rank-1", "mAP"],
    "rows": {"VDT": {}, "no margin": {"MODEL.LOSSES.TRI.MARGIN": 0.0}},
    "output": "logs/grid",
}
RUNNER = {
    "default_scope": "agreid_plugin",
    "model": {"type": "agreid_plugin.VDT", "num_ids": 4, "backbone": {"type": "agreid_plugin.VDTBackbone"}},
    "train_dataloader": {"batch_size": 8, "sampler": {"type": "DefaultSampler"}},
    "train_cfg": {"by_epoch": True, "max_epochs": 1},
    "work_dir": "logs/tiny",
}


def _written(name: str, content: dict) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write = json.dumps if name.endswith(".json") else yaml.safe_dump
        return trees.write_text(folder / name, write(content))

    return make


def _read_config(file: Path) -> None:
    checks.check_config(load_config(file))


def _grid(folder: Path) -> Path:
    _written("tiny.yml", VDT)(folder)
    return _written("grid.yml", GRID)(folder)


def _read_grid(file: Path) -> None:
    grid = ablation.plan(file, read_grid(file), str(file.parent / "runs"))
    assert all(run.folder.resolve().is_relative_to(file.parent / "runs") for run in grid.runs)


def _record(folder: Path) -> Path:
    """Write what is kept of a run that was trained."""
    grid = _grid(folder)
    run = ablation.plan(grid, read_grid(grid), str(folder / "runs")).runs[0]
    run.folder.mkdir(parents=True)
    run.keep(finished=True, seconds=3.0)
    return run.folder / RECORD


def _read_record(file: Path) -> None:
    grid = file.parents[3] / "grid.yml"
    for run in ablation.plan(grid, read_grid(grid), str(file.parents[2])).runs:
        assert run.state() in ("to train", "to continue", "to evaluate", "done")


def _inherited(folder: Path) -> Path:
    _written("tiny.json", {"_base_": "base.yaml", "train_cfg": {"max_epochs": 2}})(folder)
    return _written("base.yaml", RUNNER)(folder)


CONFIG_TARGETS = [
    Target("configuration", _written("tiny.yml", VDT), _read_config, damaged_yaml, also=tuple(VDT)),
    Target("grid of runs", _grid, _read_grid, damaged_yaml, also=("tiny.yml", "CARGO protocol", "CARGO/")),
    Target("record of a run", _record, _read_record, damaged_json, also=("seed0",)),
    Target("configuration of mmengine", _written("tiny.json", RUNNER), of_mmengine.load_config, damaged_json),
    Target(
        "base of mmengine",
        _inherited,
        lambda file: of_mmengine.load_config(file.with_name("tiny.json")),
        damaged_yaml,
        also=("tiny.json",),
    ),
]
