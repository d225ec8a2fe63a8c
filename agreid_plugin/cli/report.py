"""`fastreid report`: does run B beat run A, and how far is it from a paper?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from agreid_plugin.errors import InputError, require_known

if TYPE_CHECKING:
    from agreid_plugin.evaluation import Metrics

EXAMPLES = """examples:
  fastreid report runs/vit/results.json runs/visa/results.json
  fastreid report runs/vit runs/visa --protocol CARGO/A2G
  fastreid report runs/visa --paper                the paper of the run's recipe
  fastreid report runs/visa --paper VDT            another: a project's name or a paper.yml
"""


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "report",
        help="compare two runs' results, or a run's with a paper's",
        description="Set the numbers of two runs side by side, protocol by protocol, and tell by a paired bootstrap "
        "over query identities whether B beats A. Different protocols, query sets or view sources are refused. With "
        "--paper, set one run's numbers beside those that a paper prints, and mark what does not compare.",
        epilog=EXAMPLES,
    )
    parser.add_argument("a", metavar="A", help="results.json of a run, or its folder")
    parser.add_argument("b", metavar="B", nargs="?", help="results.json of another")
    parser.add_argument("--paper", nargs="?", const="", metavar="P", help="a paper instead of another run")
    parser.add_argument("--protocol", metavar="NAME", help="only this one, as CARGO/A2G")
    parser.add_argument("--draws", type=int, default=1000, metavar="N", help="bootstrap draws (default: 1000)")
    parser.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> None:
    if args.paper is not None and args.b is not None:
        raise InputError("--paper sets one run beside a paper: leave B out")
    if args.paper is None and args.b is None:
        raise InputError("report compares two runs, A and B, or one with a paper: name B or add --paper")
    if args.paper is None:
        _two_runs(args)
    else:
        _with_paper(args)


def _with_paper(args: argparse.Namespace) -> None:
    from agreid_plugin.evaluation.paper_report import beside_paper
    from agreid_plugin.hosts.run_card import find_run_card
    from agreid_plugin.hosts.run_papers import paper_for

    run = _entries(args.a)
    if args.protocol:
        require_known(f"{args.a}: protocol", args.protocol, run)
    card = find_run_card(args.a)
    chosen = [run[args.protocol]] if args.protocol else list(run.values())
    print(beside_paper(paper_for(card, args.paper), chosen, card))


def _two_runs(args: argparse.Namespace) -> None:
    from agreid_plugin.evaluation import compare, comparison_table

    runs = [_entries(path) for path in (args.a, args.b)]
    names = [args.protocol] if args.protocol else [name for name in runs[0] if name in runs[1]]
    for name in names:
        for path, run in zip((args.a, args.b), runs, strict=True):
            require_known(f"{path}: protocol", name, run)
    if not names:
        raise InputError(f"no protocol in common: A has {', '.join(runs[0])}; B has {', '.join(runs[1])}")
    for name in names:
        pair = [run[name] for run in runs]
        print(comparison_table({f"A {_name(args.a)}": pair[0], f"B {_name(args.b)}": pair[1]}), "\n")
        for number, difference in compare(*pair, draws=args.draws).items():
            print(f"  {number:<8} {difference}")
        print()


def _entries(path: str) -> dict[str, Metrics]:
    from agreid_plugin.evaluation import load_results

    return {entry.protocol: entry for entries in load_results(path).values() for entry in entries.values()}


def _name(path: str) -> str:
    path = Path(path)
    return (path.parent if path.suffix == ".json" else path).name
