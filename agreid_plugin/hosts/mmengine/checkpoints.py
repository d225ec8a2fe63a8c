"""mmengine's checkpoints, read whole but without running code stored in them.

Beside tensors a checkpoint holds mmengine's own records, which torch's reader of weights refuses. This one knows them,
numpy's arrays and plain containers by name, makes these and nothing else.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

from agreid_plugin.data.datasets.files import leaves
from agreid_plugin.errors import InputError, first_line
from agreid_plugin.nn.checkpoints import read_content, require_readable
from agreid_plugin.nn.pickles import load_trusted
from agreid_plugin.nn.scripts import is_script

KNOWN = {
    "builtins": "bool bytearray bytes complex dict float frozenset int list range set slice str tuple",
    "collections": "Counter OrderedDict defaultdict deque",
    "_codecs": "encode",  # how the bytes of an array are written
    "torch": "Size Tensor device",
    "torch._utils": "_rebuild_parameter _rebuild_tensor _rebuild_tensor_v2",
    "torch.nn.parameter": "Parameter",
    "torch.serialization": "_get_layout",
    "numpy": "dtype ndarray",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy._core.multiarray": "_reconstruct scalar",
    "mmengine.logging.history_buffer": "HistoryBuffer",
    "mmengine.config.config": "ConfigDict",
}
"""Module -> what a checkpoint may ask of it."""


def _method_of_history(owner: Any, name: str) -> Callable:
    """Stand in for `getattr`, by which a buffer's statistics are stored."""
    if owner is not HistoryBuffer or name.startswith("_"):
        raise InputError(f"it asks for {name!r} of {owner!r}")
    return getattr(HistoryBuffer, name)


class _Unpickler(pickle._Unpickler):  # that of Python, of which each step can be changed
    dispatch: ClassVar = dict(pickle._Unpickler.dispatch)

    def load_build(self) -> None:
        """Give an object its state; a class, of which all objects would have it, is left alone."""
        if isinstance(self.stack[-2], type) or callable(self.stack[-2]):
            raise InputError(f"it asks for a change of {self.stack[-2]!r}")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> Any:
        module = "builtins" if module == "__builtin__" else module  # as Python 2 called it, and pickle still does
        if (module, name) == ("builtins", "getattr"):
            return _method_of_history
        if name in KNOWN.get(module, "").split():
            return getattr(import_module(module), name)
        kind = getattr(torch if module == "torch" else np, name, None) if module in ("torch", "numpy") else None
        if isinstance(kind, torch.dtype) or (isinstance(kind, type) and issubclass(kind, np.generic)):
            return kind
        raise InputError(f"it asks for {module}.{name}")


PICKLE = SimpleNamespace(
    __name__=__name__, Unpickler=_Unpickler, load=lambda file, **options: _Unpickler(file, **options).load()
)
"""What torch calls in the place of the module `pickle`."""


def load_from_local(filename: str, map_location: Any = None) -> dict[str, Any]:
    """Read a checkpoint file for mmengine; one of `.safetensors`, or a TorchScript archive, is a state dict.

    Raises:
        InputError: the file is missing, cannot be read, or asks for more than what `KNOWN` names.
    """
    path = Path(filename).expanduser()
    require_readable(path)
    if path.suffix == ".safetensors" or is_script(path):
        return {"state_dict": read_content(path)}
    content = _load(path, map_location)
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}, not a checkpoint")
    return content


def _load(path: Path, map_location: Any) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of formats that are old
            return torch.load(path, map_location=map_location, pickle_module=PICKLE, weights_only=False)
    except InputError as error:
        return load_trusted(path, error, map_location=map_location)
    except Exception as error:
        raise InputError(f"{path} cannot be read as a checkpoint: {first_line(error)}") from None


def load_from_url(
    url: str, model_dir: str | None = None, map_location: Any = None, progress: bool = True, **_: Any
) -> dict[str, Any]:
    """Download a checkpoint, unless it has been, and read it as `load_from_local` does."""
    folder = Path(model_dir or Path(torch.hub.get_dir()) / "checkpoints")
    name = urlsplit(url).path.rpartition("/")[2]
    if leaves(name) or name in ("", "."):
        raise InputError(f"{url} names no file: name a checkpoint")
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(folder / name), progress=progress)
        except OSError as error:
            raise InputError(f"{url} cannot be downloaded: {first_line(error)}") from None
    return load_from_local(str(folder / name), map_location)
