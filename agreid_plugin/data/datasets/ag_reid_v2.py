"""AG-ReID.v2: names as AG-ReID's, three platforms, one list file a protocol."""

from __future__ import annotations

from pathlib import Path

from agreid_plugin.data.datasets.ag_reid import GRAMMAR, with_attributes
from agreid_plugin.data.datasets.tree import Tree
from agreid_plugin.types import Record

ATTRIBUTES = "qut_attribute_v8.mat"
LISTS = {
    "A2C": "exp1_aerial_to_cctv.txt",
    "A2W": "exp2_aerial_to_wearable.txt",
    "C2A": "exp4_cctv_to_aerial.txt",
    "W2A": "exp5_wearable_to_aerial.txt",
}


def parse(tree: Tree) -> list[Record]:
    """Read AG-ReID.v2; images one folder deeper than the lists, as SeCap and ViSA have them, are found too."""
    folders = {"train": tree.need("train_all"), "query": tree.need("query"), "gallery": tree.need("gallery")}
    records = []
    for split, folder in folders.items():
        records += tree.records(split, tree.images(split, folder), GRAMMAR)
    records = with_attributes(tree, records, ATTRIBUTES)
    by_path = {
        f"{record.split}/{Path(record.path).relative_to(folders[record.split]).as_posix()}": record
        for record in records
    }
    for protocol, file in LISTS.items():
        path = tree.find(file)
        if path is None:
            tree.note(f"AG-ReID.v2/{protocol}: {file} not found, sides made from file names")
        else:
            tree.lists[file] = tree.sides(path, by_path)
    return records
