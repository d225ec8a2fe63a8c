"""A training step of fast-reid's, taken again."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from fastreid.utils.events import EventStorage
from torch import Tensor

from agreid_plugin.data.yaml_files import read_yaml
from agreid_plugin.engine.steps import Step, taken_again
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config import checks
from agreid_plugin.hosts.fastreid.config.loading import IMPORTS, load_config
from agreid_plugin.hosts.fastreid.data.batches import to_host
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer
from agreid_plugin.types import Batch


def replay(step: Step, config_file: str | None = None) -> list[str]:
    """Take a step again and return what to say of it; a configuration of the user's replaces the step's own."""
    model = Trainer.build_model(_configured(step, config_file))

    def losses_of(batch: Batch) -> Mapping[str, Tensor]:
        with EventStorage(step.iteration):  # where models of the host log how often they are right
            return model(to_host(batch))

    return taken_again(step, model, losses_of)


def _configured(step: Step, config_file: str | None):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yml"
        path.write_text(step.config, encoding="utf-8")
        content = read_yaml(path)
        imports = content.get(IMPORTS) if isinstance(content, dict) else None
        if imports and not config_file:
            raise InputError(f"the step's run imports {imports}: name its configuration with --config to run them")
        cfg = load_config(config_file) if config_file else None
        own = load_config(path, [IMPORTS, "[]"])  # a file of numbers has no code run
    cfg = cfg or own
    cfg.MODEL.HEADS.NUM_CLASSES = cfg.MODEL.HEADS.NUM_CLASSES or own.MODEL.HEADS.NUM_CLASSES
    cfg.MODEL.DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
    cfg.MODEL.BACKBONE.PRETRAIN = False  # the step has it all
    if config_file:
        checks.check_config(cfg)
    cfg.freeze()
    return cfg
