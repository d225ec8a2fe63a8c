"""`fastreid list`: what can be named in a configuration."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from agreid_plugin.errors import InputError
from agreid_plugin.host import HOSTS, installed, load_host

if TYPE_CHECKING:
    from agreid_plugin.engine.catalog import Entry

EXAMPLES = """examples:
  fastreid list                 everything
  fastreid list components      everything that is registered, by kind and by the package it comes from
  fastreid list datasets
  fastreid list keys            the configuration keys this plugin adds to fast-reid
  fastreid list hooks --host mmengine
"""
COMPONENTS, KEYS = "components", "keys"
KINDS = (
    *("architectures", "backbones", "heads", "losses", "parts", "transforms", "samplers", "datasets"),
    *("metrics", "hooks", "schedules", KEYS, COMPONENTS),
)


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "list",
        help="list what a configuration can name",
        description="List what a configuration can name, with the package that it comes from: agreid_plugin, the host "
        "or another that has registered its own.",
        epilog=EXAMPLES,
    )
    parser.add_argument("kind", nargs="?", choices=KINDS, metavar="KIND", help=f"one of {', '.join(KINDS)}")
    parser.add_argument(
        "--host", choices=HOSTS, metavar="HOST", help=f"{' or '.join(HOSTS)} (default: the first that is installed)"
    )
    parser.set_defaults(run=_list)


def _list(args: argparse.Namespace) -> None:
    host = args.host or next(filter(installed, HOSTS), None)
    if args.kind == KEYS and host != "fastreid":
        raise InputError("keys are of fast-reid's configurations: add --host fastreid")
    found, keys = _known(host)
    if args.kind and args.kind not in (*found, KEYS, COMPONENTS):
        raise InputError(f"{host or 'without a host this package'} has no {args.kind}; it has: {', '.join(found)}")
    for kind, entries in found.items():
        if args.kind == COMPONENTS:
            _print_by_owner(kind, entries)
        elif args.kind in (None, kind):
            _print_table(kind, [(entry.name, entry.owner, entry.doc) for entry in entries])
    if args.kind in (None, KEYS) and keys:
        _print_table(KEYS, keys.items())


def _known(host: str | None) -> tuple[dict[str, list[Entry]], dict[str, str]]:
    """Return kind -> entries, and the sentences of configuration keys."""
    if host is None:
        from agreid_plugin.engine.catalog import list_host_free

        return list_host_free(), {}
    catalog = load_host(host, "commands.catalog")
    return catalog.components(), catalog.keys() if host == "fastreid" else {}


def _print_by_owner(kind: str, entries: list[Entry]) -> None:
    print(f"{kind}:")
    for owner, owned in groupby(sorted(entries, key=lambda entry: entry.owner), key=lambda entry: entry.owner):
        _print_table(owner, [(entry.name, entry.doc) for entry in owned], indent=2)


def _print_table(title: str, rows: Iterable[tuple[str, ...]], indent: int = 0) -> None:
    """Print rows under a title, every column but the last as wide as its longest value."""
    rows = list(rows)
    print(f"{'':{indent}}{title}:")
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)] if rows else []
    for row in rows:
        cells = [f"{value:<{width}}" for value, width in zip(row, widths, strict=False)]
        print(f"{'':{indent + 2}}{'  '.join([*cells, row[-1]])}".rstrip())
