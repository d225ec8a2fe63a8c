"""`fastreid list`: what can be named in a configuration."""

from __future__ import annotations

import argparse

EXAMPLES = """examples:
  fastreid list                 everything
  fastreid list datasets
  fastreid list keys            the configuration keys this plugin adds
"""


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "list",
        help="list what a configuration can name",
        epilog=EXAMPLES,
    )
    kinds = ("architectures", "backbones", "heads", "datasets", "losses", "transforms", "samplers", "keys")
    parser.add_argument("kind", nargs="?", choices=kinds, metavar="KIND", help=f"one of {', '.join(kinds)}")
    parser.set_defaults(run=_list)


def _list(args: argparse.Namespace) -> None:
    from agreid_plugin.hosts.fastreid import catalog

    for kind, entries in catalog.catalog().items():
        if args.kind in (None, kind):
            print(f"{kind}:")
            width = max(len(name) for name in entries)
            for name, doc in entries.items():
                print(f"  {name:<{width}}  {doc}".rstrip())
