"""`fastreid list`: what can be named in a configuration."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import groupby

EXAMPLES = """examples:
  fastreid list                 everything
  fastreid list components      everything that is registered, by kind and by the package it comes from
  fastreid list datasets
  fastreid list keys            the configuration keys this plugin adds
"""
COMPONENTS, KEYS = "components", "keys"
KINDS = ("architectures", "backbones", "heads", "losses", "transforms", "samplers", "datasets", KEYS, COMPONENTS)


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "list",
        help="list what a configuration can name",
        description="List what a configuration can name, with the package that it comes from: agreid_plugin, fast-reid "
        "or another that has registered its own.",
        epilog=EXAMPLES,
    )
    parser.add_argument("kind", nargs="?", choices=KINDS, metavar="KIND", help=f"one of {', '.join(KINDS)}")
    parser.set_defaults(run=_list)


def _list(args: argparse.Namespace) -> None:
    from agreid_plugin.hosts.fastreid import catalog

    for kind, entries in catalog.components().items():
        if args.kind == COMPONENTS:
            _print_by_owner(kind, entries)
        elif args.kind in (None, kind):
            _print_table(kind, [(entry.name, entry.owner, entry.doc) for entry in entries])
    if args.kind in (None, KEYS):
        _print_table(KEYS, catalog.keys().items())


def _print_by_owner(kind: str, entries: list) -> None:
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
