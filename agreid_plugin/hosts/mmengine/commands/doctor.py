"""Checks of mmengine and its libraries for `fastreid doctor`, and a training of seconds through its Runner."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from mmengine.registry import OPTIM_WRAPPERS, OPTIMIZERS
from torch import nn

from agreid_plugin.engine.smoke import BATCH, EPOCHS, IDENTITIES, PER_PERSON, RATE, SIZE, VISA, VIT, SmokeResult
from agreid_plugin.errors import Finding
from agreid_plugin.host import installed
from agreid_plugin.hosts.mmengine.compat import HOST_FIXES
from agreid_plugin.hosts.mmengine.registry import SCOPE

PARTS = {
    "mmengine": ("config", "dataset", "evaluator", "hooks", "model", "optim", "runner", "visualization"),
    "mmpretrain": ("apis", "datasets", "engine", "evaluation", "models", "structures", "visualization"),
}
"""Modules that configurations import."""


def diagnose() -> list[Finding]:
    """Run every check."""
    return [_modules_import(), _ours_are_registered(), _faults_are_gone(), _weights_move()]


def _modules() -> Iterator[str]:
    for package, parts in PARTS.items():
        if installed(package):
            yield from (f"{package}.{part}" for part in parts)


def _modules_import() -> Finding:
    failed, names = [], list(_modules())
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed.append(f"{name} ({error})")
    packages = " and ".join(package for package in PARTS if installed(package))
    return Finding(not failed, f"parts of {packages} that do not import: {'; '.join(failed) or 'none'}")


def _ours_are_registered() -> Finding:
    from agreid_plugin.hosts.mmengine.commands.catalog import components

    ours = [entry for entries in components().values() for entry in entries if entry.owner == "agreid_plugin"]
    return Finding(bool(ours), f"mmengine's registries have {len(ours)} parts of agreid_plugin")


def _faults_are_gone() -> Finding:
    left = [fix.name for fix in HOST_FIXES.all if fix.due and fix.needed()]
    return Finding(not left, f"faults of mmengine and mmpretrain left: {', '.join(left) or 'none'}")


def _weights_move() -> Finding:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(4, 2).to(device)
    optimizer = OPTIMIZERS.build({"type": "SGD", "params": model.parameters(), "lr": 0.1})
    before = model.weight.detach().clone()
    wrapper = OPTIM_WRAPPERS.build({"type": "OptimWrapper", "optimizer": optimizer})
    wrapper.update_params(model(torch.ones(1, 4, device=device)).sum())
    moved = not torch.equal(before, model.weight)
    return Finding(moved, f"one step of mmengine on {device} {'changes' if moved else 'does NOT change'} the weights")


PIPELINE = [{"type": f"{SCOPE}.{name}"} for name in ("ReadImage", "Pack")]


def train(root: Path, output: Path) -> SmokeResult:
    """Train, with the datasets under `root`."""
    from mmengine.runner import Runner  # a host with faults may not get as far

    runner = Runner.from_cfg(_config(root, output))
    runner.train()
    history = {name: runner.message_hub.get_scalar(f"train/{name}").data[0] for name in ("loss", "time")}
    changed = runner.message_hub.get_scalar("train/changed_weights").current()
    return SmokeResult(history["loss"].tolist(), int(changed), history["time"].tolist()[1:])


def _config(root: Path, output: Path) -> dict[str, Any]:
    dataset = {"type": f"{SCOPE}.ReIDDataset", "name": "CARGO", "data_root": str(root), "pipeline": PIPELINE}
    sampler = {"type": f"{SCOPE}.ViewBalancedIdentitySampler", "batch_size": BATCH, "per_identity": PER_PERSON}
    backbone = {"type": f"{SCOPE}.ViSABackbone", "vit": {"image_size": SIZE, **VIT}, **VISA}
    losses = {name: {"type": f"{SCOPE}.{kind}"} for name, kind in (("cls", "IdentityLoss"), ("triplet", "TripletLoss"))}
    return {
        "default_scope": SCOPE,
        "experiment_name": output.parent.name,
        "work_dir": str(output),
        "model": {"type": f"{SCOPE}.ViSA", "num_ids": IDENTITIES, "backbone": backbone, "objectives": losses},
        "train_dataloader": {"batch_size": BATCH, "num_workers": 0, "dataset": dataset, "sampler": sampler},
        "train_cfg": {"by_epoch": True, "max_epochs": EPOCHS},
        "optim_wrapper": {"optimizer": {"type": "Adam", "lr": RATE}},
        "custom_hooks": [{"type": f"{SCOPE}.LearningGuard"}],
        "default_hooks": {"checkpoint": {"type": "CheckpointHook", "interval": EPOCHS}},
        "randomness": {"seed": 0},
    }
