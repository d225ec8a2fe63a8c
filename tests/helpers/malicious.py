"""Files that would do harm if they were trusted: each would leave a file behind."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

ASKS = ("evil.pth was not loaded", "asks for io.open;", "--trust-checkpoint", "state dict saved alone")
"""What is said of `evil_checkpoint`, when it is called evil.pth."""


class Writes:
    """Pickled as a call that makes a file."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


class Calls:
    """Pickled as a call of a function, whose result may be given a state; it runs where it is loaded without care."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None):
        self.call = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.call


SCALAR, RECONSTRUCT = (value.__reduce__()[0] for value in (np.float64(1), np.arange(1)))
POINTER = bytearray(b"A" * 7 + b"\0")
OBJECTS = Calls(np.dtype, "O8", False, True, state=(3, "|", None, None, None, -1, -1, 0))  # says it holds none
POINTERS = {
    "array": Calls(np.ndarray, (1,), Calls(np.dtype, "O"), POINTER),
    "scalar": Calls(SCALAR, OBJECTS, bytes(POINTER)),
    "filled array": Calls(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (1,), OBJECTS, False, bytes(POINTER))),
    "void": Calls(np.ndarray, (1,), Calls(np.dtype, [("a", "O")]), POINTER),
}
"""Objects of numpy that hold an address of the file's choice, which whoever looks at them goes to."""


def pointing_checkpoint(path: Path, kind: str, **content: Any) -> Path:
    """Write a checkpoint that has Python go to an address, and so die, when its objects are made and looked at."""
    torch.save({**content, "x": Calls(tuple, POINTERS[kind])}, path)
    return path


def evil_checkpoint(path: Path, marker: Path, **content: Any) -> Path:
    """Write a checkpoint that makes the file `marker` when it is unpickled."""
    torch.save({**content, "more": Writes(marker)}, path)
    return path


def evil_yaml(marker: Path) -> str:
    """A value of YAML that makes the file `marker` when it is read without care."""
    return f"!!python/object/apply:builtins.open [{str(marker)!r}, w]"


def slipping_zip(path: Path, inside: dict[str, bytes] | None = None) -> Path:
    """Write a zip file with names that lead out of wherever it would be unpacked."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (inside or {}).items():
            archive.writestr(name, content)
        for name in ("../slipped.txt", "../../slipped.txt", str(path.parent / "slipped.txt"), "a/../../slipped.npy"):
            archive.writestr(zipfile.ZipInfo(name), b"slipped")
    return path


def slipping_tar(path: Path) -> Path:
    """Write a tar archive, which torch once kept weights in, with such a name."""
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("../slipped.txt")
        entry.size = 7
        archive.addfile(entry, io.BytesIO(b"slipped"))
    return path


def zip_bomb(path: Path, name: str, size: int) -> Path:
    """Write a small zip file that holds `size` bytes, all of them zeros."""
    whole = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with whole as archive, archive.open(name, "w", force_zip64=True) as stream:
        for _ in range(size // 2**24):
            stream.write(bytes(2**24))
    return path


def reading_commands(weights: Path, config: Path, images: Path, out: Path) -> dict[str, list[str | Path]]:
    """The commands of both hosts that read a file of weights, but for training; `out` is a folder."""
    model = ("--config", config, "--weights", weights)
    return {
        "eval": ["eval", *model],
        "extract": ["extract", *model, "--images", images, "--out", out / "a.npz"],
        "export": ["export", *model, "--out", out / "a.torchscript", "--format", "torchscript"],
        "index": ["index", "build", *model, "--images", images, "--index", out / "index"],
        "visualize": ["visualize", "ranks", *model, "--out", out / "a.png"],
        "search": ["search", *model, "--gallery", images, "--image", next(images.rglob("*.jpg"))],
    }
