"""Files of weights, read without running code stored in them and refused in one line where they cannot be."""

from __future__ import annotations

import os
import pickle
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from agreid_plugin.errors import InputError, MissingInputError, first_line
from agreid_plugin.nn.pickle_scan import load_trusted
from agreid_plugin.nn.safe_unpickling import load_plain
from agreid_plugin.nn.torchscript_reader import is_script, read_script
from agreid_plugin.trust import SMALL_ARCHIVE, is_tar, refuse_bomb

# What the readers of torch, numpy and safetensors raise on a file that is cut off, damaged or something else.
_UNREADABLE = (
    *(RuntimeError, EOFError, ValueError, OSError, LookupError, AttributeError, TypeError, AssertionError),
    *(MemoryError, OverflowError, struct.error, zipfile.BadZipFile, zlib.error, SafetensorError),
    pickle.UnpicklingError,
)
_WITH_NAN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
Content = TypeVar("Content")


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a weight file by name: a checkpoint (see `read_checkpoint`) or a TorchScript archive.

    What else stands between the tensors, as a count of steps, is left out.

    Raises:
        InputError: the file is missing, cannot be read, or holds something else than plain tensors by name, of numbers.
    """
    stored = read_checkpoint(path)["model"]
    tensors = {str(name): value for name, value in stored.items() if isinstance(value, Tensor)}
    if stored and not tensors:
        raise InputError(f"{path} is no checkpoint: it holds no tensors by name")
    for name, value in tensors.items():
        if problem := _problem(value):
            raise InputError(f"{path}: {name[:200]} {problem}")
    return tensors


def _problem(tensor: Tensor) -> str:
    """Say why a tensor can be nobody's weights; empty if it can."""
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not plain or tensor.is_quantized or tensor.is_complex():
        return "is a tensor of a kind that no weights are of (sparse, quantized, complex or without values)"
    claimed = tensor.numel() * tensor.element_size()
    if claimed > max(SMALL_ARCHIVE, tensor.untyped_storage().nbytes()):
        return f"claims {claimed:,} bytes, of which the file has {tensor.untyped_storage().nbytes():,}"
    if tensor.dtype in _WITH_NAN and tensor.isnan().any():
        return "has values that are no numbers (NaN): the training that wrote it had diverged, take an earlier file"
    return ""


def require_file(path: str | Path) -> None:
    """Refuse a weight file that is not there."""
    if not os.path.isfile(path):
        raise MissingInputError(f"weight file {path} does not exist")


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint file into `{"model": state dict, ...}` without running code stored in it.

    See `read_content`; the state dict may be bare, under `model` or under `state_dict`.

    Raises:
        InputError: the file cannot be read, is no checkpoint, or holds more than tensors and plain values.
    """
    content = read_content(path)
    if isinstance(content, nn.Module):  # of a file that is trusted
        content = content.state_dict()
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}, not a checkpoint")
    content = content if "model" in content else {"model": content.get("state_dict", content)}
    if not isinstance(content["model"], Mapping):
        what = type(content["model"]).__name__
        raise InputError(f"{path} is no checkpoint: it has a {what} under 'model', not tensors by name")
    return content


def read_content(path: str | Path, map_location: Any = "cpu") -> Any:
    """Read whatever a file of weights holds without running code stored in it.

    A `.safetensors` file and a TorchScript archive are tensors by name; any other is torch's. Objects of mmengine and
    numpy between the tensors are left out, see `load_plain`. A file that asks for more is loaded, code and all, only
    after `agreid_plugin.trust.trust(True)`.

    Args:
        path: the file.
        map_location: where the tensors of torch's files go, as for `torch.load`.

    Raises:
        InputError: the file is missing, cannot be read, or holds more than tensors and plain values.
    """
    require_readable(path)
    if Path(path).suffix == ".safetensors":
        return _read(path, "a .safetensors file", load_file)
    if is_script(path):
        return _read(path, "a TorchScript archive", read_script)
    return _read(path, "a checkpoint", partial(_load, map_location=map_location))


def require_readable(path: str | Path) -> None:
    """Refuse a weight file that is not there, that would fill the memory, or of torch's oldest format.

    Releases of torch before 2.6 run code in a tar archive whatever they are asked.
    """
    require_file(path)
    refuse_bomb(path)
    if is_tar(path):
        raise InputError(f"{path} is a tar archive, torch's format before 2017, which is not read: save it again")


def _load(path: str | Path, map_location: Any) -> Any:
    try:
        return load_plain(path, map_location)
    except pickle.UnpicklingError as error:
        return load_trusted(path, error, map_location=map_location)


def read_arrays(path: str | Path) -> dict[str, Tensor]:
    """Read all arrays of an `.npz` file, without running code stored in it.

    Raises:
        InputError: the file cannot be read, or holds something else than arrays of numbers.
    """
    require_readable(path)
    return _read(path, "an .npz file of arrays", _load_arrays)


def _load_arrays(path: str | Path) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: torch.from_numpy(archive[name]) for name in archive.files}


def _read(path: str | Path, what: str, read: Callable[[str | Path], Content]) -> Content:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of formats that are old or not its own
            return read(path)
    except InputError:
        raise
    except _UNREADABLE as error:
        raise InputError(f"{path} cannot be read as {what}: {first_line(error)}") from None
