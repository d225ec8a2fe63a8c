"""Checkpoints of mmengine as tensors and plain values: so they are written, and read without running code in them.

A Runner puts objects between its tensors: the histories of its message hub, numbers and arrays of numpy. They are
written as tensors and plain values, and the histories are made again of these. A run that uses nothing of ours has its
histories as mmengine writes them, too. What mmengine itself has written is read without its objects.

A model of ours holds the method under `method`, and the tensors there have the names of fast-reid's model. So a file
goes from host to host by adding or removing that prefix; `agreid_plugin.inference.weights` removes it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from mmengine.logging import HistoryBuffer, MessageHub
from torch import Tensor

from agreid_plugin.data.files import leads_outside
from agreid_plugin.errors import InputError, first_line, input_error_like
from agreid_plugin.nn.checkpoints import is_torchscript, read_content

HUB = "message_hub"
SCALARS, INFO, RESUMED = "log_scalars", "runtime_info", "resumed_keys"
"""What a message hub has in a checkpoint."""
HISTORIES = "histories"
"""What we add to it: its `log_scalars` as plain values."""
PLAIN = (dict, OrderedDict, Counter, list, tuple, torch.Size)
"""Containers that torch's reader of weights makes."""


def make_plain(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return a Runner's checkpoint with numpy's values and the message hub's histories as tensors and plain values.

    A run that uses nothing of ours may be resumed without us: there the histories stand beside mmengine's.
    """
    hub, meta = checkpoint.get(HUB), checkpoint.get("meta")
    if isinstance(hub, dict) and SCALARS in hub:
        histories = {name: _split(history) for name, history in hub[SCALARS].items()}
        is_ours = "agreid_plugin" in str(meta.get("cfg", "") if isinstance(meta, dict) else "")
        checkpoint = {**checkpoint, HUB: {**hub, SCALARS if is_ours else HISTORIES: histories}}
    return _convert(checkpoint)


def _split(history: Any) -> Any:
    if not isinstance(history, HistoryBuffer):
        return history
    values, counts = history.data
    return {"values": values, "counts": counts, "max_length": history.max_length}


def _convert(value: Any) -> Any:
    """Return a value without numpy's; one that has none is returned itself, with all that torch has put on it."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return _convert_array(value)
    if isinstance(value, dict):
        before = [part for item in value.items() for part in item]
    elif isinstance(value, list | tuple):
        before = list(value)
    else:
        return value
    after = [_convert(part) for part in before]
    if type(value) in PLAIN and all(one is other for one, other in zip(before, after, strict=True)):
        return value
    if isinstance(value, dict):
        return dict(zip(after[::2], after[1::2], strict=True))
    return after if isinstance(value, list) else tuple(after)


def _convert_array(array: np.ndarray) -> Any:
    try:
        return torch.from_numpy(np.array(array))
    except (TypeError, ValueError):  # of texts, or of numbers that torch does not have
        return _convert(array.tolist())


def load_from_local(filename: str, map_location: Any = None) -> dict[str, Any]:
    """Read a checkpoint file for mmengine; one of `.safetensors`, or a TorchScript archive, is a state dict.

    Raises:
        InputError: the file is missing, cannot be read, or asks for code, see `read_content`.
    """
    path = Path(filename).expanduser()
    content = read_content(path, map_location)
    if path.suffix == ".safetensors" or is_torchscript(path):
        return {"state_dict": content}
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}, not a checkpoint")
    if "state_dict" in content and not isinstance(content.get(HUB), MessageHub):  # one of a file that is trusted
        content[HUB] = _restore_hub(path, content.get(HUB))
    return content


def _restore_hub(path: Path, stored: Any) -> dict[str, dict]:
    """Return what a message hub resumes from: its histories made again, without names of what was left out."""
    parts = stored if isinstance(stored, dict) else {}
    scalars, info, resumed = (
        part if isinstance(part := parts.get(name), dict) else {}
        for name in (HISTORIES if HISTORIES in parts else SCALARS, INFO, RESUMED)
    )
    histories = {name: _restore(path, name, history) for name, history in scalars.items()}
    names = histories.keys() | info.keys()
    return {SCALARS: histories, INFO: info, RESUMED: {name: resumed[name] for name in resumed if name in names}}


def _restore(path: Path, name: str, stored: Any) -> Any:
    if not isinstance(stored, dict):  # a history of a file that is trusted, or what mmengine itself refuses
        return stored
    try:
        values, counts = (stored[part].cpu().numpy() for part in ("values", "counts"))
        return HistoryBuffer(values, counts, stored["max_length"])
    except (LookupError, TypeError, AttributeError, AssertionError, RuntimeError, ValueError):
        raise InputError(f"{path} is damaged: {HUB}.{SCALARS}.{str(name)[:60]} is no history") from None


def load_from_url(
    url: str,
    model_dir: str | None = None,
    map_location: Any = None,
    progress: bool = True,
    check_hash: bool = False,
    file_name: str | None = None,
    weights_only: bool = False,  # noqa: ARG001 - it always is
) -> dict[str, Any]:
    """Download a checkpoint, unless it has been, and read it as `load_from_local` does; arguments as torch has them."""
    folder = Path(model_dir or Path(torch.hub.get_dir()) / "checkpoints")
    name = file_name or urlsplit(url).path.rpartition("/")[2]
    if leads_outside(name) or name in ("", "."):
        raise InputError(f"{url} names no file: name a checkpoint")
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            prefix = torch.hub.HASH_REGEX.search(name) if check_hash else None
            torch.hub.download_url_to_file(url, str(folder / name), prefix and prefix[1], progress=progress)
        except OSError as error:
            raise input_error_like(error, f"{url} cannot be downloaded: {first_line(error)}") from None
    return load_from_local(str(folder / name), map_location)


METHOD = "method."
PARALLEL = "module."  # what data-parallel training puts before names
FASTREID = "model"  # where a checkpoint of fast-reid has its tensors


def rename_from_fastreid(state: MutableMapping[str, Any], prefix: str = "") -> None:
    """Give the tensors of fast-reid's checkpoint the names of ours, in place; ours stay as they are.

    Args:
        state: tensors by name, or a whole checkpoint of fast-reid.
        prefix: what stands before the model's names, with a point at its end.
    """
    if not prefix and isinstance(state.get(FASTREID), Mapping):
        tensors = dict(state[FASTREID])
        state.clear()
        state.update(tensors)
    names = [name for name, value in state.items() if name.startswith(prefix) and isinstance(value, Tensor)]
    own = [name.removeprefix(prefix) for name in names]
    if any(name.startswith(METHOD) for name in own):
        return
    for name, short in zip(names, own, strict=True):
        state[f"{prefix}{METHOD}{short.removeprefix(PARALLEL)}"] = state.pop(name)
