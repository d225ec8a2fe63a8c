"""Checkpoint files loaded into a model, and refused instead of half loaded where they fit badly."""

from __future__ import annotations

import logging
from pathlib import Path

from torch import nn

from agreid_plugin.errors import InputError
from agreid_plugin.nn.checkpoints import read_checkpoint

_logger = logging.getLogger("fastreid.weights")

ENOUGH = 0.9
"""Share of a model's tensors that a file must fill. The classifier of other identities may be missing."""


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a checkpoint into `model` and say how many tensors it filled.

    Raises:
        InputError: the file is missing, no checkpoint, or made for another model.
    """
    if not Path(path).is_file():
        raise InputError(f"weight file {path} does not exist")
    stored = {name.removeprefix("module."): value for name, value in read_checkpoint(path)["model"].items()}
    wanted = model.state_dict()
    fitting = {name: value for name, value in stored.items() if name in wanted and value.shape == wanted[name].shape}
    missing = [name for name in wanted if name not in fitting]
    if len(fitting) < ENOUGH * len(wanted):
        raise InputError(
            f"{path} fits {len(fitting)} of the model's {len(wanted)} tensors (missing or of another shape: "
            f"{', '.join(missing[:3])}, ...): it was made for another model or configuration"
        )
    model.load_state_dict(fitting, strict=False)
    left_out = f"; left out: {', '.join(missing)}" if missing else ""
    _logger.info("loaded %d of %d tensors from %s%s", len(fitting), len(wanted), path, left_out)
