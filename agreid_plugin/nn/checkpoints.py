"""Files of weights, read without running code stored in them and refused in one line where they cannot be."""

from __future__ import annotations

import pickle
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from agreid_plugin.errors import InputError, first_line

# What the readers of torch, numpy and safetensors raise on a file that is cut off, damaged or something else.
_UNREADABLE = (
    *(RuntimeError, EOFError, ValueError, OSError, KeyError, IndexError, AttributeError, TypeError, AssertionError),
    *(struct.error, zipfile.BadZipFile, zlib.error, SafetensorError),
)


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a weight file by name: a checkpoint (see `read_checkpoint`) or a TorchScript archive.

    What else stands between the tensors, as a count of steps, is left out.

    Raises:
        InputError: the file is missing, cannot be read, or holds something else than tensors by name.
    """
    require_file(path)
    stored = _read_script(path) if is_script(path) else read_checkpoint(path)["model"]
    if not isinstance(stored, Mapping):
        raise InputError(
            f"{path} is no checkpoint: it has a {type(stored).__name__} under 'model', not tensors by name"
        )
    tensors = {str(name): value for name, value in stored.items() if isinstance(value, Tensor)}
    if stored and not tensors:
        raise InputError(f"{path} is no checkpoint: it holds no tensors by name")
    return tensors


def require_file(path: str | Path) -> None:
    """Refuse a weight file that is not there."""
    if not Path(path).is_file():
        raise InputError(f"weight file {path} does not exist")


def is_script(path: str | Path) -> bool:
    """Tell a TorchScript archive, as OpenAI's of CLIP, from a file of tensors: it holds code."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/code/" in name for name in archive.namelist())
    except _UNREADABLE:
        return False


def read_checkpoint(path: str | Path) -> dict:
    """Read a checkpoint file into `{"model": state dict, ...}` without running code stored in it.

    A `.safetensors` file is a state dict; any other is torch's, with its state dict bare, under `model` or under
    `state_dict`.

    Raises:
        InputError: the file cannot be read, is no checkpoint, or holds more than tensors and plain values.
    """
    if Path(path).suffix == ".safetensors":
        return {"model": _read_safetensors(path)}
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(
            f"{path} was not loaded: it holds more than tensors and plain values, or is damaged (one that holds more "
            "can run code); save its state dict alone"
        ) from None
    except _UNREADABLE as error:
        raise InputError(f"{path} cannot be read as a checkpoint: {first_line(error)}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}, not a checkpoint")
    return content if "model" in content else {"model": content.get("state_dict", content)}


def read_arrays(path: str | Path) -> dict[str, Tensor]:
    """Read all arrays of an `.npz` file, without running code stored in it.

    Raises:
        InputError: the file cannot be read, or holds something else than arrays of numbers.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: torch.from_numpy(archive[name]) for name in archive.files}
    except _UNREADABLE as error:
        raise InputError(f"{path} cannot be read as an .npz file of arrays: {first_line(error)}") from None


def _read_safetensors(path: str | Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except _UNREADABLE as error:
        raise InputError(f"{path} cannot be read as a .safetensors file: {first_line(error)}") from None


def _read_script(path: str | Path) -> dict[str, Tensor]:
    try:
        return torch.jit.load(str(path), map_location="cpu").state_dict()
    except _UNREADABLE as error:
        raise InputError(f"{path} cannot be read as a TorchScript archive: {first_line(error)}") from None
