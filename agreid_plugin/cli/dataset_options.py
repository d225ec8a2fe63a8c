"""Datasets on the command line: by name, those of plugins among them, and people's own folders and tables."""

from __future__ import annotations

import argparse
from typing import Any

from agreid_plugin.errors import InputError

OF_OWN = {
    **{name: name for name in ("pattern", "identity_folders", "aerial_cameras", "delimiter", "split")},
    "image_folder": "images",
}
"""Option of a command -> that of the reader of people's own images."""


def add_own(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options of people's own images, a folder or a table of them."""
    parser.add_argument(
        "--pattern", metavar="REGEX", help="own folder: of a file's name, with (?P<pid>...) (default: Market-1501's)"
    )
    parser.add_argument("--identity-folders", action="store_true", help="own folder: it has a folder an identity")
    parser.add_argument("--aerial-cameras", nargs="+", metavar="C", help="own folder or table: the cameras in the air")
    parser.add_argument(
        "--delimiter", type=_delimiter, metavar="C", help=r"own table: what separates columns, \t a tab (default: ,)"
    )
    parser.add_argument(
        "--image-folder", metavar="DIR", help="own table: where relative paths start (default: the table's folder)"
    )


def own_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return what was said of people's own images, for their reader."""
    given = {option: getattr(args, name, None) for name, option in OF_OWN.items()}
    return {option: value for option, value in given.items() if value is not None and value is not False}


def find_dataset(name: str) -> str:
    """Return a dataset's proper name; one that this package does not have is looked for among those of plugins.

    Raises:
        InputError: there is none by that name.
    """
    from agreid_plugin.data.datasets import dataset_name
    from agreid_plugin.host import load_plugins

    try:
        return dataset_name(name)
    except InputError:
        load_plugins()
        return dataset_name(name)


def _delimiter(text: str) -> str:
    return "\t" if text == r"\t" else text
