"""CARGO: synthetic, 13 cameras, `{train,query,gallery}/Cam{c}/Cam{c}_{day|night}_{pid}_{index}.jpg`."""

from __future__ import annotations

import re
from typing import Any

from agreid_plugin.data.datasets.tree import Grammar, Tree, camera_fields
from agreid_plugin.types import Record

AERIAL_CAMERAS = range(1, 6)  # of 1 to 13


def _fields(match: re.Match[str]) -> dict[str, Any]:
    camera = int(match["camera"])
    seen = camera_fields(camera, aerial=camera in AERIAL_CAMERAS)
    return {"pid": int(match["pid"]), **seen, "tags": {"time": match["time"]}}


GRAMMAR = Grammar(
    re.compile(r"Cam0*(?P<camera>[1-9]|1[0-3])_(?P<time>day|night)_(?P<pid>\d+)(_.*)?"), "Cam1_day_1_1.jpg", _fields
)


def parse(tree: Tree) -> list[Record]:
    """Read CARGO; folders below a split, one a camera, are allowed and not needed."""
    return [
        record
        for split in ("train", "query", "gallery")
        for record in tree.records(split, tree.images(split, tree.need(split)), GRAMMAR)
    ]
