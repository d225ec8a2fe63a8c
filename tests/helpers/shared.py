"""Files that all workers of these tests share: one of them makes what the others only read."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def common_folder(factory: pytest.TempPathFactory) -> Path:
    """The folder of this session that all workers have."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder with what `make` writes into it, by the first worker that asks."""
    folder = common_folder(factory) / name
    with locked(folder.with_suffix(".lock")):
        if not (made := folder.with_suffix(".made")).exists():
            folder.mkdir()
            make(folder)
            made.touch()
    return folder


@contextmanager
def locked(path: Path, shared: bool = False) -> Iterator[None]:
    """Wait until no other process holds a lock, or only others that share it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
