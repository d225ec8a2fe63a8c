"""`fastreid report`: does run B beat run A?"""

from __future__ import annotations

import argparse
from pathlib import Path

from agreid_plugin.errors import InputError, unknown

EXAMPLES = """examples:
  fastreid report runs/vit/results.json runs/visa/results.json
  fastreid report runs/vit runs/visa --protocol CARGO/A2G
"""


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "report",
        help="compare two runs' results",
        description="Set the numbers of two runs side by side, protocol by protocol, and tell by a paired bootstrap "
        "over query identities whether B beats A. Different protocols, query sets or view sources are refused.",
        epilog=EXAMPLES,
    )
    parser.add_argument("a", metavar="A", help="results.json of a run, or its folder")
    parser.add_argument("b", metavar="B", help="results.json of another")
    parser.add_argument("--protocol", metavar="NAME", help="only this one, as CARGO/A2G")
    parser.add_argument("--draws", type=int, default=1000, metavar="N", help="bootstrap draws (default: 1000)")
    parser.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> None:
    from agreid_plugin.evaluation import compare, comparison_table, load_results

    runs = [
        {entry.protocol: entry for entries in load_results(path).values() for entry in entries.values()}
        for path in (args.a, args.b)
    ]
    names = [args.protocol] if args.protocol else [name for name in runs[0] if name in runs[1]]
    for name in names:
        for path, run in zip((args.a, args.b), runs, strict=True):
            if name not in run:
                raise unknown(f"{path}: protocol", name, run)
    if not names:
        raise InputError(f"no protocol in common: A has {', '.join(runs[0])}; B has {', '.join(runs[1])}")
    for name in names:
        pair = [run[name] for run in runs]
        print(comparison_table({f"A {_name(args.a)}": pair[0], f"B {_name(args.b)}": pair[1]}), "\n")
        for number, difference in compare(*pair, draws=args.draws).items():
            print(f"  {number:<8} {difference}")
        print()


def _name(path: str) -> str:
    path = Path(path)
    return (path.parent if path.suffix == ".json" else path).name
