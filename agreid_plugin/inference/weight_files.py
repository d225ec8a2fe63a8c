"""Which weight file is this? Told by its hash, by the one in its name, and by what is in it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import yaml
from torch import Tensor

from agreid_plugin.engine.catalog import Finding
from agreid_plugin.errors import InputError
from agreid_plugin.nn.checkpoints import is_script, read_arrays, read_tensors, require_file

KNOWN = Path(__file__).with_name("known_weights.yml")
ENDINGS = (".pth", ".pt", ".safetensors", ".npz")
FOLDERS = ("weights", "pretrained")
"""Where weight files are looked for, beside the folder in $FASTREID_WEIGHTS; recipes name the second."""
IN_NAME = re.compile(r"-(?=\d*[a-f])([0-9a-f]{8,64})$")
"""The first digits of a file's SHA-256 at the end of its name, as torch's hub has it; a date is none."""
PIECE = 1 << 20


def found_files() -> list[Path]:
    """Return the weight files in the folders where they are looked for, sorted."""
    folders = [os.environ.get("FASTREID_WEIGHTS"), *FOLDERS]
    return sorted(
        path
        for folder in folders
        if folder and os.path.isdir(folder)
        for path in Path(folder).iterdir()
        if path.suffix in ENDINGS and path.is_file()
    )


def examined(paths: Iterable[str | Path]) -> list[Finding]:
    """Say of each weight file what it is, and whether it is whole."""
    return [_examined(Path(path)) for path in paths]


def _examined(path: Path) -> Finding:
    try:
        require_file(path)
        digest = sha256(path)
        held = _held(path)
    except InputError as error:
        return Finding(False, str(error))
    except OSError as error:
        return Finding(False, f"{path} cannot be read: {error.strerror or error}")
    expected = IN_NAME.search(path.stem)
    if expected and not digest.startswith(expected[1]):
        said = f"its name says sha256 {expected[1]}, its content has {digest[: len(expected[1])]}"
        return Finding(False, f"{path}: {said}: damaged, or another file under this name; {held}")
    name = known().get(digest) or ("as its name says" if expected else "not known by its hash")
    return Finding(True, f"{path}: {name}; {held}; sha256 {digest[:12]}")


def sha256(path: str | Path, before: bytes = b"") -> str:
    """Return the SHA-256 of a file, or of something with the file behind it, in hexadecimal digits."""
    digest = hashlib.sha256(before)
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


@cache
def known() -> dict[str, str]:
    """Return SHA-256 -> what the file is."""
    return yaml.safe_load(KNOWN.read_text(encoding="utf-8"))


def _held(path: Path) -> str:
    tensors = read_arrays(path) if path.suffix == ".npz" else read_tensors(path)
    return f"{_format(path)}, {len(tensors)} tensors, {_millions(tensors.values())} M numbers"


def _format(path: Path) -> str:
    if path.suffix in (".npz", ".safetensors"):
        return path.suffix[1:]
    return "TorchScript" if is_script(path) else "torch"


def _millions(tensors: Iterable[Tensor]) -> str:
    return f"{sum(tensor.numel() for tensor in tensors) / 1e6:.3g}"
