"""Which queries of a protocol have no match left, and why. Evaluators skip them, mostly without a word."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from agreid_plugin.data.protocols.hiding_rules import Meta, mask
from agreid_plugin.data.protocols.parser import Protocol
from agreid_plugin.types import Record

NOT_IN_GALLERY = "identity not in gallery"


def unmatched(protocol: Protocol, query: list[Record], gallery: list[Record]) -> dict[str, list[str]]:
    """Return reason -> the paths of queries for which no gallery image of their identity is left."""
    by_pid = _places(gallery)
    metas = Meta.of(query), Meta.of(gallery)
    found: dict[str, list[str]] = defaultdict(list)
    for pid, rows in _places(query).items():
        matches = metas[1][by_pid.get(pid, [])]
        for row in rows:
            reason = why_unmatched(protocol, metas[0][[row]], matches)
            if reason:
                found[reason].append(query[row].path)
    return dict(found)


def _places(records: Iterable[Record]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = defaultdict(list)
    for place, record in enumerate(records):
        places[record.pid].append(place)
    return dict(places)


def why_unmatched(protocol: Protocol, query: Meta, matches: Meta) -> str:
    """Say why one query has none of its identity's gallery images left; empty if it has."""
    if not len(matches):
        return NOT_IN_GALLERY
    if not np.all(mask(protocol.hide, query, matches)):
        return ""
    rules = [rule for rule in protocol.hide if np.any(mask([rule], query, matches))]
    return f"all its gallery images hidden by {' and '.join(rules)}"
