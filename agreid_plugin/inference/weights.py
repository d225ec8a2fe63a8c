"""Checkpoint files of any host loaded into a model, and refused instead of half loaded where they fit badly."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from agreid_plugin.errors import InputError, MissingInputError
from agreid_plugin.nn.checkpoints import read_tensors

_logger = logging.getLogger(__name__)

ENOUGH = 0.9
"""Share of a model's tensors that a file must fill, and of the file's that the model must have.

The classifier of other identities may be missing."""

CLASSIFIERS = ("classifier.weight", "classifier.bias", "head.weight", "heads.weight")
"""How the names of classifiers end, ours and the host's."""

PREDICTOR = "view_predictor."
"""What the names of tensors have in them that tell the view of an image, where nobody gives it."""

WRAPPERS = ("module.", "method.")
"""What names start with below data-parallel training, and in a host that has the method as a part of its model."""


def load_weights(model: nn.Module, path: str | Path) -> list[str]:
    """Load a checkpoint of any host into `model` and say how many tensors it filled.

    Returns:
        The names of the model's tensors that keep their values, as the file has none for them.

    Raises:
        InputError: the file is missing, no checkpoint, or made for another model.
    """
    own = {plain_name(name): name for name in model.state_dict()}
    stored, wanted = read_state(path), {plain_name(name): value for name, value in model.state_dict().items()}
    fitting = {name: value for name, value in stored.items() if name in wanted and value.shape == wanted[name].shape}
    missing = [name for name in wanted if name not in fitting]
    _check_fit(path, stored, wanted, missing)
    model.load_state_dict({own[name]: value for name, value in fitting.items()}, strict=False)
    left_out = f"; left out: {', '.join(missing)}" if missing else ""
    _logger.info("loaded %d of %d tensors from %s%s", len(fitting), len(wanted), path, left_out)
    return [own[name] for name in missing]


def require_weights(path: str | Path | None) -> None:
    """Refuse a weight file of the command line that is not there."""
    if not path or not os.path.isfile(path):
        raise MissingInputError(f"weight file {str(path or '')!r} does not exist; name it with --weights")


def require_predictor(method: Any, left_out: Iterable[str], key: str, weights: str | Path = "the weight file") -> None:
    """Refuse to go by the views of a predictor that a weight file left untrained.

    Args:
        method: a method, or a model of a host's own, which goes by none.
        left_out: names of the model's tensors that the file has nothing for.
        key: the key of the configuration that says where views come from.
        weights: what to call the file.
    """
    if getattr(method, "view_source", "") == "predicted" and any(PREDICTOR in name for name in left_out):
        raise InputError(
            f"{key} is predicted, but {weights} has no weights of a view predictor (released files never had one): "
            f"train with this package, or set {key} given"
        )


def read_state(path: str | Path) -> dict[str, Tensor]:
    """Read the state dict of a checkpoint file of any host, its names plain; see `plain_name`.

    Raises:
        InputError: the file is missing, no checkpoint, or holds something else than tensors by name.
    """
    return {plain_name(name): value for name, value in read_tensors(path).items()}


def plain_name(name: str) -> str:
    """Return the name of a tensor without what stands before it for the sake of a host."""
    for wrapper in WRAPPERS:
        name = name.removeprefix(wrapper)
    return name


def _check_fit(path: str | Path, stored: dict[str, Tensor], wanted: dict[str, Tensor], missing: list[str]) -> None:
    fitting = len(wanted) - len(missing)
    if fitting < ENOUGH * len(wanted):
        raise InputError(
            f"{path} fits {fitting} of the model's {len(wanted)} tensors (missing or of another shape: "
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
