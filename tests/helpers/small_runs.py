"""Small runs with everything random in them, for tests that end and resume them, and what two runs have in common."""

import json
from pathlib import Path
from typing import Any

import torch
import yaml

RANDOM = {
    "MODEL": {
        "META_ARCHITECTURE": "ViSA",
        "BACKBONE": {
            "NAME": "build_visa_backbone",
            "DEPTH": "tiny",
            "STRIDE_SIZE": [8, 8],
            "FEAT_DIM": 16,
            "DROP_PATH_RATIO": 0.3,
        },
        "VIT": {"PATCH_SIZE": 8, "WIDTH": 16, "LAYERS": 2, "HEADS": 2},
        "VISA": {"EXPERTS": 3, "TOP_K": 2, "TOKENS": 2, "NEIGHBORS": 3},
        "HEADS": {"NAME": "BNNeckHead"},
        "LOSSES": {"NAME": ["CrossEntropyLoss", "TripletLoss"]},
    },
    "INPUT": {
        "SIZE_TRAIN": [32, 16],
        "SIZE_TEST": [32, 16],
        **{name: {"ENABLED": True} for name in ("FLIP", "PADDING", "CJ", "REA")},
    },
    "DATASETS": {"NAMES": ["CARGO"], "TESTS": ["CARGO"]},
    "DATALOADER": {"SAMPLER_TRAIN": "NaiveIdentitySampler", "NUM_INSTANCE": 4, "NUM_WORKERS": 0},
    "SOLVER": {
        "IMS_PER_BATCH": 8,
        "MAX_EPOCH": 3,
        "BASE_LR": 1e-3,
        "WARMUP_ITERS": 4,
        "STEPS": [1, 2],
        "LOG_PERIOD": 1,
        "CHECKPOINT_PERIOD": 1,
        "CHECKPOINT_ITERS": 4,
    },
    "TEST": {"EVAL_PERIOD": 1, "IMS_PER_BATCH": 16, "PROTOCOLS": ["ALL"]},
}
"""18 iterations in 3 epochs on the fixture `agsynth`."""


def write_config(path: Path, root: Path) -> Path:
    """Write `RANDOM` for the datasets below `root`."""
    path.write_text(yaml.safe_dump({**RANDOM, "DATASETS": {**RANDOM["DATASETS"], "ROOT": str(root)}}))
    return path


def same(one: Any, other: Any) -> bool:
    """Tell whether two checkpoints, or parts of them, are equal bit by bit."""
    if torch.is_tensor(one):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def final(folder: Path) -> dict[str, Any]:
    """Return the last checkpoint of a finished run: weights, optimizer, schedules, random states, best metric."""
    return torch.load(folder / "model_final.pth", weights_only=True)


def logged(folder: Path) -> list[tuple[int, str]]:
    """Return what metrics.json tells: iterations and names, but for times and what is told once a process."""
    lines = [json.loads(line) for line in (folder / "metrics.json").read_text().splitlines()]
    once = ("iteration", "time", "data_time", "changed_weights")
    return [(line["iteration"], name) for line in lines for name in line if name not in once]
