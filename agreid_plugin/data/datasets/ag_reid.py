"""AG-ReID (v1): `P####T#####A#C#F#.jpg` in five flat folders, attributes in a .mat file."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from agreid_plugin.data.attributes import QUT_GROUPS, read_qut_mat
from agreid_plugin.data.datasets.mat_files import refuse_damaged
from agreid_plugin.data.datasets.tree import Grammar, Tree
from agreid_plugin.types import Record, View

PLATFORMS = {0: "uav", 2: "wearable", 3: "cctv"}  # by camera number
ATTRIBUTES = "qut_attribute_v4_88_attributes.mat"
FOLDERS = {  # as released; the letter of a folder's name is its camera
    "bounding_box_train": "train",
    "query_all_c0": "query",
    "query_all_c3": "query",
    "bounding_box_test_all_c0": "gallery",
    "bounding_box_test_all_c3": "gallery",
}
REARRANGED = {"train": "train", "query": "query", "gallery": "gallery"}  # as SVPR-ReID expects them


def _fields(match: re.Match[str]) -> dict[str, Any]:
    camera = int(match["camera"])
    return {
        # A person's number alone is no identity: the same one comes back on other days, in other clothes.
        "pid": int(match["person"] + match["time"] + match["altitude"]),
        "camera": camera,
        "view": View.AERIAL if camera == 0 else View.GROUND,
        "platform": PLATFORMS[camera],
        "tags": {"time": match["time"], "altitude": match["altitude"]},
    }


GRAMMAR = Grammar(
    re.compile(r"P(?P<person>\d+)T(?P<time>\d+)A(?P<altitude>\d+)C0*(?P<camera>[023])F\d+"),
    "P0001T04041A0C0F31.jpg",
    _fields,
)


def parse(tree: Tree) -> list[Record]:
    """Read AG-ReID in its released folders or rearranged into train, query and gallery."""
    folders = FOLDERS
    if tree.find("bounding_box_train") is None and tree.find("train") is not None:
        folders = REARRANGED
        tree.note("folders train, query, gallery: rearranged as in SVPR-ReID")
    records = []
    for folder, split in folders.items():
        records += tree.records(split, tree.images(folder, tree.need(folder)), GRAMMAR)
    stray = sum(record.platform == "wearable" for record in records)
    if stray:
        tree.note(f"{stray} images of camera C2, a wearable one, which later releases of AG-ReID do not have")
    return with_attributes(tree, records, ATTRIBUTES)


def with_attributes(tree: Tree, records: list[Record], file: str) -> list[Record]:
    """Give each record its identity's attributes, if the dataset's folder has the file that tells them."""
    path = tree.find(file)
    if path is None:
        tree.note(f"{file} not found: no attributes")
        return records
    refuse_damaged(path)
    people = read_qut_mat(path)
    tree.groups = QUT_GROUPS
    tree.note_undescribed(path, records, people)
    return [replace(record, attributes=people.get(record.pid, {})) for record in records]
