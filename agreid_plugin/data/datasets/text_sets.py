"""Text-to-image sets: TAG-PEDES, CUHK-PEDES, ICFG-PEDES, RSTPReid. Their annotations are JSON lists of dicts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agreid_plugin.data.datasets.tree import Tree
from agreid_plugin.data.files import MOST_LABEL, are_texts, read_entries, refuse_leaving, shown
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.types import Record, View

SPLITS = ("train", "val", "test")
PATH_KEYS = ("file_path", "img_path")
TRANSLATIONS = "captions_bt"
"""The key of an annotation that has every caption translated to French and back."""
VIEWS = {0: View.AERIAL, 1: View.GROUND}  # by `cam_id`


@dataclass(frozen=True)
class TextSet:
    """Where one set keeps things.

    Attributes:
        whole: names of the file annotating all splits, each entry telling its own.
        images: folders that hold the images; the set's own folder is tried last.
        view: the view of images that have no `cam_id`.
    """

    whole: tuple[str, ...] = ()
    images: tuple[str, ...] = ("imgs", "images")
    view: View | None = View.GROUND


TEXT_SETS = {
    "TAG-PEDES": TextSet(view=None),
    "CUHK-PEDES": TextSet(whole=("reid_raw.json", "caption_all.json")),
    "ICFG-PEDES": TextSet(whole=("ICFG-PEDES.json", "ICFG_PEDES.json")),
    "RSTPReid": TextSet(whole=("data_captions.json",)),
}


def parse(tree: Tree) -> list[Record]:
    """Read a text set, annotated in one file or in one a split (`{train,val,test}_reid.json`, in `anno_dir` or not)."""
    text_set = TEXT_SETS[tree.name]
    folders = tree.folders(*text_set.images)
    records = []
    for file, split in _annotations(tree, text_set).items():
        entries = read_entries(file, [PATH_KEYS, "id", "captions", *([] if split else ["split"])])
        paths = _paths(file, entries)
        places = {path: next((f / path for f in folders if os.path.isfile(f / path)), None) for path in paths}
        tree.refuse_missing(file, [path for path in paths if places[path] is None], len(paths))
        for number, (entry, path) in enumerate(zip(entries, paths, strict=True), start=1):
            told = _told(text_set, f"{file}: entry {number}", {"split": split, **entry})
            records.append(Record(path=str(places[path]), tags=_tags(path), **told))
    if not records:
        raise InputError(f"{', '.join(map(str, _annotations(tree, text_set)))}: no entries")
    unseen = sum(record.view is None for record in records)
    if unseen:
        tree.note(f"{unseen} of {len(records)} images have no cam_id: their view is unknown")
    return records


def _annotations(tree: Tree, text_set: TextSet) -> dict[Path, str]:
    """Return annotation file -> its split, the split empty when each entry tells it."""
    for name in text_set.whole:
        file = tree.find(name)
        if file is not None:
            if name != text_set.whole[0]:
                tree.note(f"annotations read from {name}")
            return {file: ""}
    names = {split: (f"anno_dir/{split}_reid.json", f"{split}_reid.json") for split in SPLITS}
    files = {split: tree.find(*names[split]) for split in SPLITS}
    found = {file: split for split, file in files.items() if file is not None}
    if not found:
        tree.need(*text_set.whole, *names["train"])
    return found


def _paths(file: Path, entries: list[dict[str, Any]]) -> list[str]:
    paths = [path_in(entry) for entry in entries]
    for number, path in enumerate(paths, start=1):
        if not isinstance(path, str):
            raise InputError(f"{file}: entry {number}: the path is a {type(path).__name__}, expected a text")
        refuse_leaving(f"{file}: entry {number}", [path])
    return paths


def _told(text_set: TextSet, where: str, entry: dict[str, Any]) -> dict[str, Any]:
    captions = several(entry["captions"])
    label = entry.get("cam_id")
    if entry["split"] not in SPLITS:
        raise unknown(f"{where}: split", shown(str(entry["split"])), SPLITS)
    if type(entry["id"]) is not int or abs(entry["id"]) > MOST_LABEL or not are_texts(captions):
        raise InputError(f"{where}: id has to be a whole number and captions a list of texts")
    if not are_texts(several(entry.get(TRANSLATIONS) or [])):
        raise InputError(f"{where}: {TRANSLATIONS} has to be a list of texts, one for each caption")
    if label is not None and not (isinstance(label, int | float) and label in VIEWS):
        raise InputError(f"{where}: cam_id is {shown(repr(label))}, expected 0 for aerial or 1 for ground")
    view = text_set.view if label is None else VIEWS[int(label)]
    return {"pid": entry["id"], "split": entry["split"], "view": view, "captions": tuple(captions)}


def path_in(entry: dict[str, Any]) -> Any:
    """Return the path of an annotation's image, by whichever of `PATH_KEYS` it has."""
    return next(entry[key] for key in PATH_KEYS if key in entry)


def several(value: Any) -> Any:
    """Return the captions of an annotation as a list, also of one that has a text alone."""
    return [value] if isinstance(value, str) else value


def _tags(path: str) -> dict[str, str]:
    # Sets put together from others keep each under its own folder.
    return {"source": path.split("/")[0]} if "/" in path else {}
