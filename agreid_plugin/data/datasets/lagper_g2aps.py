"""LAGPeR and G2APS-ReID, whose test images are those of list files.

LAGPeR: `bounding_box_train/<scene>/{pid}_c{camera}....jpg`. G2APS-ReID, rebuilt from the person search set G2APS:
`{pid}_c{camera}v{sequence}_{frame}.jpg`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agreid_plugin.data.datasets.tree import Grammar, Tree, camera_fields
from agreid_plugin.types import Record, View

LAGPER_AERIAL_CAMERAS = (3, 6, 9, 13, 16, 19, 22)  # of 1 to 22; there is no camera 10
LAGPER_LISTS = {"A2G": "exp3_A2G+.txt", "G2A": "exp4_G2A+.txt", "G2AG": "exp5_G2A+G.txt"}
G2APS_LISTS = {"A2G": "exp3_A2G+.txt", "G2A": "exp4_G2A+.txt"}
G2APS_PLATFORMS = {0: "uav", 3: "cctv"}  # by camera number


def parse_with_lists(tree: Tree, grammar: Grammar, lists: Mapping[str, str]) -> list[Record]:
    """Read `bounding_box_train` and the images in the list files.

    Args:
        tree: the dataset's folder; the lists' paths are relative to where `bounding_box_train` lies.
        grammar: how its images are named.
        lists: protocol -> list file. A note names protocols whose file is missing: they cannot be run.

    Returns:
        The records of all splits. A listed path is of the query if its first folder's name starts with `query`.
    """
    folder = tree.need("bounding_box_train")
    train = tree.records("train", tree.images("train", folder), grammar)
    files = _find_lists(tree, lists)
    by_path: dict[str, Record] = {}
    for file in files:
        by_path |= _read_list(tree, file, folder.parent, grammar)
    tree.lists.update({file.name: tree.sides(file, by_path) for file in files})
    return [*tree.without_junk(train), *by_path.values()]


def _find_lists(tree: Tree, lists: Mapping[str, str]) -> list[Path]:
    files = []
    for protocol, name in lists.items():
        file = tree.find(name)
        if file is None:
            tree.note(f"{name} not found: {tree.name}/{protocol} cannot be run")
        else:
            files.append(file)
    return files


def _read_list(tree: Tree, file: Path, folder: Path, grammar: Grammar) -> dict[str, Record]:
    lines = tree.read_list(file)
    tree.refuse_missing(file, [line for line in lines if not os.path.isfile(folder / line)], len(lines))
    found: dict[str, Record] = {}
    for split in ("query", "gallery"):
        paths = [folder / line for line in lines if line.startswith("query") == (split == "query")]
        records = tree.records(split, paths, grammar)
        found |= {Path(record.path).relative_to(folder).as_posix(): record for record in records}
    return found


def _lagper_fields(match: re.Match[str]) -> dict[str, Any]:
    camera = int(match["camera"])
    return {"pid": int(match["pid"]), **camera_fields(camera, aerial=camera in LAGPER_AERIAL_CAMERAS)}


# The released loader looks for pid and camera anywhere in the name, so something may stand before them.
LAGPER_GRAMMAR = Grammar(
    re.compile(r"(?:.*?[^-\d])?(?P<pid>-1|\d+)_c0*(?P<camera>[1-9]|1[1-9]|2[0-2])(?!\d).*"),
    "0001_c3_000001.jpg",
    _lagper_fields,
)


def parse_lagper(tree: Tree) -> list[Record]:
    """Read LAGPeR's training images and the test images of its lists."""
    return parse_with_lists(tree, LAGPER_GRAMMAR, LAGPER_LISTS)


def _g2aps_fields(match: re.Match[str]) -> dict[str, Any]:
    camera = int(match["camera"])
    return {
        "pid": int(match["pid"]),  # 5555 are the unlabeled people that fill up the galleries
        "camera": camera,
        "view": View.AERIAL if camera == 0 else View.GROUND,
        "platform": G2APS_PLATFORMS[camera],
        "tags": {"sequence": match["sequence"]},
    }


G2APS_GRAMMAR = Grammar(
    re.compile(r"(?P<pid>\d+)_c(?P<camera>[03])v(?P<sequence>\d+)_\d+.*"), "0001_c0v1_000001.jpg", _g2aps_fields
)


def parse_g2aps(tree: Tree) -> list[Record]:
    """Read G2APS-ReID's training images and the test images of its lists."""
    return parse_with_lists(tree, G2APS_GRAMMAR, G2APS_LISTS)
