"""Files of a run: results.json, its numbers by dataset and protocol with the table people read; reading run_card.json.

Results of single queries, which comparisons need, are in results.queries.npz beside results.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from agreid_plugin.data.atomic_write import atomic_write, write_error_context
from agreid_plugin.data.files import MAX_LABEL, read_arrays, read_json, require_existing, shorten
from agreid_plugin.errors import InputError, MissingInputError
from agreid_plugin.evaluation.confidence import require_comparable
from agreid_plugin.evaluation.metrics import NUMBERS, Metrics, PerQuery, check_views, compute_means, format_views

FILE_NAME = "results.json"
RUN_CARD_FILE = "run_card.json"
DETAILS = ("source", "distance", "views", "skipped", "directions", "cameras", "fingerprint")
TABLE_NUMBERS = ("Rank-1", "Rank-5", "Rank-10", "mAP", "mINP")
CARD_KINDS = {
    **dict.fromkeys(("versions", "host_fixes", "config", "datasets", "weights", "batch", "setup", "code"), dict),
    **dict.fromkeys(("devices", "protocols", "synthetic", "sessions"), list),
    "processes": int,
}
"""Types of the entries of a run card."""
CARD_REQUIRED = frozenset({"versions", "host_fixes", "config", "devices", "processes"})
"""Entries that every run card has."""

Results = Mapping[str, Mapping[str, Metrics]]


def group_by_dataset(metrics: Iterable[Metrics]) -> dict[str, dict[str, Metrics]]:
    """Return metrics by dataset and protocol, in their order; one protocol twice is refused."""
    found: dict[str, dict[str, Metrics]] = {}
    for entry in metrics:
        dataset, _, protocol = entry.protocol.partition("/")
        if protocol in found.setdefault(dataset, {}):
            raise InputError(f"{entry.protocol} stands twice among the results")
        found[dataset][protocol] = entry
    return found


def save_results(path: str | Path, metrics: Iterable[Metrics]) -> None:
    """Write results.json and, beside it, the results of single queries."""
    path = Path(path)
    results = group_by_dataset(metrics)
    content = {
        dataset: {protocol: {**entry.as_dict(), **_details(entry)} for protocol, entry in entries.items()}
        for dataset, entries in results.items()
    }
    # Both are written before either takes its name, so that a full disk leaves the files of the run before.
    with (
        write_error_context(path),
        atomic_write(path) as numbers,
        atomic_write(_queries_file(path)) as queries,
        queries.open("wb") as file,
    ):
        numbers.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        np.savez_compressed(file, **_query_arrays(results))


def load_results(path: str | Path) -> dict[str, dict[str, Metrics]]:
    """Read results.json, its folder may be named instead, and the results of single queries if they are there."""
    path = Path(path)
    if path.is_dir():
        if not (path / FILE_NAME).exists():
            raise MissingInputError(f"{path} has no {FILE_NAME}: evaluate the run by `fastreid eval`")
        path = path / FILE_NAME
    content = read_json(path, dict)
    beside = _queries_file(path)
    arrays = read_arrays(beside, "results of single queries") if beside.exists() else {}
    try:
        return {
            dataset: {name: _read_metrics(f"{dataset}/{name}", entry, arrays) for name, entry in entries.items()}
            for dataset, entries in content.items()
        }
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: not results of this package: {shorten(repr(error))}") from error


def format_table(metrics: Iterable[Metrics]) -> str:
    """Return one run's numbers, a line for each protocol with its full name and source.

    Below it stands how many test images could not be read, if any.
    """
    metrics = list(metrics)
    head = ["protocol", *TABLE_NUMBERS, "queries", "skipped", "gallery", "views", "distance", "source"]
    rows = [
        [
            entry.protocol,
            *_table_numbers(entry),
            *_counts(entry),
            format_views(entry.views),
            entry.distance,
            entry.source,
        ]
        for entry in metrics
    ]
    return tabulate(rows, head, tablefmt="github", floatfmt=".2f") + _format_unreadable(metrics)


def format_short_table(metrics: Iterable[Metrics]) -> str:
    """Return the same in 80 columns: only the numbers and how many queries they are the means of."""
    metrics = list(metrics)
    head = ["protocol", *TABLE_NUMBERS, "queries"]
    rows = [[entry.protocol, *(f"{n:.2f}" for n in _table_numbers(entry)), str(entry.queries)] for entry in metrics]
    align = ["left", *["right"] * (len(head) - 1)]
    # A header row would be set two characters wider than its words.
    return tabulate([head, *rows], tablefmt="plain", colalign=align, disable_numparse=True) + _format_unreadable(
        metrics
    )


def _format_unreadable(metrics: Iterable[Metrics]) -> str:
    counts = {entry.protocol.partition("/")[0]: entry.unreadable for entry in metrics if entry.unreadable}
    lines = [
        f"\n{dataset}: test images that cannot be read and are not in these numbers: {count}"
        for dataset, count in counts.items()
    ]
    return "".join(lines)


def format_comparison(runs: Mapping[str, Metrics]) -> str:
    """Return several runs' numbers under one protocol, a line for each run; refuses what does not compare."""
    require_comparable(runs)
    head = ["run", *TABLE_NUMBERS, "queries", "skipped", "gallery", "views", "distance"]
    rows = [
        [name, *_table_numbers(run), *_counts(run), format_views(run.views), run.distance] for name, run in runs.items()
    ]
    first = next(iter(runs.values()))
    return f"{first.protocol} ({first.source})\n\n" + tabulate(rows, head, tablefmt="github", floatfmt=".2f")


def _table_numbers(entry: Metrics) -> list[float]:
    return [entry[name] for name in TABLE_NUMBERS]


def _counts(entry: Metrics) -> list[int]:
    return [entry.queries, entry.skipped_queries, entry.gallery]


def _details(entry: Metrics) -> dict[str, Any]:
    unread = {"unreadable": entry.unreadable} if entry.unreadable else {}
    return {**{name: getattr(entry, name) for name in DETAILS}, **unread}


def _read_metrics(name: str, entry: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Metrics:
    values = {number: entry[number] for number in NUMBERS}
    per_query = _read_per_query(name, arrays)
    if per_query is not None and not np.isclose(compute_means(per_query)["mAP"], float(values["mAP"])):
        raise InputError(f"{name}: the single queries' results beside {FILE_NAME} are of another run")
    details = {detail: entry[detail] for detail in DETAILS}
    _check_entry(values, entry)
    return Metrics(
        name,
        values=values,
        queries=entry["queries"],
        gallery=entry["gallery"],
        per_query=per_query,
        unreadable=entry.get("unreadable", 0),
        **details,
    )


def _check_entry(values: Mapping[str, Any], entry: Mapping[str, Any]) -> None:
    """Refuse values that no table can show."""
    parts = [part for detail in ("directions", "cameras") for part in entry[detail].values()]
    numbers = [*values.values(), *(number for part in parts for number in part.values())]
    counts = [entry["queries"], entry["gallery"], entry.get("unreadable", 0), *entry["skipped"].values()]
    if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
        raise TypeError("a metric is not a finite number")
    if not all(type(count) is int and 0 <= count <= MAX_LABEL for count in counts):
        raise TypeError("a count is not a whole number")
    if not all(isinstance(entry[detail], str) for detail in ("source", "distance", "views", "fingerprint")):
        raise TypeError("a text is not a string")
    check_views(entry["views"])


def _queries_file(path: Path) -> Path:
    return path.with_suffix(".queries.npz")


def _query_arrays(results: Results) -> dict[str, Any]:
    return {
        f"{entry.protocol}/{name}": array
        for entries in results.values()
        for entry in entries.values()
        if entry.per_query is not None
        for name, array in entry.per_query.arrays().items()
    }


def _read_per_query(name: str, arrays: Mapping[str, np.ndarray]) -> PerQuery | None:
    prefix = f"{name}/"
    found = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
    if found and {(array.ndim, len(array)) for array in found.values()} != {(1, len(found.get("row", ())))}:
        raise InputError(f"{name}: the single queries' results beside {FILE_NAME} are damaged; evaluate again")
    return PerQuery(**found) if found else None


def read_run_card(run: str | Path) -> dict[str, Any]:
    """Read the card of a run, by its folder or by a file in it, such as results.json.

    Raises:
        InputError: there is none, or it is damaged.
    """
    card = find_run_card(run)
    if card is None:
        raise InputError(f"{run} has no {RUN_CARD_FILE}: it is no run's folder, or of a run that never started")
    return card


def find_run_card(run: str | Path) -> dict[str, Any] | None:
    """Return the card of a run, None if there is none."""
    path = require_existing(run)
    path = (path if path.is_dir() else path.parent) / RUN_CARD_FILE
    if not path.is_file():
        return None
    card = read_json(path, dict)
    for key, kind in CARD_KINDS.items():
        value = card.get(key, kind() if key not in CARD_REQUIRED else None)
        if not isinstance(value, kind):
            raise InputError(f"{path}: damaged: {key} is {shorten(repr(value))}, expected a {kind.__name__}")
    return card
