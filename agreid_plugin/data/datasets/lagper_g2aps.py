"""Datasets whose test images are told by list files alone: LAGPeR and G2APS-ReID."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from agreid_plugin.data.datasets.tree import Grammar, Tree
from agreid_plugin.types import Record


def parse_listed(tree: Tree, grammar: Grammar, lists: Mapping[str, str]) -> list[Record]:
    """Read `bounding_box_train` and the images that the list files name.

    Args:
        tree: the dataset's folder; the lists' paths are relative to where `bounding_box_train` lies.
        grammar: how its images are named.
        lists: protocol -> list file. A protocol whose file is missing cannot be run, which a note says.

    Returns:
        The records of all splits. A listed path is of the query if its first folder's name starts with `query`.
    """
    folder = tree.need("bounding_box_train")
    train = tree.records("train", tree.images("train", folder), grammar)
    files = _existing(tree, lists)
    by_path: dict[str, Record] = {}
    for file in files:
        by_path |= _read(tree, file, folder.parent, grammar)
    tree.lists.update({file.name: tree.sides(file, by_path) for file in files})
    return [*tree.without_junk(train), *by_path.values()]


def _existing(tree: Tree, lists: Mapping[str, str]) -> list[Path]:
    files = []
    for protocol, name in lists.items():
        file = tree.find(name)
        if file is None:
            tree.note(f"{name} not found: {tree.name}/{protocol} cannot be run")
        else:
            files.append(file)
    return files


def _read(tree: Tree, file: Path, folder: Path, grammar: Grammar) -> dict[str, Record]:
    lines = tree.listed(file)
    tree.refuse_missing(file, [line for line in lines if not os.path.isfile(folder / line)], len(lines))
    found: dict[str, Record] = {}
    for split in ("query", "gallery"):
        paths = [folder / line for line in lines if line.startswith("query") == (split == "query")]
        records = tree.records(split, paths, grammar)
        found |= {Path(record.path).relative_to(folder).as_posix(): record for record in records}
    return found
