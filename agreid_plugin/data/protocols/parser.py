"""Parser of protocol files (YAML): dataset -> name -> two filters or a list file, hiding rules, a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Any

from agreid_plugin.data.datasets import FILTER_TAGS
from agreid_plugin.data.files import read_yaml, shorten
from agreid_plugin.data.protocols.hiding_rules import RULES
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.types import UNKNOWN, Record, View, view_word

KINDS = ("image", "text")
RESTRICTIONS = ("", "query_in_gallery")
FILTERS = ("view", "platform", "camera", *FILTER_TAGS)

Filter = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Protocol:
    """Definition of query, gallery and hidden images, and its source.

    Attributes:
        dataset: the dataset it is about.
        name: its name there; the full name, which every number carries, is `CARGO/A2G`.
        query: what query images must be, property -> allowed values; empty lets all in.
        gallery: the same for the gallery.
        hide: rules, each hiding some gallery images from a query.
        list_file: the dataset's list file, which goes before the filters.
        restrict: `query_in_gallery` leaves out queries whose identity is not in the gallery.
        source: paper or code that defines it.
        note: remark for comparing numbers.
        kind: `image`, or `text` when captions are the queries.
    """

    dataset: str
    name: str
    query: Filter = field(default_factory=dict)
    gallery: Filter = field(default_factory=dict)
    hide: tuple[str, ...] = ()
    list_file: str = ""
    restrict: str = ""
    source: str = ""
    note: str = ""
    kind: str = "image"

    def __str__(self) -> str:
        return f"{self.dataset}/{self.name}"


TEXTS = ("restrict", "source", "note", "kind", "list")
KEYS = {"list" if f.name == "list_file" else f.name for f in fields(Protocol)} - {"dataset", "name"}


def passes(record: Record, wanted: Filter) -> bool:
    """Return whether a record has one of the wanted values of every property."""
    return all(get_property(record, name) in values for name, values in wanted.items())


def get_property(record: Record, name: str) -> str:
    """Return the value that a filter compares, empty if unknown."""
    if name == "view":
        return view_word(record.view)
    if name == "camera":
        return "" if record.camera == UNKNOWN else str(record.camera)
    if name == "platform":
        return record.platform
    return record.tags.get(name, "")


def read_protocols(path: str | Path) -> dict[str, dict[str, Protocol]]:
    """Read a protocol file: dataset -> name -> protocol."""
    path = Path(path)
    content = read_yaml(path)
    if not isinstance(content, dict) or not all(isinstance(rows, dict) for rows in content.values()):
        raise InputError(f"{path}: expected dataset -> protocol -> row")
    return {
        str(dataset): {str(name): _parse_protocol(path, str(dataset), str(name), row) for name, row in rows.items()}
        for dataset, rows in content.items()
    }


def _parse_protocol(path: Path, dataset: str, name: str, row: Any) -> Protocol:
    where = f"{path}: {shorten(dataset)}/{shorten(name)}"
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected a row of keys, found a {type(row).__name__}")
    _require_all_known(f"{where}: key", row, KEYS)
    for key in TEXTS:
        if not isinstance(row.get(key, ""), str):
            raise InputError(f"{where}: {key} is a {type(row[key]).__name__}, expected a text")
    _require_all_known(f"{where}: kind", [row.get("kind", "image")], KINDS)
    _require_all_known(f"{where}: restrict", [row.get("restrict", "")], RESTRICTIONS)
    hide = _as_texts(f"{where}: hide", row.get("hide", []))
    _require_all_known(f"{where}: hiding rule", hide, RULES)
    if not row.get("source"):
        raise InputError(f"{where}: no source, say where the protocol was read")
    query, gallery = (_parse_filter(f"{where}: {side} filter", row.get(side, {})) for side in ("query", "gallery"))
    texts = {"list_file" if key == "list" else key: row[key] for key in TEXTS if key in row}
    return Protocol(dataset, name, query, gallery, hide, **texts)


def _parse_filter(where: str, given: Any) -> Filter:
    if not isinstance(given, dict):
        raise InputError(f"{where}: expected property: value, found a {type(given).__name__}")
    _require_all_known(where, given, FILTERS)
    wanted = {name: _as_texts(f"{where}: {name}", value) for name, value in given.items()}
    _require_all_known(f"{where}: view", wanted.get("view", ()), [view.word for view in View])
    return wanted


def _as_texts(where: str, value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str | int | float | date) for each in values):
        raise InputError(f"{where}: expected a value or a list of values")
    return tuple(map(str, values))


def _require_all_known(kind: str, names: Any, known: Any) -> None:
    for name in names:
        if name not in known:
            raise unknown(kind, shorten(str(name)), known)
