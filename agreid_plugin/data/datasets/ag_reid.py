"""AG-ReID and AG-ReID.v2: `P####T#####A#C#F#.jpg` in flat folders, attributes in a .mat file; lists of protocols."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from agreid_plugin.data.attributes import QUT_GROUPS, is_known
from agreid_plugin.data.datasets.mat_files import read_mat
from agreid_plugin.data.datasets.tree import Grammar, Tree
from agreid_plugin.errors import InputError, did_you_mean
from agreid_plugin.types import Record, View

PLATFORMS = {0: "uav", 2: "wearable", 3: "cctv"}  # by camera number
QUT_YES = 2  # in the .mat file 1 is no and 2 is yes
ATTRIBUTES = "qut_attribute_v4_88_attributes.mat"
FOLDERS = {  # as released; the letter of a folder's name is its camera
    "bounding_box_train": "train",
    "query_all_c0": "query",
    "query_all_c3": "query",
    "bounding_box_test_all_c0": "gallery",
    "bounding_box_test_all_c3": "gallery",
}
REARRANGED = {"train": "train", "query": "query", "gallery": "gallery"}  # as SVPR-ReID expects them
V2_ATTRIBUTES = "qut_attribute_v8.mat"
V2_LISTS = {
    "A2C": "exp1_aerial_to_cctv.txt",
    "A2W": "exp2_aerial_to_wearable.txt",
    "C2A": "exp4_cctv_to_aerial.txt",
    "W2A": "exp5_wearable_to_aerial.txt",
}


def _fields(match: re.Match[str]) -> dict[str, Any]:
    camera = int(match["camera"])
    return {
        # A person's number is no identity: the same one comes back on other days, in other clothes.
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
    """Add each identity's attributes to its records, if the dataset's folder has the attribute file."""
    path = tree.find(file)
    if path is None:
        tree.note(f"{file} not found: no attributes")
        return records
    people = read_qut_mat(path)
    tree.groups = QUT_GROUPS
    tree.note_undescribed(path, records, people)
    return [replace(record, attributes=people.get(record.pid, {})) for record in records]


def read_qut_mat(path: str | Path) -> dict[int, dict[str, str]]:
    """Read AG-ReID's attributes of identities (`qut_attribute_v4_88_attributes.mat`, `qut_attribute_v8.mat`).

    Fields are found by name, in any case and order. Unknown and missing values are left out.

    Args:
        path: the .mat file, a struct `qut_attribute` with the structs `train` and `test`.

    Returns:
        The identity's number, as file names give it, -> attribute -> value.
    """
    people: dict[int, dict[str, str]] = {}
    any_yes = False
    for columns in _qut_structs(Path(path)):
        pids = [_qut_pid(path, value) for value in np.atleast_1d(columns["image_index"])]
        for pid in pids:
            people.setdefault(pid, {})
        for group, values in QUT_GROUPS.items():
            positive = np.stack([_qut_column(path, columns, group + value, len(pids)) for value in values], axis=1)
            any_yes |= bool(positive.any())
            for pid, row in zip(pids, positive, strict=True):
                people[pid].update(_qut_value(path, pid, group, row))
    if not any_yes:
        raise InputError(f"{path}: no field says yes for any identity; write 1 for no and {QUT_YES} for yes")
    return people


def _qut_structs(path: Path) -> list[dict[str, np.ndarray]]:
    content = read_mat(path)
    halves = content.get("qut_attribute")
    if not isinstance(halves, dict) or not {"train", "test"} & halves.keys():
        raise InputError(f"{path}: expected a struct qut_attribute with train and test, found {sorted(content)}")
    for half, fields in halves.items():
        if not isinstance(fields, dict):
            raise InputError(f"{path}: qut_attribute.{half} is no struct with a field for each attribute and value")
    structs = [{name.lower(): column for name, column in half.items()} for half in halves.values()]
    if not all("image_index" in columns for columns in structs):
        raise InputError(f"{path}: a struct of qut_attribute lacks the field image_index, the identities")
    return structs


def _qut_pid(path: str | Path, value: Any) -> int:
    # Numbers arrive as doubles, texts either as digits or as P0001T04041A0.
    try:
        return int("".join(filter(str.isdigit, value))) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{path}: image_index {value!r} is no identity; it should be like P0001T04041A0") from None


def _qut_column(path: str | Path, columns: Mapping[str, np.ndarray], field: str, identities: int) -> np.ndarray:
    """Return for which identities a field says yes: (identities,)."""
    if field not in columns:
        raise InputError(f"{path}: attribute field {field!r} missing{did_you_mean(field, columns)}")
    try:
        column = np.atleast_1d(columns[field]).astype(float)
    except (TypeError, ValueError):
        raise InputError(f"{path}: field {field!r} holds other than numbers; write 1 for no, 2 for yes") from None
    if column.shape != (identities,):
        raise InputError(
            f"{path}: field {field!r} has {column.size} values for the {identities} identities of image_index; it "
            "needs one for each"
        )
    return column == QUT_YES


def _qut_value(path: str | Path, pid: int, group: str, positive: np.ndarray) -> dict[str, str]:
    chosen = [value for value, yes in zip(QUT_GROUPS[group], positive, strict=True) if yes]
    if len(chosen) > 1:
        raise InputError(f"{path}: identity {pid} has {len(chosen)} values of {group!r} at once: {', '.join(chosen)}")
    return {group: chosen[0]} if chosen and is_known(chosen[0]) else {}


def parse_v2(tree: Tree) -> list[Record]:
    """Read AG-ReID.v2; images one folder deeper than the lists, as SeCap and ViSA have them, are found too."""
    folders = {"train": tree.need("train_all"), "query": tree.need("query"), "gallery": tree.need("gallery")}
    records = []
    for split, folder in folders.items():
        records += tree.records(split, tree.images(split, folder), GRAMMAR)
    records = with_attributes(tree, records, V2_ATTRIBUTES)
    by_path = {
        f"{record.split}/{Path(record.path).relative_to(folders[record.split]).as_posix()}": record
        for record in records
    }
    for protocol, file in V2_LISTS.items():
        path = tree.find(file)
        if path is None:
            tree.note(f"AG-ReID.v2/{protocol}: {file} not found, sides made from file names")
        else:
            tree.lists[file] = tree.sides(path, by_path)
    return records
