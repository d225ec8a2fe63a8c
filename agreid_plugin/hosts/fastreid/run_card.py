"""What a run was made of, so that two runs can be compared: run_card.json in its folder."""

from __future__ import annotations

import json
import platform
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import yaml

from agreid_plugin.hosts.fastreid import compat

PACKAGES = ("agreid-plugin", "fastreid", "torch", "torchvision", "numpy", "pillow", "scipy", "faiss-cpu", "yacs")
FILE_NAME = "run_card.json"


def versions() -> dict[str, str]:
    """Return the version of Python and of each package that matters; `missing` for one that is not installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def devices() -> list[str]:
    """Return the names of the GPUs, or of the processor without one."""
    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return [f"cpu ({torch.get_num_threads()} threads)"]


def write_run_card(cfg, world_size: int, **extra: Any) -> Path:
    """Write the card of a run that starts now."""
    card = {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": sys.argv,
        "versions": versions(),
        "patches": compat.applied(),
        "devices": devices(),
        "processes": world_size,
        "seed": cfg.SEED,
        **extra,
        "config": yaml.safe_load(cfg.dump()),
    }
    path = Path(cfg.OUTPUT_DIR) / FILE_NAME
    path.write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    return path
