"""CP2108: `{pid}_{camera}_{time}_{scene}[_...].jpg`, split lists, attributes and captions in JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agreid_plugin.data.attributes import is_known
from agreid_plugin.data.datasets.files import read_json
from agreid_plugin.data.datasets.tree import Grammar, Tree, camera_fields
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.types import Record, View

FIRST_AERIAL_CAMERA = 23
ATTRIBUTES = "attributes_labeled_qwen.json"
VALUES = "attr_translation_idx.json"
CAPTIONS = "attribute_captions_doubao.json"

Key = tuple[int, int, int]  # pid, view (0 ground, 1 aerial: the file's own numbers), time


def _fields(match: re.Match[str]) -> dict[str, Any]:
    camera = int(match["camera"])
    seen = camera_fields(camera, aerial=camera >= FIRST_AERIAL_CAMERA)
    return {"pid": int(match["pid"]), **seen, "tags": {"time": match["time"], "scene": match["scene"]}}


GRAMMAR = Grammar(
    re.compile(r"(?P<pid>\d+)_(?P<camera>\d+)_(?P<time>\d+)_(?P<scene>\d+)(_.*)?"), "1_23_1_4_0001.jpg", _fields
)


def parse(tree: Tree, version: int = 100) -> list[Record]:
    """Read CP2108's split lists of one version, and attributes and captions if their files are there."""
    lists = tree.need(f"split_v{version}")
    images = tree.need(f"images_v{version}" if version >= 100 else "images")
    records = []
    for split in ("train", "query", "gallery"):
        records += _read_split(tree, split, lists / f"{split}_v{version}.txt", images)
    return _with_captions(tree, _with_attributes(tree, records))


def read_cp2108(labels: Path, values: Path | None = None) -> dict[int, dict[str, str]]:
    """Read CP2108's attributes of identities.

    Args:
        labels: `attributes_labeled_qwen.json`, {"pid_view_time": {attribute: value}}.
        values: `attr_translation_idx.json`, {attribute: {value: index}}; with it, other values are refused.

    Returns:
        pid -> attribute -> value. What was seen from the ground by day (time 1) goes first, as in SVPR-ReID; an
        identity without it takes its next entry. Unknown values are left out.
    """
    groups = read_values(values) if values else {}
    people: dict[int, dict[str, str]] = {}
    for (pid, _, _), given in sorted(_by_key(labels, dict).items(), key=_ground_day_first):
        people.setdefault(pid, {name: str(value) for name, value in given.items() if is_known(str(value))})
    for pid, person in people.items():
        for name, value in person.items():
            if groups and value not in groups.get(name, ()):
                raise unknown(f"{labels}: identity {pid}: value of {name!r}", value, groups.get(name, ()))
    return people


def read_values(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the values of each attribute in the order of their indices in `attr_translation_idx.json`."""
    content = read_json(path, dict)
    if not all(isinstance(indices, dict) for indices in content.values()):
        raise InputError(f"{path}: expected attribute -> value -> index")
    return {name: tuple(sorted(indices, key=indices.__getitem__)) for name, indices in content.items()}


def _read_split(tree: Tree, split: str, file: Path, images: Path) -> list[Record]:
    lines = tree.listed(file)
    if not lines:
        raise InputError(f"{tree.name}: {split} is empty, {file} names no image")
    tree.refuse_missing(file, [line for line in lines if not (images / line).is_file()], len(lines))
    return tree.records(split, [images / line for line in lines], GRAMMAR)


def _with_attributes(tree: Tree, records: list[Record]) -> list[Record]:
    labels, values = tree.find(ATTRIBUTES), tree.find(VALUES)
    if labels is None:
        tree.note(f"{ATTRIBUTES} not found: no attributes")
        return records
    if values is not None:
        tree.groups = read_values(values)
    people = read_cp2108(labels, values)
    return [replace(record, attributes=people.get(record.pid, {})) for record in records]


def _with_captions(tree: Tree, records: list[Record]) -> list[Record]:
    path = tree.find(CAPTIONS)
    if path is None:
        tree.note(f"{CAPTIONS} not found: no captions")
        return records
    by_key = _by_key(path, str)
    people = {key[0]: text for key, text in sorted(by_key.items(), key=_ground_day_first, reverse=True)}
    return [replace(record, captions=_captions(by_key, people, record)) for record in records]


def _captions(by_key: Mapping[Key, str], people: Mapping[int, str], record: Record) -> tuple[str, ...]:
    # Clothes change between times, so the image's own view and time go before the identity's.
    own = (record.pid, int(record.view == View.AERIAL), int(record.tags["time"]))
    text = by_key.get(own, people.get(record.pid, ""))
    return (text,) if text else ()


def _by_key(path: Path, kind: type) -> dict[Key, Any]:
    content = read_json(path, dict)
    found = {}
    for text, value in content.items():
        match = re.fullmatch(r"(\d+)_([01])_(\d+)", text)
        if not match:
            raise InputError(f"{path}: key {text!r} is not like 12_0_1 (pid_view_time)")
        if not isinstance(value, kind):
            raise InputError(f"{path}: {text!r} is a {type(value).__name__}, expected a {kind.__name__}")
        found[tuple(map(int, match.groups()))] = value
    return found


def _ground_day_first(item: tuple[Key, Any]) -> tuple[int, int, int]:
    pid, view, time = item[0]
    return pid, view, -time
