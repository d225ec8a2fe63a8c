"""LAGPeR: `bounding_box_train/<scene>/{pid}_c{camera}....jpg` and a list file a protocol."""

from __future__ import annotations

import re
from typing import Any

from agreid_plugin.data.datasets.lagper_g2aps import parse_listed
from agreid_plugin.data.datasets.tree import Grammar, Tree, camera_fields
from agreid_plugin.types import Record

AERIAL_CAMERAS = (3, 6, 9, 13, 16, 19, 22)  # of 1 to 22; there is no camera 10
LISTS = {"A2G": "exp3_A2G+.txt", "G2A": "exp4_G2A+.txt", "G2AG": "exp5_G2A+G.txt"}


def _fields(match: re.Match[str]) -> dict[str, Any]:
    camera = int(match["camera"])
    return {"pid": int(match["pid"]), **camera_fields(camera, aerial=camera in AERIAL_CAMERAS)}


# The released loader looks for pid and camera anywhere in the name, so something may stand before them.
GRAMMAR = Grammar(
    re.compile(r"(?:.*?[^-\d])?(?P<pid>-1|\d+)_c0*(?P<camera>[1-9]|1[1-9]|2[0-2])(?!\d).*"),
    "0001_c3_000001.jpg",
    _fields,
)


def parse(tree: Tree) -> list[Record]:
    """Read LAGPeR's training images and the test images of its lists."""
    return parse_listed(tree, GRAMMAR, LISTS)
