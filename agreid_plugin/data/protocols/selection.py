"""Selection of a protocol's query and gallery in a dataset, and queries that have no match left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agreid_plugin.data.datasets import Dataset
from agreid_plugin.data.protocols.hiding_rules import Meta, mask
from agreid_plugin.data.protocols.parser import Filter, Protocol, get_property, passes
from agreid_plugin.errors import InputError
from agreid_plugin.types import UNKNOWN, Record

NOT_IN_GALLERY = "identity not in gallery"


@dataclass(frozen=True)
class Selection:
    """A protocol's two sides in one dataset.

    Attributes:
        query: the query images; in a text protocol each of their captions is a query.
        gallery: the gallery images.
        query_meta: identities and the rest of the query images.
        gallery_meta: the same of the gallery images.
        notes: remarks for the user: a missing list, rules that hide nothing, queries left out.
    """

    query: list[Record]
    gallery: list[Record]
    query_meta: Meta
    gallery_meta: Meta
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Side:
    records: Sequence[Record]
    meta: Meta

    def __getitem__(self, places: np.ndarray) -> _Side:
        return _Side([self.records[place] for place in places.tolist()], self.meta[places])


def select(protocol: Protocol, dataset: Dataset) -> Selection:
    """Return the query and gallery records of a protocol; an empty side is refused with the reason."""
    notes = []
    if protocol.list_file in dataset.lists:
        sides = dataset.lists[protocol.list_file]
        query, gallery = (_Side(records, Meta.collect(records)) for records in (sides.query, sides.gallery))
    elif protocol.list_file and not protocol.query:
        raise InputError(f"{protocol}: the list file {protocol.list_file} is not under {dataset.root}")
    else:
        if protocol.list_file:
            notes.append(f"{protocol}: {protocol.list_file} not found, sides made from file names")
        query = _select_side(protocol, dataset, "query", protocol.query)
        gallery = _select_side(protocol, dataset, "gallery", protocol.gallery)
    if protocol.restrict:
        query, left_out = _restrict_to_gallery(protocol, query, gallery)
        notes += left_out
    notes += _note_idle_rules(protocol, query.meta, gallery.meta)
    return Selection(list(query.records), list(gallery.records), query.meta, gallery.meta, tuple(notes))


def _select_side(protocol: Protocol, dataset: Dataset, side: str, wanted: Filter) -> _Side:
    kinds = dataset.kinds
    split = side if protocol.kind == "image" else "test"
    captioned = protocol.kind == "text" and side == "query"
    candidates = {
        kind: example
        for kind, example in enumerate(kinds.examples)
        if example.split == split and (example.captions or not captioned)
    }
    chosen = [kind for kind, example in candidates.items() if passes(example, wanted)]
    if not candidates:
        what = "images" if protocol.kind == "image" else "images with captions"
        raise InputError(f"{protocol}: no {split} {what} under {dataset.root}")
    if not chosen:
        asked = ", ".join(f"{name} {' or '.join(values)}" for name, values in wanted.items())
        found = {name: sorted({get_property(r, name) or "unknown" for r in candidates.values()}) for name in wanted}
        seen = "; ".join(f"{name} is {', '.join(values)}" for name, values in found.items())
        count = len(kinds.places(candidates))
        raise InputError(f"{protocol}: none of the {count} {split} images has {asked} ({seen})")
    places = kinds.places(chosen)
    meta = replace(Meta.collect(kinds.examples)[kinds.kind[places]], pid=kinds.pid[places])
    return _Side([dataset.records[place] for place in places.tolist()], meta)


def _restrict_to_gallery(protocol: Protocol, query: _Side, gallery: _Side) -> tuple[_Side, list[str]]:
    kept = query[np.flatnonzero(np.isin(query.meta.pid, gallery.meta.pid))]
    if not kept.records:
        raise InputError(f"{protocol}: none of the {len(query.records)} queries' identities is in the gallery")
    left_out = len(query.records) - len(kept.records)
    return kept, [f"{protocol}: {left_out} queries left out, identity not in the gallery"] if left_out else []


def _note_idle_rules(protocol: Protocol, *sides: Meta) -> list[str]:
    """Return a note for each rule that cannot hide anything, as one side lacks the labels it compares."""
    notes = []
    for rule in protocol.hide:
        what = rule.split("_")[1]
        if any((getattr(side, what) == UNKNOWN).all() for side in sides):
            notes.append(f"{protocol}: no {what} is known, so {rule} hides nothing")
    return notes


def find_unmatched(protocol: Protocol, query: list[Record], gallery: list[Record]) -> dict[str, list[str]]:
    """Return reason -> the paths of queries for which no gallery image of their identity is left."""
    by_pid = _index_by_identity(gallery)
    metas = Meta.collect(query), Meta.collect(gallery)
    found: dict[str, list[str]] = defaultdict(list)
    for pid, rows in _index_by_identity(query).items():
        matches = metas[1][by_pid.get(pid, [])]
        for row in rows:
            reason = explain_unmatched(protocol, metas[0][[row]], matches)
            if reason:
                found[reason].append(query[row].path)
    return dict(found)


def _index_by_identity(records: Iterable[Record]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = defaultdict(list)
    for place, record in enumerate(records):
        places[record.pid].append(place)
    return dict(places)


def explain_unmatched(protocol: Protocol, query: Meta, matches: Meta) -> str:
    """Return why one query has none of its identity's gallery images left; empty if it has."""
    if not len(matches):
        return NOT_IN_GALLERY
    if not np.all(mask(protocol.hide, query, matches)):
        return ""
    rules = [rule for rule in protocol.hide if np.any(mask([rule], query, matches))]
    return f"all its gallery images hidden by {' and '.join(rules)}"
