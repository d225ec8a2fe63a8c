"""`fastreid compare`: what do two runs differ in?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

EXAMPLES = """examples:
  fastreid compare runs/mine runs/theirs
  fastreid compare runs/mine/eval runs/theirs/run_card.json --json
"""
WIDEST = 60  # characters of a value in the table; --json has it all


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "compare",
        help="list what two runs differ in",
        description="Hold the run cards of two runs against each other: protocols, datasets, weights, batch, "
        "configuration, seed, code, versions, repairs and devices, the most telling first, with what is known to "
        "explain gaps. Runs of both hosts compare as far as their configurations say the same.",
        epilog=EXAMPLES,
    )
    parser.add_argument("a", metavar="RUN_A", help="a run's folder, or its run_card.json")
    parser.add_argument("b", metavar="RUN_B", help="another")
    parser.add_argument("--json", action="store_true", help="everything as JSON")
    parser.set_defaults(run=_compare)


def _compare(args: argparse.Namespace) -> None:
    from agreid_plugin.hosts.run_card import read_run_card
    from agreid_plugin.hosts.run_differences import HINTS, differences

    found = differences(read_run_card(args.a), read_run_card(args.b))
    if args.json:
        groups = {
            name: {each.name: {"a": each.a, "b": each.b} for each in group}
            for name, group in groupby(found, lambda each: each.group)
        }
        print(json.dumps({"a": args.a, "b": args.b, "differences": groups}, indent=2))
        return
    if not found:
        print("identical in everything recorded")
        return
    print(f"A {args.a}\nB {args.b}")
    for name, group in groupby(found, lambda each: each.group):
        print(f"\n{name}" + (f": {HINTS[name]}" if HINTS[name] else ""))
        _table((each.name, _shown(each.a), _shown(each.b)) for each in group)


def _table(rows: Iterable[tuple[str, str, str]]) -> None:
    rows = [("", "A", "B"), *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split())
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."
