"""The tensors of TorchScript archives, as OpenAI's of CLIP, read without loading the code in them.

`torch.jit.load` runs what an archive says while it makes its modules. Here its record of the modules is read with inert
stand-ins for all of them, and their tensors are named as a state dict names them.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agreid_plugin.nn.safe_unpickling import StandIn
from agreid_plugin.trust import archive_names

RECORD = "data.pkl"
DEEPEST = 100  # modules in modules
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
"""What an archive calls the types of its numbers."""


def is_script(path: str | Path) -> bool:
    """Tell a TorchScript archive from a file of tensors: it holds code, and constants of it.

    torch has a reader of its own for zip files, which decides whether `torch.load` would run the code: both are asked.
    """
    inside = [name.partition("/")[2] for name in archive_names(path)]
    return any(name == "constants.pkl" or name.startswith("code/") for name in (*inside, *_records(path)))


def _records(path: str | Path) -> list[str]:
    try:
        return torch._C.PyTorchFileReader(str(path)).get_all_records()
    except RuntimeError:
        return []


def read_script(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of an archive by name: parameters and buffers, and tensors that are mere attributes.

    Raises:
        pickle.UnpicklingError: the record is damaged; so many other errors say.
    """
    with zipfile.ZipFile(path) as archive:
        record = next((name for name in archive.namelist() if name.partition("/")[2] == RECORD), None)
        if record is None:
            raise ValueError("it has no record of its modules: save it with torch 1.4 or newer")
        with archive.open(record) as stream:
            root = _Unpickler(stream, archive, record.removesuffix(RECORD)).load()
    return dict(_tensors(root, "", 0))


class _Module(StandIn):
    """Holds what an archive says of one of its modules."""

    attributes: Any = None

    def __setstate__(self, state: Any) -> None:
        self.attributes = state


class _Unpickler(pickle.Unpickler):
    """Makes tensors; whatever else an archive names becomes a stand-in."""

    def __init__(self, stream: Any, archive: zipfile.ZipFile, folder: str):
        super().__init__(stream)
        self._archive, self._folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        return type(name, (_Module,), {"__module__": module})

    def persistent_load(self, told: Any) -> Tensor:
        _, dtype, key, _, count = told
        content = bytearray(self._archive.read(f"{self._folder}data/{key}"))
        if not isinstance(dtype, torch.dtype) or len(content) != count * dtype.itemsize:
            raise pickle.UnpicklingError(f"data/{key} is of another size than its tensor")
        return torch.frombuffer(content, dtype=dtype) if count else torch.empty(0, dtype=dtype)


def _tensor(stored: Tensor, offset: int, size: tuple, stride: tuple, *_: Any) -> Tensor:
    return torch.as_strided(stored, size, stride, offset)


def _tensors(module: Any, prefix: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    if depth > DEEPEST:
        raise RecursionError("its modules are nested too deeply")
    attributes = getattr(module, "attributes", None)
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        if isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, _Module):
            yield from _tensors(value, f"{prefix}{name}.", depth + 1)
