"""`fastreid report`: a run's results, beside those of other runs or of a paper, and what two runs differ in."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agreid_plugin.errors import InputError, require_known

if TYPE_CHECKING:
    from agreid_plugin.engine.run_comparison import Difference
    from agreid_plugin.evaluation import Metrics

Results = dict[str, "Metrics"]

EXAMPLES = """examples:
  fastreid report runs/visa                        its results
  fastreid report runs/vit runs/visa               which is better, and what the runs differ in
  fastreid report runs/vit runs/vdt runs/visa --protocol CARGO/A2G
  fastreid report runs/visa --paper                the paper of the run's recipe
  fastreid report runs/visa --paper VDT            another: a project's name or a paper.yml
"""
MAX_WIDTH = 60  # characters of a value in the table of differences; --json has it all


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "report",
        help="show a run's results, beside those of other runs or of a paper",
        description="Show the results of a run. Of several runs, set the numbers side by side, protocol by protocol; "
        "different protocols, query sets or view sources are refused. Of two, A and B, also test by a paired "
        "bootstrap over query identities whether B beats A, and what the runs differ in by their run cards, the most "
        "telling first. With --paper, set one run's numbers beside those that a paper prints, and mark what does not "
        "compare.",
        epilog=EXAMPLES,
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a run's folder, or its results.json")
    parser.add_argument("--paper", nargs="?", const="", metavar="P", help="a paper instead of another run")
    parser.add_argument("--protocol", metavar="NAME", help="only this one, as CARGO/A2G")
    parser.add_argument("--draws", type=int, default=1000, metavar="N", help="bootstrap draws (default: 1000)")
    parser.add_argument("--json", action="store_true", help="everything as JSON")
    parser.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> None:
    if args.paper is not None and (len(args.runs) > 1 or args.json):
        raise InputError("--paper sets one run beside a paper, as text: leave the other runs and --json out")
    if args.paper is not None:
        _compare_with_paper(args)
        return
    may_lack = len(args.runs) == 2  # what two runs differ in is known without results, too
    runs = {
        path: {} if may_lack and _has_no_results(path) else _load_entries(path, args.protocol) for path in args.runs
    }
    if len(runs) < len(args.runs):
        raise InputError("one run is named twice")
    print(json.dumps(_as_json(args, runs), indent=2) if args.json else _as_text(args, runs))


def _compare_with_paper(args: argparse.Namespace) -> None:
    from agreid_plugin.engine.run_comparison import find_paper
    from agreid_plugin.evaluation.papers import compare_with_paper
    from agreid_plugin.evaluation.results import find_run_card

    (path,) = args.runs
    entries, card = _load_entries(path, args.protocol), find_run_card(path)
    print(compare_with_paper(find_paper(card, args.paper), list(entries.values()), card))


def _as_text(args: argparse.Namespace, runs: Mapping[str, Results]) -> str:
    from agreid_plugin.evaluation import compare, format_comparison, format_short_table

    if len(runs) == 1:
        return format_short_table(runs[args.runs[0]].values())
    lines, names = [], {path: f"{label} {_get_name(path)}" for label, path in zip(_labels(runs), runs, strict=True)}
    for protocol in _find_shared(runs):
        side_by_side = {names[path]: entries[protocol] for path, entries in runs.items()}
        lines += [format_comparison(side_by_side), ""]
        if len(runs) == 2:
            found = compare(*side_by_side.values(), draws=args.draws)
            lines += [*(f"  {number:<8} {difference}" for number, difference in found.items()), ""]
    lines += [f"{names[path]} was not evaluated: it has no results" for path, entries in runs.items() if not entries]
    return "\n".join([*lines, *(_differences_text(runs) if len(runs) == 2 else ())])


def _as_json(args: argparse.Namespace, runs: Mapping[str, Results]) -> dict[str, Any]:
    from agreid_plugin.evaluation import compare

    content: dict[str, Any] = {
        "runs": {path: {name: entry.as_dict() for name, entry in entries.items()} for path, entries in runs.items()}
    }
    if len(runs) == 2:
        a, b = runs.values()
        content["b_against_a"] = {
            name: {number: asdict(each) for number, each in compare(a[name], b[name], draws=args.draws).items()}
            for name in _find_shared(runs)
        }
        content["differences"] = {
            group: {each.name: {"a": each.a, "b": each.b} for each in found}
            for group, found in groupby(_differences(runs) or (), lambda each: each.group)
        }
    return content


def _load_entries(path: str, protocol: str | None) -> Results:
    from agreid_plugin.evaluation import load_results

    found = {entry.protocol: entry for entries in load_results(path).values() for entry in entries.values()}
    if protocol is None:
        return found
    require_known(f"{path}: protocol", protocol, found)
    return {protocol: found[protocol]}


def _has_no_results(path: str) -> bool:
    """Whether a path is that of a run which was not evaluated."""
    from agreid_plugin.evaluation.results import FILE_NAME, find_run_card

    return Path(path).is_dir() and not (Path(path) / FILE_NAME).exists() and find_run_card(path) is not None


def _find_shared(runs: Mapping[str, Results]) -> list[str]:
    """Return the protocols that all runs have; none if one of two was not evaluated."""
    first, *others = runs.values()
    if not all(runs.values()):
        return []
    shared = [name for name in first if all(name in other for other in others)]
    if not shared:
        lists = [f"{a} has {', '.join(run)}" for a, run in zip(_labels(runs), runs.values(), strict=True)]
        raise InputError(f"no protocol in common: {'; '.join(lists)}")
    return shared


def _differences(runs: Mapping[str, Results]) -> list[Difference] | None:
    """Return what the cards of two runs differ in; None if one of them has none."""
    from agreid_plugin.engine.run_comparison import find_differences
    from agreid_plugin.evaluation.results import find_run_card

    a, b = map(find_run_card, runs)
    return None if a is None or b is None else find_differences(a, b)


def _differences_text(runs: Mapping[str, Results]) -> list[str]:
    from agreid_plugin.engine.run_comparison import HINTS

    found = _differences(runs)
    if found is None:
        return ["what the runs differ in is not known: one of them has no run_card.json"]
    if not found:
        return ["the runs are identical in everything recorded"]
    lines = ["what the runs differ in"]
    for name, group in groupby(found, lambda each: each.group):
        lines.append(f"\n{name}" + (f": {HINTS[name]}" if HINTS[name] else ""))
        lines += _rows((each.name, _format_value(each.a), _format_value(each.b)) for each in group)
    return lines


def _rows(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    rows = [("", "A", "B"), *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _format_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split())
    return text if len(text) <= MAX_WIDTH else f"{text[: MAX_WIDTH - 3]}..."


def _labels(runs: Mapping[str, Results]) -> Iterable[str]:
    return "AB" if len(runs) == 2 else map(str, range(1, len(runs) + 1))


def _get_name(path: str) -> str:
    path = Path(path)
    return (path.parent if path.suffix == ".json" else path).name
