"""Tiny configurations of the fast-reid host for tests: that of ViSA, and how one is written, built and trained."""

import io
import logging
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastreid.config import get_cfg
from fastreid.modeling import build_model
from fastreid.utils import comm
from torch import nn

from agreid_plugin.cli import main
from agreid_plugin.hosts.fastreid.config import loading
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.engine.distributed import local_group
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer

VISA = {
    "MODEL": {
        "META_ARCHITECTURE": "ViSA",
        "BACKBONE": {"NAME": "build_visa_backbone", "DEPTH": "tiny", "STRIDE_SIZE": [8, 8], "FEAT_DIM": 16},
        "VIT": {"PATCH_SIZE": 8, "WIDTH": 16, "LAYERS": 2, "HEADS": 2},
        "VISA": {"EXPERTS": 3, "TOP_K": 2, "TOKENS": 2, "NEIGHBORS": 3},
        "HEADS": {"NAME": "BNNeckHead"},
        "LOSSES": {"NAME": ["CrossEntropyLoss", "TripletLoss"], "TRI": {"MARGIN": 0.0, "HARD_MINING": True}},
    },
    "INPUT": {"SIZE_TRAIN": [32, 16], "SIZE_TEST": [32, 16]},
    "DATASETS": {"NAMES": ["CARGO"], "TESTS": ["CARGO"]},
    "DATALOADER": {"SAMPLER_TRAIN": "ViewBalancedIdentitySampler", "NUM_INSTANCE": 4, "NUM_WORKERS": 0},
    "SOLVER": {"IMS_PER_BATCH": 16, "MAX_EPOCH": 1, "WARMUP_ITERS": 0, "STEPS": [30], "LOG_PERIOD": 1},
    "TEST": {"EVAL_PERIOD": 1, "IMS_PER_BATCH": 16, "PROTOCOLS": ["ALL", "A2G"]},
}
"""It trains an epoch on the fixture `agsynth` in seconds."""


def write_tiny(folder: Path, settings: dict[str, Any], root: Path) -> Path:
    """Write `tiny.yml` into a folder: settings for the datasets below `root`, whose runs go into `run` beside it."""
    path = folder / "tiny.yml"
    datasets = {**settings.get("DATASETS", {}), "ROOT": str(root)}
    path.write_text(yaml.safe_dump({**settings, "DATASETS": datasets, "OUTPUT_DIR": str(folder / "run")}))
    return path


def built(path: Path, *overrides: object) -> nn.Module:
    """Build the model of a configuration for the four people to train on of AG-Synth's small sets."""
    fixed = ("MODEL.DEVICE", "cpu", "MODEL.HEADS.NUM_CLASSES", 4)
    return build_model(load_config(path, [str(part) for part in (*fixed, *overrides)]))


def forget_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the keys that a test declares from here on be gone after it."""
    monkeypatch.setattr("fastreid.config.defaults._C", get_cfg())
    for name in ("_docs", "_entries"):
        monkeypatch.setattr(loading, name, dict(getattr(loading, name)))
    monkeypatch.setattr(loading, "_optional", set(loading._optional))


def train_once(path: Path, *overrides: object) -> str:
    """Train by the command, for all tests of a file that only read the run; return what it printed."""
    with redirect_stdout(io.StringIO()) as printed:
        assert main(["train", "--config", *map(str, (path, *overrides))]) == 0
    logging.getLogger("fastreid").handlers.clear()  # or later tests would write into its log
    return printed.getvalue()


def train_in_group(cfg) -> str:
    """Train in one of several processes that share a group."""
    logging.getLogger("fastreid").handlers.clear()  # those of the tests before
    with local_group(comm.get_world_size()):
        Trainer(cfg).train()
    return "trained"
