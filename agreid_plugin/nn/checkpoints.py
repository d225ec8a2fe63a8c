"""Files of weights, read without running code stored in them and refused in one line where they cannot be."""

from __future__ import annotations

import pickle
import struct
import zipfile
import zlib
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
