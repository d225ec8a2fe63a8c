"""Checkpoint files loaded into a model, and refused instead of half loaded where they fit badly."""

from __future__ import annotations

import logging
from pathlib import Path

from torch import Tensor, nn

from agreid_plugin.errors import InputError
from agreid_plugin.nn.checkpoints import read_tensors

_logger = logging.getLogger("fastreid.weights")

ENOUGH = 0.9
"""Share of a model's tensors that a file must fill, and of the file's that the model must have.

The classifier of other identities may be missing."""

CLASSIFIERS = ("classifier.weight", "classifier.bias", "head.weight", "heads.weight")
"""How the names of classifiers end, ours and the host's."""


def load_weights(model: nn.Module, path: str | Path) -> list[str]:
    """Load a checkpoint into `model` and say how many tensors it filled.

    Returns:
        The names of the model's tensors that keep their values, as the file has none for them.

    Raises:
        InputError: the file is missing, no checkpoint, or made for another model.
    """
    stored, wanted = read_state(path), model.state_dict()
    fitting = {name: value for name, value in stored.items() if name in wanted and value.shape == wanted[name].shape}
    missing = [name for name in wanted if name not in fitting]
    if len(fitting) < ENOUGH * len(wanted):
        raise InputError(
            f"{path} fits {len(fitting)} of the model's {len(wanted)} tensors (missing or of another shape: "
            f"{', '.join(missing[:3])}, ...): it was made for another model or configuration"
        )
    unused = [name for name in stored if name not in wanted]
    if len(unused) > (1 - ENOUGH) * len(stored):
        raise InputError(
            f"{path} has {len(unused)} of {len(stored)} tensors that the model has no place for ({unused[0]}, ...): it "
            "was made for another model or configuration"
        )
    for name in missing:
        if name in stored and not name.endswith(CLASSIFIERS):
            raise InputError(
                f"{path}: {name} is {tuple(stored[name].shape)}, but the model's is {tuple(wanted[name].shape)}: "
                "it was made for another configuration"
            )
    model.load_state_dict(fitting, strict=False)
    left_out = f"; left out: {', '.join(missing)}" if missing else ""
    _logger.info("loaded %d of %d tensors from %s%s", len(fitting), len(wanted), path, left_out)
    return missing


def read_state(path: str | Path) -> dict[str, Tensor]:
    """Read the state dict of a checkpoint file, without the prefix of data-parallel training.

    Raises:
        InputError: the file is missing, no checkpoint, or holds something else than tensors by name.
    """
    return {name.removeprefix("module."): value for name, value in read_tensors(path).items()}
