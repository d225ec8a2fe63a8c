"""Validation of a copy of a dataset: counts against published ones, broken images, leaks, queries without a match."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from tabulate import tabulate

from agreid_plugin.data.datasets import Dataset
from agreid_plugin.data.files import name_few, read_yaml
from agreid_plugin.data.images import find_broken_images
from agreid_plugin.data.protocols import Protocol, find_unmatched, select, usable_protocols
from agreid_plugin.data.protocols.parser import get_property
from agreid_plugin.errors import printable
from agreid_plugin.types import View

PUBLISHED = Path(__file__).with_name("published.yml")
TEST_SPLITS = ("query", "gallery", "test")
COLUMNS = {"valid_queries": "with a match"}
"""Name of a count -> heading of its column, where they differ."""


@dataclass(frozen=True)
class Count:
    """One number of a dataset beside the published ones, of which there may be none or several."""

    what: str
    found: int
    published: tuple[int, ...] = ()

    @property
    def matches(self) -> bool:
        """False if the number is published and is another."""
        return not self.published or self.found in self.published

    def __str__(self) -> str:
        if not self.published:
            return f"{self.what}: {self.found:,}"
        expected = " or ".join(f"{n:,}" for n in self.published)
        off = self.found - self.published[0]
        verdict = "matches" if self.matches else f"differs by {off:+,} from"
        return f"{self.what}: {self.found:,} ({verdict} the published {expected})"


@dataclass(frozen=True)
class Report:
    """Findings of `check`.

    Attributes:
        dataset: its name.
        fingerprint: differs between copies, see `fingerprint`.
        counts: numbers beside the published ones.
        breakdown: images by split and property, for example `train view` -> `aerial` -> 12.
        unmatched: protocol -> reason -> queries that have no match left for that reason.
        hints: remarks that need not be faults.
        problems: faults, one line each.
    """

    dataset: str
    fingerprint: str
    counts: list[Count]
    breakdown: dict[str, dict[str, int]]
    unmatched: dict[str, dict[str, list[str]]]
    hints: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems

    def lines(self) -> list[str]:
        """Return the report as lines of text: splits, protocols, published counts, remarks, problems."""
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for count in self.counts:
            name, _, what = count.what.rpartition(" ")
            found[name][what] = count.found
        protocols = {name: row for name, row in found.items() if name in self.unmatched}
        published = [str(count) for count in self.counts if count.published and count.matches]  # or it is a problem
        hints = [f"note: {hint}" for hint in self.hints]
        problems = [f"problem: {problem}" for problem in self.problems] or ["no problem found"]
        lines = [
            f"{self.dataset} {self.fingerprint[:12]}",
            *_format_table(self._splits({name: row for name, row in found.items() if name not in protocols})),
            *_format_table([{"protocol": name, **_format_counts(row)} for name, row in protocols.items()]),
            *([*published, ""] if published else ()),
            *hints,
            *problems,
        ]
        return list(map(printable, lines))

    def _splits(self, found: Mapping[str, dict[str, int]]) -> list[dict[str, str]]:
        """Return the rows of the splits; `test`, which is query and gallery, has counts and no more."""
        rows = []
        for name, counts in found.items():
            cameras, views = (self.breakdown.get(f"{name} {what}", {}) for what in ("camera", "view"))
            known = len(cameras.keys() - {"unknown"})
            images = self.breakdown.get(f"{name} images an identity", {})
            row = {
                "split": name,
                **_format_counts(counts),
                "images an id": "-".join(map(str, dict.fromkeys(images.values()))),
            }
            row |= {"cameras": str(known) if known else "", "views": ", ".join(f"{v} {n:,}" for v, n in views.items())}
            rows.append(row)
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        return {**asdict(self), "ok": self.ok}


def check(dataset: Dataset, *, images: bool = True, progress: bool = True, published: bool = True) -> Report:
    """Look for everything that would make results on this copy of a dataset differ from published ones.

    Args:
        dataset: as loaded.
        images: decode every image too, which takes a while.
        progress: show a bar.
        published: compare with the published counts; a synthetic set in a real one's layout has no reason to agree.
    """
    figures = published_figures(dataset.name) if published else {}
    runs, refused = usable_protocols(dataset)
    rows = figures.get("protocols", {})
    results = {name: _check_protocol(dataset, protocol, rows) for name, protocol in runs.items()}
    counts = list(_split_counts(dataset, figures.get("splits", {})))
    counts += [count for result in results.values() for count in result.counts]
    problems = [str(count) for count in counts if not count.matches]
    problems += _check_skipped(dataset) + _check_overlap(dataset)
    problems += [line for result in results.values() for line in result.problems]
    problems += _check_evaluation(list(results.values()), refused)
    faults = find_broken_images((record.path for record in dataset.records), progress) if images else {}
    problems += [f"{path}: {fault}" for path, fault in faults.items()]
    notes = [*dataset.notes, *(note for result in results.values() for note in result.notes)]
    notes += refused.values() if runs else ()  # without any, the first is a problem
    return Report(
        dataset.name,
        fingerprint(dataset),
        counts,
        _count_by_property(dataset),
        {str(runs[name]): result.unmatched for name, result in results.items()},
        [*dict.fromkeys(notes), *_check_views(dataset), *_name_sources(figures)],
        problems,
    )


def published_figures(name: str) -> dict[str, Any]:
    """Return the published counts of a dataset: `splits`, `protocols`, and where they were read; empty if none are."""
    return read_yaml(PUBLISHED).get(name, {})


def fingerprint(dataset: Dataset) -> str:
    """Return a SHA-256 of the images' relative paths, identities and sizes; where the dataset lies does not matter."""
    here = os.getcwd()  # a table may have relative and absolute paths
    top = os.path.commonpath([os.path.join(here, os.path.dirname(record.path)) for record in dataset.records])
    rows = sorted(
        (os.path.relpath(record.path, top).replace(os.sep, "/"), record.split, record.pid, _get_size(record.path))
        for record in dataset.records
    )
    return sha256(repr(rows).encode()).hexdigest()


def _get_size(path: str) -> int:
    return os.path.getsize(path) if os.path.isfile(path) else -1  # a link to nowhere, which decoding reports


def _split_counts(dataset: Dataset, figures: Mapping[str, Mapping[str, Any]]) -> Iterator[Count]:
    groups: dict[str, tuple[str, ...]] = {split: (split,) for split in dataset.splits}
    if "query" in groups:
        groups["test"] = ("query", "gallery")
    for name, splits in groups.items():
        records = dataset.split(*splits)
        found = {"ids": len({r.pid for r in records}), "images": len(records)}
        if any(r.captions for r in records):
            found["captions"] = sum(len(r.captions) for r in records)
        yield from _compare(name, found, figures.get(name, {}))


@dataclass(frozen=True)
class _ProtocolCheck:
    counts: list[Count]
    matched: int
    unmatched: dict[str, list[str]]
    notes: tuple[str, ...]
    problems: list[str]


def _check_protocol(dataset: Dataset, protocol: Protocol, figures: Mapping[str, Mapping[str, Any]]) -> _ProtocolCheck:
    chosen = select(protocol, dataset)
    lost = find_unmatched(protocol, chosen.query, chosen.gallery)
    text = protocol.kind == "text"
    queries = sum(len(record.captions) for record in chosen.query) if text else len(chosen.query)
    found = {"queries": queries, "gallery": len(chosen.gallery)}
    if not text:
        found["valid_queries"] = queries - sum(map(len, lost.values()))
    expected = figures.get(protocol.name, {})
    # Benchmarks have such queries too: where their number is published, that is what to compare.
    reasons = {} if "valid_queries" in expected else lost
    lines = {why: f"{len(paths)} of {queries} queries: {why}: {name_few(paths)}" for why, paths in reasons.items()}
    # Whoever was seen at one time only has no match at another: that is the protocol, not the copy.
    notes = [f"{protocol}: {line}" for why, line in lines.items() if "same_time" in why]
    problems = [f"{protocol}: {line}" for why, line in lines.items() if "same_time" not in why]
    matched = len(chosen.query) - sum(map(len, lost.values()))
    counts = list(_compare(str(protocol), found, expected))
    return _ProtocolCheck(counts, matched, lost, (*chosen.notes, *notes), problems)


def _check_evaluation(results: Sequence[_ProtocolCheck], refused: Mapping[str, str]) -> list[str]:
    """Report a copy on which no protocol can be evaluated."""
    if any(result.matched for result in results):
        return []
    if results:
        return ["nothing can be evaluated: no query has a match under any protocol"]
    why = next(iter(refused.values()), "it has no protocol")
    return [f"nothing can be evaluated: {why}; a test needs images of the splits query and gallery"]


def _compare(name: str, found: Mapping[str, int], figures: Mapping[str, Any]) -> Iterator[Count]:
    for what, number in found.items():
        expected = figures.get(what, [])
        yield Count(f"{name} {what}", number, tuple(expected) if isinstance(expected, list) else (expected,))


def _format_counts(counts: Mapping[str, int]) -> dict[str, str]:
    return {COLUMNS.get(what, what): f"{number:,}" for what, number in counts.items()}


def _format_table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return rows as lines under the names of their columns, and an empty line; nothing without rows."""
    if not rows:
        return []
    head = list(dict.fromkeys(name for row in rows for name in row))
    head = [name for name in head if any(row.get(name) for row in rows)]
    align = ["left" if name in ("split", "protocol", "views") else "right" for name in head]
    cells = [[row.get(name, "") for name in head] for row in rows]
    return [*tabulate([head, *cells], tablefmt="plain", colalign=align, disable_numparse=True).splitlines(), ""]


def _count_by_property(dataset: Dataset) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for split in dataset.splits:
        records = dataset.split(split)
        for name in ("view", "camera", "platform"):
            counts = Counter(get_property(record, name) or "unknown" for record in records)
            found[f"{split} {name}"] = dict(sorted(counts.items(), key=lambda item: (len(item[0]), item[0])))
        an_id = Counter(record.pid for record in records).values()
        found[f"{split} images an identity"] = {"least": min(an_id), "most": max(an_id)}
    return found


def _check_skipped(dataset: Dataset) -> list[str]:
    count = len(dataset.skipped)
    return [f"{count} images left out because of their names: {name_few(dataset.skipped)}"] if count else []


def _check_overlap(dataset: Dataset) -> list[str]:
    both = {r.pid for r in dataset.split("train")} & {r.pid for r in dataset.split(*TEST_SPLITS)}
    return [f"{len(both)} identities are in train and in test: {name_few(sorted(both))}"] if both else []


def _check_views(dataset: Dataset) -> list[str]:
    views = defaultdict(set)
    for record in dataset.split("train"):
        views[record.pid].add(record.view)
    single = [pid for pid, seen in views.items() if len(seen - {None}) < 2]
    if not single or not set(View) <= set().union(*views.values()):
        return []  # a set with one view
    return [f"{len(single)} of {len(views)} train identities are seen from one view only: {name_few(sorted(single))}"]


def _name_sources(figures: Mapping[str, Any]) -> list[str]:
    expected = [figures[key] for key in ("source", "note") if key in figures]
    return [f"published counts are those of {'; '.join(expected)}"] if expected else []
