"""results.json: the numbers of a run by dataset and protocol, and the table people read.

Results of single queries, which comparisons need, are in results.queries.npz beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from agreid_plugin.data.datasets.files import read_json
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.confidence import require_comparable
from agreid_plugin.evaluation.metrics import NUMBERS, Metrics, PerQuery, means

FILE_NAME = "results.json"
DETAILS = ("source", "distance", "views", "skipped", "directions", "cameras", "fingerprint")
SHOWN = ("Rank-1", "Rank-5", "Rank-10", "mAP", "mINP")
VIEWS = {"": "not used"}

Results = Mapping[str, Mapping[str, Metrics]]


def as_results(metrics: Iterable[Metrics]) -> dict[str, dict[str, Metrics]]:
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
    results = as_results(metrics)
    content = {
        dataset: {protocol: {**entry.as_dict(), **_details(entry)} for protocol, entry in entries.items()}
        for dataset, entries in results.items()
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    np.savez_compressed(_side_file(path), **_query_arrays(results))


def load_results(path: str | Path) -> dict[str, dict[str, Metrics]]:
    """Read results.json, its folder may be named instead, and the results of single queries if they are there."""
    path = Path(path)
    path = path / FILE_NAME if path.is_dir() else path
    content = read_json(path, dict)
    arrays = _read_arrays(_side_file(path))
    try:
        return {
            dataset: {name: _metrics(f"{dataset}/{name}", entry, arrays) for name, entry in entries.items()}
            for dataset, entries in content.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not results of this package: {error!r}") from error


def table(metrics: Iterable[Metrics]) -> str:
    """Return one run's numbers, a line for each protocol with its full name and source."""
    head = ["protocol", *SHOWN, "queries", "skipped", "gallery", "views", "distance", "source"]
    rows = [
        [entry.protocol, *_shown(entry), *_counts(entry), _views(entry), entry.distance, entry.source]
        for entry in metrics
    ]
    return tabulate(rows, head, tablefmt="github", floatfmt=".2f")


def comparison_table(runs: Mapping[str, Metrics]) -> str:
    """Return several runs' numbers under one protocol, a line for each run; refuses what does not compare."""
    require_comparable(runs)
    head = ["run", *SHOWN, "queries", "skipped", "gallery", "views", "distance"]
    rows = [[name, *_shown(run), *_counts(run), _views(run), run.distance] for name, run in runs.items()]
    first = next(iter(runs.values()))
    return f"{first.protocol} ({first.source})\n\n" + tabulate(rows, head, tablefmt="github", floatfmt=".2f")


def _shown(entry: Metrics) -> list[float]:
    return [entry[name] for name in SHOWN]


def _counts(entry: Metrics) -> list[int]:
    return [entry.queries, entry.skipped_queries, entry.gallery]


def _views(entry: Metrics) -> str:
    return VIEWS.get(entry.views, entry.views)


def _details(entry: Metrics) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in DETAILS}


def _metrics(name: str, entry: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Metrics:
    values = {number: entry[number] for number in NUMBERS}
    per_query = _per_query(name, arrays)
    if per_query is not None and not np.isclose(means(per_query)["mAP"], values["mAP"]):
        raise InputError(f"{name}: the single queries' results beside {FILE_NAME} are of another run")
    details = {detail: entry[detail] for detail in DETAILS}
    return Metrics(
        name, values=values, queries=entry["queries"], gallery=entry["gallery"], per_query=per_query, **details
    )


def _side_file(path: Path) -> Path:
    return path.with_suffix(".queries.npz")


def _query_arrays(results: Results) -> dict[str, np.ndarray]:
    return {
        f"{entry.protocol}/{name}": array
        for entries in results.values()
        for entry in entries.values()
        if entry.per_query is not None
        for name, array in entry.per_query.arrays().items()
    }


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def _per_query(name: str, arrays: Mapping[str, np.ndarray]) -> PerQuery | None:
    prefix = f"{name}/"
    own = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
    return PerQuery(**own) if own else None
