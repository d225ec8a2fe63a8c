"""Stand-in for torch in a host's modules, whose `torch.load` runs no code stored in weight files."""

from __future__ import annotations

import os
from functools import wraps
from types import ModuleType
from typing import Any

import torch

from agreid_plugin.errors import InputError
from agreid_plugin.nn.checkpoints import read_content


class _Content(dict):
    """The content of a file; a missing entry is an error of one line."""

    path = ""

    def __missing__(self, key: str) -> Any:
        raise InputError(f"{self.path} has no {key!r}, where weights for this network are expected: take another file")


class SafeTorch(ModuleType):
    """The module `torch` with another `load`, for a host's module that calls `torch.load`."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.hub = _SafeHub("torch.hub")
        self.files_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def load(self, file: Any, map_location: Any = "cpu", **_: Any) -> Any:
        """Read a file; see `read_content`."""
        self.files_read += 1
        if not isinstance(file, str | os.PathLike):  # it has been opened, or downloaded into memory
            return torch.load(file, map_location=map_location, weights_only=True)
        content = read_content(os.path.expanduser(file))
        if isinstance(content, dict):
            content = _Content(content)
            content.path = file
        return content


class _SafeHub(ModuleType):
    """The module `torch.hub`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.hub, name)

    @staticmethod
    @wraps(torch.hub.load_state_dict_from_url)
    def load_state_dict_from_url(url: str, **options: Any) -> Any:
        """Download a file and read it."""
        return torch.hub.load_state_dict_from_url(url, **{**options, "weights_only": True})
