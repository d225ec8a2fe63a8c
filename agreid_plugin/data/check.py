"""Is this copy of a dataset whole? Counts against the published ones, broken images, leaks, queries without a match."""

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
from agreid_plugin.data.files import few, read_yaml
from agreid_plugin.data.images import broken_images
from agreid_plugin.data.protocols import Protocol, select, unmatched, usable
from agreid_plugin.data.protocols.parser import property_of
from agreid_plugin.errors import printable
from agreid_plugin.types import View

PUBLISHED = Path(__file__).with_name("published.yml")
TEST = ("query", "gallery", "test")
COLUMNS = {"valid_queries": "with a match"}
"""What tables call a count, where not by its own name."""


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
        said = " or ".join(f"{n:,}" for n in self.published)
        off = self.found - self.published[0]
        verdict = "matches" if self.matches else f"differs by {off:+,} from"
        return f"{self.what}: {self.found:,} ({verdict} the published {said})"


@dataclass(frozen=True)
class Report:
    """What `check` found.

    Attributes:
        dataset: its name.
        fingerprint: tells copies apart, see `fingerprint`.
        counts: numbers beside the published ones.
        breakdown: images by split and property, for example `train view` -> `aerial` -> 12.
        unmatched: protocol -> reason -> queries that have no match left for that reason.
        hints: what is worth knowing and need not be wrong.
        problems: what is wrong, one line each.
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
        """Return the report as lines of text: the splits, the protocols, what is published of them, what is wrong."""
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
            *_table(self._splits({name: row for name, row in found.items() if name not in protocols})),
            *_table([{"protocol": name, **_counted(row)} for name, row in protocols.items()]),
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
                **_counted(counts),
                "images an id": "-".join(map(str, dict.fromkeys(images.values()))),
            }
            row |= {"cameras": str(known) if known else "", "views": ", ".join(f"{v} {n:,}" for v, n in views.items())}
            rows.append(row)
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        return {**asdict(self), "ok": self.ok}


def check(dataset: Dataset, *, images: bool = True, progress: bool = True, published: bool = True) -> Report:
    """Look for everything that makes numbers on this copy of a dataset differ from other people's.

    Args:
        dataset: as loaded.
        images: decode every image too, which takes a while.
        progress: show a bar meanwhile.
        published: compare with the published counts; a synthetic set in a real one's layout has no reason to agree.
    """
    figures = published_figures(dataset.name) if published else {}
    runs, refused = usable(dataset)
    results = {name: _run(dataset, protocol, figures.get("protocols", {})) for name, protocol in runs.items()}
    counts = list(_split_counts(dataset, figures.get("splits", {})))
    counts += [count for result in results.values() for count in result.counts]
    problems = [str(count) for count in counts if not count.matches]
    problems += _skipped(dataset) + _overlap(dataset)
    problems += [line for result in results.values() for line in result.problems]
    problems += _without_evaluation(list(results.values()), refused)
    faults = broken_images((record.path for record in dataset.records), progress) if images else {}
    problems += [f"{path}: {fault}" for path, fault in faults.items()]
    notes = [*dataset.notes, *(note for result in results.values() for note in result.notes)]
    notes += refused.values() if runs else ()  # without any, the first is a problem
    return Report(
        dataset.name,
        fingerprint(dataset),
        counts,
        _breakdown(dataset),
        {str(runs[name]): result.unmatched for name, result in results.items()},
        [*dict.fromkeys(notes), *_one_view(dataset), *_sources(figures)],
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
        (os.path.relpath(record.path, top).replace(os.sep, "/"), record.split, record.pid, _size(record.path))
        for record in dataset.records
    )
    return sha256(repr(rows).encode()).hexdigest()


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.isfile(path) else -1  # a link to nowhere, which decoding tells of


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
class _Run:
    counts: list[Count]
    matched: int
    unmatched: dict[str, list[str]]
    notes: tuple[str, ...]
    problems: list[str]


def _run(dataset: Dataset, protocol: Protocol, figures: Mapping[str, Mapping[str, Any]]) -> _Run:
    chosen = select(protocol, dataset)
    lost = unmatched(protocol, chosen.query, chosen.gallery)
    text = protocol.kind == "text"
    queries = sum(len(record.captions) for record in chosen.query) if text else len(chosen.query)
    found = {"queries": queries, "gallery": len(chosen.gallery)}
    if not text:
        found["valid_queries"] = queries - sum(map(len, lost.values()))
    said = figures.get(protocol.name, {})
    # Benchmarks have such queries too: where their number is published, that is what to compare.
    reasons = {} if "valid_queries" in said else lost
    lines = {
        why: f"{protocol}: {len(paths)} of {queries} queries: {why}: {few(paths)}" for why, paths in reasons.items()
    }
    # Whoever was seen at one time only has no match at another: that is the protocol, not the copy.
    notes = [line for why, line in lines.items() if "same_time" in why]
    problems = [line for line in lines.values() if line not in notes]
    matched = len(chosen.query) - sum(map(len, lost.values()))
    return _Run(list(_compare(str(protocol), found, said)), matched, lost, (*chosen.notes, *notes), problems)


def _without_evaluation(results: Sequence[_Run], refused: Mapping[str, str]) -> list[str]:
    """Say that there is no number to be had of this copy, if that is so."""
    if any(result.matched for result in results):
        return []
    if results:
        return ["nothing can be evaluated: no query has a match under any protocol"]
    why = next(iter(refused.values()), "it has no protocol")
    return [f"nothing can be evaluated: {why}; a test needs images of the splits query and gallery"]


def _compare(name: str, found: Mapping[str, int], figures: Mapping[str, Any]) -> Iterator[Count]:
    for what, number in found.items():
        said = figures.get(what, [])
        yield Count(f"{name} {what}", number, tuple(said) if isinstance(said, list) else (said,))


def _counted(counts: Mapping[str, int]) -> dict[str, str]:
    return {COLUMNS.get(what, what): f"{number:,}" for what, number in counts.items()}


def _table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return rows as lines under the names of their columns, and an empty line; nothing without rows."""
    if not rows:
        return []
    head = list(dict.fromkeys(name for row in rows for name in row))
    head = [name for name in head if any(row.get(name) for row in rows)]
    align = ["left" if name in ("split", "protocol", "views") else "right" for name in head]
    cells = [[row.get(name, "") for name in head] for row in rows]
    return [*tabulate([head, *cells], tablefmt="plain", colalign=align, disable_numparse=True).splitlines(), ""]


def _breakdown(dataset: Dataset) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for split in dataset.splits:
        records = dataset.split(split)
        for name in ("view", "camera", "platform"):
            counts = Counter(property_of(record, name) or "unknown" for record in records)
            found[f"{split} {name}"] = dict(sorted(counts.items(), key=lambda item: (len(item[0]), item[0])))
        an_id = Counter(record.pid for record in records).values()
        found[f"{split} images an identity"] = {"least": min(an_id), "most": max(an_id)}
    return found


def _skipped(dataset: Dataset) -> list[str]:
    count = len(dataset.skipped)
    return [f"{count} images left out because of their names: {few(dataset.skipped)}"] if count else []


def _overlap(dataset: Dataset) -> list[str]:
    both = {r.pid for r in dataset.split("train")} & {r.pid for r in dataset.split(*TEST)}
    return [f"{len(both)} identities are in train and in test: {few(sorted(both))}"] if both else []


def _one_view(dataset: Dataset) -> list[str]:
    views = defaultdict(set)
    for record in dataset.split("train"):
        views[record.pid].add(record.view)
    single = [pid for pid, seen in views.items() if len(seen - {None}) < 2]
    if not single or not set(View) <= set().union(*views.values()):
        return []  # nobody expects two views of a set that has one
    return [f"{len(single)} of {len(views)} train identities are seen from one view only: {few(sorted(single))}"]


def _sources(figures: Mapping[str, Any]) -> list[str]:
    said = [figures[key] for key in ("source", "note") if key in figures]
    return [f"published counts are those of {'; '.join(said)}"] if said else []
