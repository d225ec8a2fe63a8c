"""Reading arrays out of npz files: nothing that runs code, each complaint one line naming the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from agreid_plugin.data.files import existing, parse_json, shown
from agreid_plugin.errors import InputError, first_line
from agreid_plugin.trust import refuse_bomb


def read_arrays(path: str | Path, what: str) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file by name.

    Args:
        path: the file.
        what: it should be, for complaints.
    """
    path = existing(path)
    if not path.is_file():
        raise InputError(f"{path}: not a file")
    refuse_bomb(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except Exception as error:  # zip, zlib and numpy raise a dozen kinds, depending on where the file is broken
        raise InputError(f"{path}: not {what}: {shown(first_line(error))}") from error


def told_in(array: np.ndarray, where: object) -> Any:
    """Return what the JSON text in an array of bytes says."""
    try:
        text = array.tobytes().decode()
    except UnicodeDecodeError:
        raise InputError(f"{where}: not UTF-8 text") from None
    return parse_json(where, text)
