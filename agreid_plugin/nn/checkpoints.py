"""Weight files: reading torch checkpoints, TorchScript archives, safetensors and npz without running stored code.

`torch.jit.load` runs what an archive says while it makes its modules. Here its record of the modules is read with inert
objects for all of them, and their tensors are named as in a state dict.
"""

from __future__ import annotations

import os
import pickle
import struct
import warnings
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from agreid_plugin.errors import InputError, MissingInputError, first_line, input_error_like
from agreid_plugin.nn.safe_unpickling import InertObject, load_plain, load_trusted
from agreid_plugin.trust import SMALL_ARCHIVE, archive_names, is_tar, refuse_bomb

# What the readers of torch, numpy and safetensors raise on a file that is cut off, damaged or something else.
_UNREADABLE = (
    *(RuntimeError, EOFError, ValueError, OSError, LookupError, AttributeError, TypeError, AssertionError),
    *(MemoryError, OverflowError, struct.error, zipfile.BadZipFile, zlib.error, SafetensorError),
    pickle.UnpicklingError,
)
RECORD = "data.pkl"  # of the modules of a TorchScript archive
MAX_DEPTH = 100  # modules in modules
STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
"""Storage types of a TorchScript archive and their dtypes."""
_WITH_NAN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
Content = TypeVar("Content")


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a weight file by name: a checkpoint (see `read_checkpoint`) or a TorchScript archive.

    Other values between the tensors, as a count of steps, are left out.

    Raises:
        InputError: the file is missing, cannot be read, or holds something else than plain tensors by name, of numbers.
    """
    stored = read_checkpoint(path)["model"]
    tensors = {str(name): value for name, value in stored.items() if isinstance(value, Tensor)}
    if stored and not tensors:
        raise InputError(f"{path} is no checkpoint: it holds no tensors by name")
    for name, value in tensors.items():
        if problem := _find_problem(value):
            raise InputError(f"{path}: {name[:200]} {problem}")
    return tensors


def _find_problem(tensor: Tensor) -> str:
    """Say why a tensor cannot hold weights; empty if it can."""
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
    """Read the content of a weight file without running code stored in it.

    A `.safetensors` file and a TorchScript archive are tensors by name; any other is torch's. Objects of mmengine and
    numpy between the tensors are left out, see `load_plain`. A file that names other classes is loaded, and its code
    run, only after `agreid_plugin.trust.trust(True)`.

    Args:
        path: the file.
        map_location: where the tensors of torch's files go, as for `torch.load`.

    Raises:
        InputError: the file is missing, cannot be read, or holds more than tensors and plain values.
    """
    require_readable(path)
    if Path(path).suffix == ".safetensors":
        return _read(path, "a .safetensors file", load_file)
    if is_torchscript(path):
        return _read(path, "a TorchScript archive", read_torchscript)
    return _read(path, "a checkpoint", partial(_load, map_location=map_location))


def require_readable(path: str | Path) -> None:
    """Refuse a weight file that is not there, that would fill the memory, or of torch's oldest format.

    Releases of torch before 2.6 run code in a tar archive even with `weights_only=True`.
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
        raise input_error_like(error, f"{path} cannot be read as {what}: {first_line(error)}") from None


def is_torchscript(path: str | Path) -> bool:
    """Return whether a file is a TorchScript archive: it holds code and its constants.

    `torch.load` goes by torch's own reader of zip files when it runs the code: Python's and torch's are both asked.
    """
    inside = [name.partition("/")[2] for name in archive_names(path)]
    return any(name == "constants.pkl" or name.startswith("code/") for name in (*inside, *_list_records(path)))


def _list_records(path: str | Path) -> list[str]:
    try:
        return torch._C.PyTorchFileReader(str(path)).get_all_records()
    except RuntimeError:
        return []


def read_torchscript(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of an archive by name: parameters, buffers and tensors that are plain attributes.

    Raises:
        pickle.UnpicklingError: the record is damaged; many other errors can say so, too.
    """
    with zipfile.ZipFile(path) as archive:
        record = next((name for name in archive.namelist() if name.partition("/")[2] == RECORD), None)
        if record is None:
            raise ValueError("it has no record of its modules: save it with torch 1.4 or newer")
        with archive.open(record) as stream:
            root = _Unpickler(stream, archive, record.removesuffix(RECORD)).load()
    return dict(_walk_tensors(root, "", 0))


class _Module(InertObject):
    """The attributes of one module of an archive."""

    attributes: Any = None

    def __setstate__(self, state: Any) -> None:
        self.attributes = state


class _Unpickler(pickle.Unpickler):
    """Makes tensors; any other class that an archive names becomes an inert one."""

    def __init__(self, stream: Any, archive: zipfile.ZipFile, folder: str):
        super().__init__(stream)
        self._archive, self._folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        return type(name, (_Module,), {"__module__": module})

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, _, count = pid
        content = bytearray(self._archive.read(f"{self._folder}data/{key}"))
        if not isinstance(dtype, torch.dtype) or len(content) != count * dtype.itemsize:
            raise pickle.UnpicklingError(f"data/{key} is of another size than its tensor")
        return torch.frombuffer(content, dtype=dtype) if count else torch.empty(0, dtype=dtype)


def _rebuild_tensor(stored: Tensor, offset: int, size: tuple, stride: tuple, *_: Any) -> Tensor:
    return torch.as_strided(stored, size, stride, offset)


def _walk_tensors(module: Any, prefix: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    if depth > MAX_DEPTH:
        raise RecursionError("its modules are nested too deeply")
    attributes = getattr(module, "attributes", None)
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        if isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, _Module):
            yield from _walk_tensors(value, f"{prefix}{name}.", depth + 1)
