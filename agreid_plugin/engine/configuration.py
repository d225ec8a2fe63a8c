"""`KEY VALUE ...` on a command line, read alike for both hosts."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import yaml

from agreid_plugin.data.files import StrictLoader
from agreid_plugin.errors import InputError

UNREADABLE = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)
"""How Python says that a text is no value: `{[1]: 2}` is a TypeError."""


def pairs(overrides: Sequence[str], folder: str, weights: str) -> list[tuple[str, str]]:
    """Return the keys with their values, as they are written.

    Args:
        overrides: keys and values by turns.
        folder: the host's key of the run's folder.
        weights: the host's key of weights that a run starts from.

    Raises:
        InputError: a file in the place of a key, `key=value`, or a key without a value.
    """
    if overrides and overrides[0].endswith((".pth", ".pt")):
        raise InputError(
            f"{overrides[0]!r} is not a KEY: --resume takes no file, it continues the run in {folder}; "
            f"to start from weights write {weights} {overrides[0]}"
        )
    for text in overrides[::2]:
        if "=" in text:
            raise InputError(f"command line: write {text.replace('=', ' ', 1)!r} instead of {text!r}")
    if len(overrides) % 2:
        raise InputError(f"command line: overrides come as KEY VALUE pairs, {overrides[-1]!r} has no value")
    return list(zip(overrides[::2], overrides[1::2], strict=True))


def literal(text: str) -> Any:
    """Return a value that is written as in Python or as in a YAML recipe, and any other text as it is.

    Of YAML these are lists, mappings, true, false and null: a bare word such as `yes` stays the text that keys take.
    """
    with suppress(*UNREADABLE):
        return literal_eval(text)
    if text.lstrip().startswith(("[", "{")) or text in ("true", "false", "null"):
        with suppress(yaml.YAMLError, ValueError):
            return yaml.load(text, StrictLoader)
    return text
