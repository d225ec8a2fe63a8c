"""People's own images in a CSV table: a row an image."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from agreid_plugin.data.attributes import is_known
from agreid_plugin.data.datasets import custom
from agreid_plugin.data.datasets.tree import Tree
from agreid_plugin.data.files import existing, read_csv, refuse_leaving
from agreid_plugin.errors import InputError
from agreid_plugin.types import Record

COLUMNS = ("path", "pid", "split", "camera", "view", "platform")  # the first two are required
TAGS = ("time", "scene", "altitude")


def parse(
    tree: Tree,
    images: str = "",
    aerial_cameras: Collection[int | str] = (),
    split: str = "train",
    delimiter: str = ",",
) -> list[Record]:
    """Read a table with the columns `path` and `pid`, and as known `split`, `camera`, `view`, `platform`.

    A relative path leads to an image inside the folder of images; an absolute one leads anywhere, as the table is the
    user's own.

    Columns starting with `caption` are captions, `time`, `scene` and `altitude` are tags, all others attributes of the
    image. An attribute's value that is empty or `unknown` is left out.

    Args:
        tree: the CSV file, or a folder with one CSV file in it.
        images: the folder that relative paths start from, and may not leave; by default the table's own.
        aerial_cameras: the cameras in the air, for rows without a view.
        split: the split of rows that name none.
        delimiter: what separates the columns.
    """
    table = tree.file or _only_table(tree)
    folder = existing(images) if images else table.parent
    rows = [
        _row(f"{table}: line {line}", folder, split, values) for line, values in read_csv(table, COLUMNS[:2], delimiter)
    ]
    if not rows:
        raise InputError(f"{table}: no rows below the header")
    tree.refuse_missing(table, [row.path for row in rows if not os.path.isfile(row.path)], len(rows))
    return tree.without_junk(custom.build(rows, aerial_cameras))


def _only_table(tree: Tree) -> Path:
    tables = sorted(tree.root.glob("*.csv"))
    if len(tables) != 1:
        raise InputError(f"{tree.root}: {len(tables)} CSV files, expected one; name the file itself")
    return tables[0]


def _row(where: str, folder: Path, split: str, values: dict[str, str]) -> custom.Row:
    known = {name: values.get(name, "") for name in COLUMNS}
    others = {name: text for name, text in values.items() if name not in COLUMNS and text}
    captions = [name for name in others if name.startswith("caption")]
    if not os.path.isabs(known["path"]):
        refuse_leaving(where, [known["path"]], "name the folder of images with the option images")
    return custom.Row(
        where=where,
        **{**known, "path": str(folder / known["path"]), "split": known["split"] or split},
        captions=tuple(others[name] for name in captions),
        tags={name: others[name] for name in TAGS if name in others},
        attributes={n: text for n, text in others.items() if n not in (*TAGS, *captions) and is_known(text)},
    )
