"""Configuration of a run, for either host: recipes by name, `KEY VALUE` overrides, warm-up, names of parameters."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from agreid_plugin.data.files import StrictLoader
from agreid_plugin.errors import InputError

UNREADABLE = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)
"""How Python says that a text is no value: `{[1]: 2}` is a TypeError."""

PACKAGE = Path(__file__).parents[1]
SHIPPED = "shipped"
"""Folder of the package into which `setup.py` puts them."""
RECIPES = PACKAGE / SHIPPED if (PACKAGE / SHIPPED).is_dir() else PACKAGE.parent
"""Has `projects` and `configs`."""


def find_recipe(name: str, recipes: Path = RECIPES) -> str:
    """Return a file as it is named if it is there, else the recipe of that name, as `ViSA/cargo.yml`."""
    places = (Path(name), recipes / "projects" / name, recipes / name)
    return next((str(place) for place in places if place.is_file()), name)


def fit_warmup(warmup: int, iterations: int, left: int = 0) -> int:
    """Return a warm-up that fits into a run: as it is if it leaves enough of the run, else half of the run.

    Half is the first iteration behind the middle: fast-reid's cosine by epochs would fall to its least at once behind
    a warm-up that fills its epochs.

    Args:
        warmup: iterations of warm-up.
        iterations: those of the run.
        left: how many the schedule behind it needs.
    """
    return warmup if warmup <= iterations - left else max(min(iterations // 2 + 1, iterations - 1), 0)


def describe_shortening(warmup: int, fitted: int, iterations: int) -> str:
    """Say that a warm-up was shortened; nothing if it was not."""
    if fitted == warmup:
        return ""
    return f"a warm-up of {warmup} iterations does not fit into the run's {iterations}: shortened to {fitted}"


def is_below(name: str, module: str) -> bool:
    """Return whether a parameter is a module's, or of a module within it, by their names."""
    return name == module or name.startswith(f"{module}.")


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
