"""CP2108: `{pid}_{camera}_{time}_{scene}[_...].jpg`, split lists, attributes and captions in JSON."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from agreid_plugin.data.attributes import is_known
from agreid_plugin.data.datasets.tree import Grammar, Tree, camera_fields
from agreid_plugin.data.files import read_json, shorten
from agreid_plugin.errors import InputError, require_known, unknown
from agreid_plugin.types import Record, View

FIRST_AERIAL_CAMERA = 23
ATTRIBUTES = "attributes_labeled_qwen.json"
VALUES = "attr_translation_idx.json"
CAPTIONS = "attribute_captions_doubao.json"

LEVELS = ("identity", "image")
T = TypeVar("T")
Key = tuple[int, int, int]  # pid, view (0 ground, 1 aerial: the file's own numbers), time


def _fields(match: re.Match[str]) -> dict[str, Any]:
    camera = int(match["camera"])
    seen = camera_fields(camera, aerial=camera >= FIRST_AERIAL_CAMERA)
    return {"pid": int(match["pid"]), **seen, "tags": {"time": match["time"], "scene": match["scene"]}}


GRAMMAR = Grammar(
    re.compile(r"(?P<pid>\d+)_(?P<camera>\d+)_(?P<time>\d+)_(?P<scene>\d+)(_.*)?"), "1_23_1_4_0001.jpg", _fields
)


def parse(tree: Tree, version: int = 100, attribute_level: str = "identity") -> list[Record]:
    """Read CP2108's split lists of one version, and attributes and captions if their files are there.

    Args:
        tree: the folder.
        version: which of the split lists.
        attribute_level: `identity`, an image has the attributes of its identity from the ground by day, as in
            SVPR-ReID; `image`, those of its view and time, and the identity's where the file lacks them.
    """
    require_known(f"{tree.name}: attribute_level", attribute_level, LEVELS)
    lists = tree.need(f"split_v{version}")
    images = tree.need(f"images_v{version}" if version >= 100 else "images")
    records = []
    for split in ("train", "query", "gallery"):
        records += _read_split(tree, split, lists / f"{split}_v{version}.txt", images)
    return _with_captions(tree, _with_attributes(tree, records, attribute_level))


def read_cp2108(labels: Path, values: Path | None = None) -> dict[Key, dict[str, str]]:
    """Read CP2108's attributes.

    Args:
        labels: `attributes_labeled_qwen.json`, {"pid_view_time": {attribute: value}}.
        values: `attr_translation_idx.json`, {attribute: {value: index}}; with it, other values are refused.

    Returns:
        (pid, view, time) -> attribute -> value. Unknown values are left out.
    """
    groups = read_values(values) if values else None
    entries = {}
    for key, given in _read_by_key(labels, dict).items():
        where = f"{labels}: identity {key[0]}, entry {'_'.join(map(str, key))}"
        for name, value in given.items():
            _check_value(where, name, value, groups)
        entries[key] = {name: value for name, value in given.items() if is_known(value)}
    return entries


def _check_value(where: str, name: str, value: Any, groups: Mapping[str, tuple[str, ...]] | None) -> None:
    if not isinstance(value, str):
        raise InputError(
            f'{where}: {name!r} is {shorten(repr(value))}, expected text; write "Unknown" if it is not known'
        )
    if groups is None or not is_known(value):
        return
    if name not in groups:
        raise unknown(f"{where}: attribute", shorten(name), map(shorten, groups))
    if value not in groups[name]:
        raise unknown(f"{where}: value of {name!r}", shorten(value), map(shorten, groups[name]))


def read_values(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the values of each attribute in the order of their indices in `attr_translation_idx.json`."""
    content = read_json(path, dict)
    for name, indices in content.items():
        numbers = list(indices.values()) if isinstance(indices, dict) else [None]
        if not all(isinstance(number, int) for number in numbers) or len(set(numbers)) < len(numbers):
            raise InputError(f"{path}: {name!r}: expected attribute -> value -> index, no index twice")
    return {name: tuple(sorted(indices, key=indices.__getitem__)) for name, indices in content.items()}


def _read_split(tree: Tree, split: str, file: Path, images: Path) -> list[Record]:
    lines = tree.read_list(file)
    if not lines:
        raise InputError(f"{tree.name}: {split} is empty, {file} names no image")
    tree.refuse_missing(file, [line for line in lines if not os.path.isfile(images / line)], len(lines))
    return tree.records(split, [images / line for line in lines], GRAMMAR)


def _with_attributes(tree: Tree, records: list[Record], level: str) -> list[Record]:
    labels, values = tree.find(ATTRIBUTES), tree.find(VALUES)
    if labels is None:
        tree.note(f"{ATTRIBUTES} not found: no attributes")
        return records
    if values is None:
        tree.note(f"{VALUES} not found: attributes have the values that occur, sorted")
    else:
        tree.groups = read_values(values)
    entries = read_cp2108(labels, values)
    people = _choose_by_identity(entries)
    tree.note_undescribed(labels, records, people)
    if level == "identity":
        return [replace(record, attributes=people.get(record.pid, {})) for record in records]
    without = sum(_record_key(record) not in entries and record.pid in people for record in records)
    if without:
        tree.note(f"{without} images have no attributes of their view and time: their identity's are used")
    return [replace(record, attributes=_look_up(entries, people, record, {})) for record in records]


def _with_captions(tree: Tree, records: list[Record]) -> list[Record]:
    path = tree.find(CAPTIONS)
    if path is None:
        tree.note(f"{CAPTIONS} not found: no captions")
        return records
    by_key = _read_by_key(path, str)
    people = _choose_by_identity(by_key)
    # Clothes change between times, so the entry of the image's view and time goes before the identity's.
    texts = [_look_up(by_key, people, record, "") for record in records]
    return [replace(r, captions=(text,) if text else ()) for r, text in zip(records, texts, strict=True)]


def _record_key(record: Record) -> Key:
    return record.pid, int(record.view == View.AERIAL), int(record.tags["time"])


def _look_up(entries: Mapping[Key, T], people: Mapping[int, T], record: Record, default: T) -> T:
    return entries.get(_record_key(record), people.get(record.pid, default))


def _choose_by_identity(entries: Mapping[Key, T]) -> dict[int, T]:
    """Return one entry an identity: from the ground by day (time 1) if there is one, else the next."""
    people: dict[int, T] = {}
    for (pid, _, _), entry in sorted(entries.items(), key=_ground_day_first):
        people.setdefault(pid, entry)
    return people


def _read_by_key(path: Path, kind: type) -> dict[Key, Any]:
    content = read_json(path, dict)
    found = {}
    for text, value in content.items():
        match = re.fullmatch(r"(\d{1,18})_([01])_(\d{1,18})", text)
        if not match:
            raise InputError(f"{path}: key {shorten(text)!r} is not like 12_0_1 (pid_view_time)")
        if not isinstance(value, kind):
            raise InputError(f"{path}: {text!r} is a {type(value).__name__}, expected a {kind.__name__}")
        pid, view, time = map(int, match.groups())
        key = pid, view, time
        if key in found:
            raise InputError(f"{path}: {text!r} is there twice, once with other zeros in front; keep one")
        found[key] = value
    return found


def _ground_day_first(item: tuple[Key, Any]) -> tuple[int, int, int]:
    pid, view, time = item[0]
    return pid, view, -time
