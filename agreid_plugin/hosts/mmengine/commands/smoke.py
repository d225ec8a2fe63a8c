"""A training of seconds through mmengine's Runner, for `fastreid doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmengine.runner import Runner

from agreid_plugin.engine.smoke import BATCH, EPOCHS, IDENTITIES, PER_PERSON, RATE, SIZE, VISA, VIT, Trained
from agreid_plugin.hosts.mmengine.registry import SCOPE

PIPELINE = [{"type": f"{SCOPE}.{name}"} for name in ("ReadImage", "Pack")]


def train(root: Path, output: Path) -> Trained:
    """Train, with the datasets under `root`."""
    runner = Runner.from_cfg(_config(root, output))
    runner.train()
    history = {name: runner.message_hub.get_scalar(f"train/{name}").data[0] for name in ("loss", "time")}
    changed = runner.message_hub.get_scalar("train/changed_weights").current()
    return Trained(history["loss"].tolist(), int(changed), history["time"].tolist()[1:])


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
