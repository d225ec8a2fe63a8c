"""A run's numbers beside a paper's, protocol by protocol, with what keeps them from being compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from agreid_plugin.data.check import published_figures
from agreid_plugin.data.protocols import protocol as known_protocol
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.metrics import NUMBERS, Metrics, views_word
from agreid_plugin.evaluation.paper_tables import Published
from agreid_plugin.evaluation.papers import Paper

OURS = "this run"
OTHER = "another protocol"
COUNTED = {"queries": "queries", "gallery": "gallery images"}


def beside_paper(paper: Paper, results: Sequence[Metrics], card: Mapping[str, Any] | None = None) -> str:
    """Return a run's numbers beside a paper's as text; those on AG-Synth are left out, which no paper has.

    Args:
        paper: the paper.
        results: what the run gave.
        card: the run's card; None if there is none, when less is known of its setting.
    """
    synthetic = (card or {}).get("synthetic", ())
    made = [name for name in synthetic if any(entry.protocol.startswith(f"{name}/") for entry in results)]
    results = [entry for entry in results if entry.protocol.partition("/")[0] not in made]
    unlike = f"not comparable: {', '.join(made)} of this run is AG-Synth, which no paper has"
    if made and not results:
        return unlike
    blocks = {entry.protocol: _block(paper, entry) for entry in results}
    without = [name for name, text in blocks.items() if not text]
    lines = [f"{paper}: {paper.title}", *(["numbers as other papers print them"] if paper.cited else [])]
    lines += [unlike] if made else []
    lines += [*_warnings(paper, results, card or {}), *(text for text in blocks.values() if text)]
    if without:
        lines.append(f"no number in this paper: {', '.join(without)}")
    return "\n".join(lines)


def _warnings(paper: Paper, results: Sequence[Metrics], card: Mapping[str, Any]) -> list[str]:
    """Return what keeps the run as a whole from being compared with the paper's own rows."""
    off = [text for text in map(_other_counts, results) if text]
    lines = [f"not comparable, another dataset or copy: {'; '.join(off)}"] if off else []
    setting = _other_setting(paper, results, card)
    return [*lines, *([f"not {paper.method}'s setting: {'; '.join(setting)}"] if setting else []), ""]


def _other_counts(entry: Metrics) -> str:
    """Say that queries and gallery are not as many as published, nothing if they are or nobody knows."""
    found = {"queries": entry.queries + entry.skipped_queries, "gallery": entry.gallery}
    published = published_counts(entry.protocol)
    off = {
        what: said
        for what, said in published.items()
        if found[what] not in (said if isinstance(said, list) else [said])
    }
    told = [f"{found[what]:,} {COUNTED[what]} ({_listed(said)} published)" for what, said in off.items()]
    return f"{entry.protocol} has {' and '.join(told)}" if told else ""


def published_counts(name: str) -> dict[str, Any]:
    """Return how many queries and gallery images a protocol has, as far as that is published."""
    dataset, _, short = name.partition("/")
    figures = published_figures(dataset)
    counts = figures.get("protocols", {}).get(short, {})
    try:
        if not counts and known_protocol(name).kind == "text" and short == "T2I":
            test = figures.get("splits", {}).get("test", {})
            counts = {"queries": test.get("captions"), "gallery": test.get("images")}
    except InputError:  # a host's own dataset
        return {}
    return {what: counts[what] for what in COUNTED if counts.get(what)}


def _other_setting(paper: Paper, results: Iterable[Metrics], card: Mapping[str, Any]) -> list[str]:
    """Say in what the run does not test as the paper does."""
    setup = card.get("setup", {})
    views = sorted({views_word(entry.views) for entry in results} - {views_word(paper.views)})
    size = setup.get("input")
    checks = {
        f"views {', '.join(views)} (there {views_word(paper.views)})": bool(views),
        f"images of {_size(size)} (there {_size(paper.input)})": size is not None and tuple(size) != paper.input,
        f"the {setup.get('variant')} variant": setup.get("variant", "") not in ("", "paper"),
        "distances re-ranked": any("rerank" in entry.distance.replace("-", "") for entry in results),
    }
    return [text for text, differs in checks.items() if differs]


def _block(paper: Paper, ours: Metrics) -> str:
    """Return the table of one protocol, with every row of the columns that have numbers of it."""
    columns = {(row.table, row.printed) for row in paper.rows if row.protocol == ours.protocol}
    rows = [row for row in paper.rows if (row.table, row.printed) in columns]
    if not rows:
        return ""
    numbers = [name for name in NUMBERS if any(name in row.numbers for row in rows)]
    notes = list(dict.fromkeys(row.note for row in rows if row.note))
    table = [[OURS, "", *(ours[name] for name in numbers), "", ""]]
    for row in rows:
        other = "" if row.protocol == ours.protocol else row.protocol
        mark = f"[{notes.index(row.note) + 1}]" if row.note else ""
        table.append([row.method, _place(row), *(row.numbers.get(name) for name in numbers), other, mark])
    head = [ours.protocol, "where", *numbers, OTHER, "note"]
    text = tabulate(table, head, tablefmt="github", floatfmt=".2f", missingval="-")
    about = dict.fromkeys(f"{row.table}: {row.about}" for row in rows if row.about)
    return "\n".join([text, *about, *(f"[{place}] {note}" for place, note in enumerate(notes, start=1)), ""])


def _place(row: Published) -> str:
    return f"{row.table}, {row.printed}"


def _listed(said: Any) -> str:
    return " or ".join(f"{number:,}" for number in (said if isinstance(said, list) else [said]))


def _size(size: Sequence[int] | None) -> str:
    return "x".join(map(str, size or ()))
