"""Settings of a checked configuration by key, for grids of runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any

from fastreid.config import get_cfg

from agreid_plugin.hosts.fastreid.config.checks import check_config
from agreid_plugin.hosts.fastreid.config.loading import key_paths, load_config
from agreid_plugin.hosts.fastreid.data.datasets import get_dataset_name


def read_settings(path: str | Path, overrides: Iterable[str] = ()) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Read a configuration and check it.

    Returns:
        The datasets that it is evaluated on, and every key that is not at its default, but for the folder, as JSON has
        them.

    Raises:
        InputError: the configuration cannot be read, or is refused.
    """
    cfg = load_config(path, overrides)
    check_config(cfg)
    values, defaults = (
        json.loads(json.dumps({key: attrgetter(key)(each) for key in key_paths(each)})) for each in (cfg, get_cfg())
    )
    settings = {key: value for key, value in values.items() if value != defaults[key] and key != "OUTPUT_DIR"}
    return tuple(dict.fromkeys(get_dataset_name(name) for name in cfg.DATASETS.TESTS)), settings
