"""G2APS-ReID, rebuilt from the G2APS person search set: `{pid}_c{camera}v{sequence}_{frame}.jpg` and lists."""

from __future__ import annotations

import re
from typing import Any

from agreid_plugin.data.datasets.lagper_g2aps import parse_listed
from agreid_plugin.data.datasets.tree import Grammar, Tree
from agreid_plugin.types import Record, View

LISTS = {"A2G": "exp3_A2G+.txt", "G2A": "exp4_G2A+.txt"}
PLATFORMS = {0: "uav", 3: "cctv"}  # by camera number


def _fields(match: re.Match[str]) -> dict[str, Any]:
    camera = int(match["camera"])
    return {
        "pid": int(match["pid"]),  # 5555 are the unlabeled people that fill up the galleries
        "camera": camera,
        "view": View.AERIAL if camera == 0 else View.GROUND,
        "platform": PLATFORMS[camera],
        "tags": {"sequence": match["sequence"]},
    }


GRAMMAR = Grammar(
    re.compile(r"(?P<pid>\d+)_c(?P<camera>[03])v(?P<sequence>\d+)_\d+.*"), "0001_c0v1_000001.jpg", _fields
)


def parse(tree: Tree) -> list[Record]:
    """Read G2APS-ReID's training images and the test images of its lists."""
    return parse_listed(tree, GRAMMAR, LISTS)
