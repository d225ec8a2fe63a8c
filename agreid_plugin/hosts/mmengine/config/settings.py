"""Settings of a checked configuration by key, for grids of runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agreid_plugin.data.datasets import dataset_name
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.config.loading import KEYS, each_dict, load_config, require_model, type_name


def read_settings(path: str | Path, overrides: Iterable[str] = ()) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Read a configuration and check it.

    Returns:
        The datasets of ours that it is evaluated on, and every key that mmengine's Runner reads, but for the folder, as
        JSON has them.

    Raises:
        InputError: the configuration cannot be read, or is refused.
    """
    cfg = load_config(path, overrides)
    require_model(cfg)
    for key in ("train_dataloader", "test_dataloader"):
        if cfg.get(key) is None:
            raise InputError(f"{path} has no {key}: there is nothing to {'train on' if 'train' in key else 'evaluate'}")
    parts = [part for _, part in each_dict(cfg.test_dataloader) if type_name(part) == "ReIDDataset"]
    values = {key: cfg[key] for key in KEYS if cfg.get(key) is not None and key != "work_dir"}
    settings = dict(_flatten("", json.loads(json.dumps(values, default=str))))
    return tuple(dict.fromkeys(dataset_name(part["name"]) for part in parts)), settings


def _flatten(where: str, value: Any) -> Iterable[tuple[str, Any]]:
    """Yield the values below a value with their keys; a list of dictionaries counts as a dictionary."""
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        yield where, value
        return
    for name, each in value.items():
        yield from _flatten(f"{where}.{name}" if where else str(name), each)
