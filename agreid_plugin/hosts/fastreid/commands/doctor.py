"""Checks of fast-reid for `fastreid doctor`, and a training of seconds through its trainer."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import fastreid
import torch
from fastreid.config import get_cfg
from fastreid.solver import build_optimizer
from fastreid.utils.env import seed_all_rng

from agreid_plugin.engine.smoke import BATCH, EPOCHS, PER_PERSON, RATE, SIZE, VISA, VIT, SmokeResult
from agreid_plugin.errors import Finding
from agreid_plugin.hosts.fastreid.compat import HOST_FIXES

SCRIPTS = ("fastreid.evaluation.rank_cylib.setup", "fastreid.evaluation.rank_cylib.test_cython")
"""Files in the host's package that are programs: importing them runs them."""


def list_host_modules() -> Iterator[str]:
    """Yield the name of every module of the host."""
    for module in pkgutil.walk_packages(fastreid.__path__, "fastreid."):
        if module.name not in SCRIPTS:
            yield module.name


def diagnose() -> list[Finding]:
    """Run every check."""
    return [_modules_import(), _faults_are_gone(), _weights_move()]


def _modules_import() -> Finding:
    failed, names = [], list(list_host_modules())
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed.append(f"{name} ({error})")
    if failed:
        return Finding(False, f"{len(failed)} of the host's {len(names)} modules do not import: {'; '.join(failed)}")
    return Finding(True, f"all {len(names)} modules of the host import")


def _faults_are_gone() -> Finding:
    left = [fix.name for fix in HOST_FIXES.all if fix.needed()]
    return Finding(not left, f"faults of the host left: {', '.join(left) or 'none'}")


def _weights_move() -> Finding:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(4, 2).to(device)
    optimizer, _ = build_optimizer(get_cfg(), model)
    before = model.weight.detach().clone()
    optimizer.zero_grad()
    model(torch.ones(1, 4, device=device)).sum().backward()
    optimizer.step()
    moved = not torch.equal(before, model.weight)
    return Finding(moved, f"one optimizer step on {device} {'changes' if moved else 'does NOT change'} the weights")


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


def train(root: Path, output: Path) -> SmokeResult:
    """Train and evaluate, with the datasets under `root`."""
    from agreid_plugin.hosts.fastreid.engine.trainer import Trainer  # a host with faults may not get as far

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
    return SmokeResult([step["total_loss"] for step in steps], int(changed), seconds)
