"""Weight files: find and identify them by hash, load them into a model of either host, refuse what fits badly."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor, nn

from agreid_plugin.errors import Finding, InputError, MissingInputError
from agreid_plugin.nn.checkpoints import is_torchscript, read_arrays, read_tensors, require_file

_logger = logging.getLogger(__name__)

MIN_FIT = 0.9
"""Share of the model's tensors that a file must have, and of the file's that the model must have.

The classifier of other identities may be missing."""

CLASSIFIERS = ("classifier.weight", "classifier.bias", "head.weight", "heads.weight")
"""Endings of the names of classifiers, ours and the host's."""

PREDICTOR = "view_predictor."
"""Part of the names of a view predictor's tensors."""

WRAPPERS = ("module.", "method.")
"""Prefixes of names in data-parallel training, and in a host whose model has the method as a part."""

KNOWN_FILES = Path(__file__).with_name("known_weights.yml")
ENDINGS = (".pth", ".pt", ".safetensors", ".npz")
FOLDERS = ("weights", "pretrained")
"""Folders of weight files, beside that in $FASTREID_WEIGHTS; recipes name the second."""
HASH_IN_NAME = re.compile(r"-(?=\d*[a-f])([0-9a-f]{8,64})$")
"""The first digits of a file's SHA-256 at the end of its name, as torch's hub has it; a date has no letters."""
PIECE = 1 << 20


def load_weights(model: nn.Module, path: str | Path) -> list[str]:
    """Load a checkpoint of either host into `model` and log how many tensors it filled.

    Returns:
        The names of the model's tensors that the file lacks; they keep their values.

    Raises:
        InputError: the file is missing, no checkpoint, or made for another model.
    """
    names = {plain_name(name): name for name in model.state_dict()}
    stored, wanted = read_state(path), {plain_name(name): value for name, value in model.state_dict().items()}
    fitting = {name: value for name, value in stored.items() if name in wanted and value.shape == wanted[name].shape}
    missing = [name for name in wanted if name not in fitting]
    _check_fit(path, stored, wanted, missing)
    model.load_state_dict({names[name]: value for name, value in fitting.items()}, strict=False)
    left_out = f"; left out: {', '.join(missing)}" if missing else ""
    _logger.info("loaded %d of %d tensors from %s%s", len(fitting), len(wanted), path, left_out)
    return [names[name] for name in missing]


def require_loaded(model: nn.Module, path: str | Path) -> list[str]:
    """Refuse a checkpoint that a host's own loader, which only logs what does not fit, cannot have filled a model with.

    Returns:
        The names of the model's tensors that the file lacks.
    """
    stored = {name.removeprefix("module."): value for name, value in read_tensors(path).items()}
    wanted = model.state_dict()
    missing = [name for name, value in wanted.items() if name not in stored or stored[name].shape != value.shape]
    _check_fit(path, stored, wanted, missing)
    return missing


def require_weights(path: str | Path | None) -> None:
    """Refuse a weight file of the command line that does not exist."""
    if not path or not os.path.isfile(path):
        raise MissingInputError(f"weight file {str(path or '')!r} does not exist; name it with --weights")


def require_predictor(method: Any, left_out: Iterable[str], key: str, weights: str | Path = "the weight file") -> None:
    """Refuse predicted views if the weight file has no view predictor.

    Args:
        method: a method, or a host's own model, which uses no views.
        left_out: names of the model's tensors that the file lacks.
        key: the key of the configuration that says where views come from.
        weights: what to call the file.
    """
    if getattr(method, "view_source", "") == "predicted" and any(PREDICTOR in name for name in left_out):
        raise InputError(
            f"{key} is predicted, but {weights} has no weights of a view predictor (released files never had one): "
            f"train with this package, or set {key} given"
        )


def read_state(path: str | Path) -> dict[str, Tensor]:
    """Read the state dict of a checkpoint of either host, with plain names; see `plain_name`.

    Raises:
        InputError: the file is missing, no checkpoint, or holds something else than tensors by name.
    """
    return {plain_name(name): value for name, value in read_tensors(path).items()}


def plain_name(name: str) -> str:
    """Return the name of a tensor without a host's prefixes."""
    for wrapper in WRAPPERS:
        name = name.removeprefix(wrapper)
    return name


def _check_fit(path: str | Path, stored: dict[str, Tensor], wanted: dict[str, Tensor], missing: list[str]) -> None:
    fitting = len(wanted) - len(missing)
    if fitting < MIN_FIT * len(wanted):
        raise InputError(
            f"{path} fits {fitting} of the model's {len(wanted)} tensors (missing or of another shape: "
            f"{', '.join(missing[:3])}, ...): it was made for another model or configuration"
        )
    unused = [name for name in stored if name not in wanted]
    if len(unused) > (1 - MIN_FIT) * len(stored):
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


def find_files() -> list[Path]:
    """Return the weight files in $FASTREID_WEIGHTS, `weights` and `pretrained`, sorted."""
    folders = [os.environ.get("FASTREID_WEIGHTS"), *FOLDERS]
    return sorted(
        path
        for folder in folders
        if folder and os.path.isdir(folder)
        for path in Path(folder).iterdir()
        if path.suffix in ENDINGS and path.is_file()
    )


def describe_files(paths: Iterable[str | Path]) -> list[Finding]:
    """Return what each weight file is and whether it is intact."""
    return [_describe(Path(path)) for path in paths]


def _describe(path: Path) -> Finding:
    try:
        require_file(path)
        digest = sha256(path)
        content = _content(path)
    except InputError as error:
        return Finding(False, str(error))
    except OSError as error:
        return Finding(False, f"{path} cannot be read: {error.strerror or error}")
    expected = HASH_IN_NAME.search(path.stem)
    if expected and not digest.startswith(expected[1]):
        mismatch = f"its name says sha256 {expected[1]}, its content has {digest[: len(expected[1])]}"
        return Finding(False, f"{path}: {mismatch}: damaged, or another file under this name; {content}")
    name = known_files().get(digest) or ("as its name says" if expected else "not known by its hash")
    return Finding(True, f"{path}: {name}; {content}; sha256 {digest[:12]}")


def sha256(path: str | Path, before: bytes = b"") -> str:
    """Return the SHA-256 of a file, or of some bytes followed by the file, in hexadecimal digits."""
    digest = hashlib.sha256(before)
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


@cache
def known_files() -> dict[str, str]:
    """Return SHA-256 -> name of a well-known file."""
    return yaml.safe_load(KNOWN_FILES.read_text(encoding="utf-8"))


def _content(path: Path) -> str:
    tensors = read_arrays(path) if path.suffix == ".npz" else read_tensors(path)
    return f"{_format(path)}, {len(tensors)} tensors, {_millions(tensors.values())} M numbers"


def _format(path: Path) -> str:
    if path.suffix in (".npz", ".safetensors"):
        return path.suffix[1:]
    return "TorchScript" if is_torchscript(path) else "torch"


def _millions(tensors: Iterable[Tensor]) -> str:
    return f"{sum(tensor.numel() for tensor in tensors) / 1e6:.3g}"
