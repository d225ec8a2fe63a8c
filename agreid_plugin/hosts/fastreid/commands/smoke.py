"""A training of seconds through fast-reid's trainer, for `fastreid doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from fastreid.config import get_cfg
from fastreid.utils.env import seed_all_rng

from agreid_plugin.engine.smoke import BATCH, EPOCHS, PER_PERSON, RATE, SIZE, VISA, VIT, Trained
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer

STRIDE = [VIT["patch_size"]] * 2
CONFIG = {
    "MODEL.META_ARCHITECTURE": "ViSA",
    "MODEL.BACKBONE.NAME": "build_visa_backbone",
    "MODEL.BACKBONE.DEPTH": "tiny",
    "MODEL.BACKBONE.STRIDE_SIZE": STRIDE,
    "MODEL.BACKBONE.FEAT_DIM": VIT["width"],
    "MODEL.VIT.PATCH_SIZE": VIT["patch_size"],
    "MODEL.VIT.WIDTH": VIT["width"],
    "MODEL.VIT.LAYERS": VIT["depth"],
    "MODEL.VIT.HEADS": VIT["heads"],
    "MODEL.HEADS.NAME": "BNNeckHead",
    "MODEL.LOSSES.NAME": ("CrossEntropyLoss", "TripletLoss"),
    "MODEL.VISA.EXPERTS": VISA["experts"],
    "MODEL.VISA.TOKENS": VISA["tokens"],
    "MODEL.VISA.NEIGHBORS": VISA["neighbors"],
    "INPUT.SIZE_TRAIN": list(SIZE),
    "INPUT.SIZE_TEST": list(SIZE),
    "DATASETS.NAMES": ("CARGO",),
    "DATASETS.TESTS": ("CARGO_A2G",),
    "DATALOADER.SAMPLER_TRAIN": "ViewBalancedIdentitySampler",
    "DATALOADER.NUM_INSTANCE": PER_PERSON,
    "DATALOADER.NUM_WORKERS": 0,
    "SOLVER.IMS_PER_BATCH": BATCH,
    "SOLVER.MAX_EPOCH": EPOCHS,
    "SOLVER.WARMUP_ITERS": 0,
    "SOLVER.BASE_LR": RATE,
    "SOLVER.LOG_PERIOD": 1,
    "SOLVER.CHECKPOINT_PERIOD": 0,
    "TEST.EVAL_PERIOD": 0,
}


def train(root: Path, output: Path) -> Trained:
    """Train and evaluate, with the datasets under `root`."""
    cfg = get_cfg()
    output.mkdir()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    given = {**CONFIG, "MODEL.DEVICE": device, "DATASETS.ROOT": str(root), "OUTPUT_DIR": str(output)}
    cfg.merge_from_list([part for pair in given.items() for part in pair])
    seed_all_rng(0)
    Trainer(cfg).train()
    lines = [json.loads(line) for line in (output / "metrics.json").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if "total_loss" in line]
    changed = next(line["changed_weights"] for line in lines if "changed_weights" in line)
    seconds = [line["time"] for line in lines if "time" in line]  # the host leaves out the first steps
    return Trained([step["total_loss"] for step in steps], int(changed), seconds)
