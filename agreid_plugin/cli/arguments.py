"""Options that several commands take, and checks of their values."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from agreid_plugin.errors import InputError
from agreid_plugin.trust import OPTION


def add_config(
    parser: argparse.ArgumentParser,
    required: bool = True,
    what: str = "configuration: .yml of fast-reid, .py of mmengine",
) -> None:
    """Add the option that names a configuration."""
    parser.add_argument("--config", "--config-file", dest="config_file", required=required, metavar="FILE", help=what)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add what changes keys of the configuration."""
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="keys of the configuration to change")


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the option that lets weight files run code."""
    parser.add_argument(
        OPTION,
        action="store_true",
        help="load weight files that hold more than tensors, running the code in them: only of people you trust",
    )


def size(text: str) -> tuple[int, int]:
    """Read HEIGHTxWIDTH."""
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise argparse.ArgumentTypeError(f"{text!r} is not HEIGHTxWIDTH, for example 256x128")
    return int(height), int(width)


def require_counts(args: argparse.Namespace, *names: str) -> None:
    """Refuse options that count something, as far as the command has them and they are given, below 1."""
    for name in names:
        value = getattr(args, name, None)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} is {value}, but must be 1 or more")


def check_file(option: str, path: Path, endings: Sequence[str], may_exist: bool = False) -> None:
    """Refuse a file before anything is computed, if it could not be written then."""
    if path.suffix.lower() not in endings:
        raise InputError(f"{option} {path}: end its name with {endings[0]}")
    if path.exists() and not may_exist:
        raise InputError(f"{option} {path} exists already; choose another name")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{option} {path}: its folder does not exist")
    if not os.access(path.absolute().parent, os.W_OK):
        raise InputError(f"{option} {path}: its folder cannot be written")
