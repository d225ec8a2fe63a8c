"""Text-to-image sets: TAG-PEDES, CUHK-PEDES, ICFG-PEDES, RSTPReid. Their annotations are JSON lists of dicts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agreid_plugin.data.datasets.tree import Tree
from agreid_plugin.data.files import MAX_LABEL, is_list_of_texts, read_entries, refuse_outside, shorten
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.types import Record, View

SPLITS = ("train", "val", "test")
PATH_KEYS = ("file_path", "img_path")
TRANSLATIONS = "captions_bt"
"""Key of an annotation with every caption translated to French and back."""
VIEWS = {0: View.AERIAL, 1: View.GROUND}  # by `cam_id`


@dataclass(frozen=True)
class TextSet:
    """Layout of one text set.

    Attributes:
        combined: names of the file that annotates all splits, each entry with its split.
        images: folders that hold the images; the set's folder is tried last.
        view: the view of images that have no `cam_id`.
    """

    combined: tuple[str, ...] = ()
    images: tuple[str, ...] = ("imgs", "images")
    view: View | None = View.GROUND


TEXT_SETS = {
    "TAG-PEDES": TextSet(view=None),
    "CUHK-PEDES": TextSet(combined=("reid_raw.json", "caption_all.json")),
    "ICFG-PEDES": TextSet(combined=("ICFG-PEDES.json", "ICFG_PEDES.json")),
    "RSTPReid": TextSet(combined=("data_captions.json",)),
}


def parse(tree: Tree) -> list[Record]:
    """Read a text set, annotated in one file or in one a split (`{train,val,test}_reid.json`, in `anno_dir` or not)."""
    text_set = TEXT_SETS[tree.name]
    folders = tree.folders(*text_set.images)
    records = []
    for file, split in _find_annotations(tree, text_set).items():
        entries = read_entries(file, [PATH_KEYS, "id", "captions", *([] if split else ["split"])])
        paths = _read_paths(file, entries)
        places = {path: next((f / path for f in folders if os.path.isfile(f / path)), None) for path in paths}
        tree.refuse_missing(file, [path for path in paths if places[path] is None], len(paths))
        for number, (entry, path) in enumerate(zip(entries, paths, strict=True), start=1):
            fields = _parse_entry(text_set, f"{file}: entry {number}", {"split": split, **entry})
            records.append(Record(path=str(places[path]), tags=_parse_tags(path), **fields))
    if not records:
        raise InputError(f"{', '.join(map(str, _find_annotations(tree, text_set)))}: no entries")
    unseen = sum(record.view is None for record in records)
    if unseen:
        tree.note(f"{unseen} of {len(records)} images have no cam_id: their view is unknown")
    return records


def _find_annotations(tree: Tree, text_set: TextSet) -> dict[Path, str]:
    """Return annotation file -> its split, empty when each entry has its split."""
    for name in text_set.combined:
        file = tree.find(name)
        if file is not None:
            if name != text_set.combined[0]:
                tree.note(f"annotations read from {name}")
            return {file: ""}
    names = {split: (f"anno_dir/{split}_reid.json", f"{split}_reid.json") for split in SPLITS}
    files = {split: tree.find(*names[split]) for split in SPLITS}
    found = {file: split for split, file in files.items() if file is not None}
    if not found:
        tree.need(*text_set.combined, *names["train"])
    return found


def _read_paths(file: Path, entries: list[dict[str, Any]]) -> list[str]:
    paths = [get_path(entry) for entry in entries]
    for number, path in enumerate(paths, start=1):
        if not isinstance(path, str):
            raise InputError(f"{file}: entry {number}: the path is a {type(path).__name__}, expected a text")
        refuse_outside(f"{file}: entry {number}", [path])
    return paths


def _parse_entry(text_set: TextSet, where: str, entry: dict[str, Any]) -> dict[str, Any]:
    captions = as_list(entry["captions"])
    label = entry.get("cam_id")
    if entry["split"] not in SPLITS:
        raise unknown(f"{where}: split", shorten(str(entry["split"])), SPLITS)
    if type(entry["id"]) is not int or abs(entry["id"]) > MAX_LABEL or not is_list_of_texts(captions):
        raise InputError(f"{where}: id has to be a whole number and captions a list of texts")
    if not is_list_of_texts(as_list(entry.get(TRANSLATIONS) or [])):
        raise InputError(f"{where}: {TRANSLATIONS} has to be a list of texts, one for each caption")
    if label is not None and not (isinstance(label, int | float) and label in VIEWS):
        raise InputError(f"{where}: cam_id is {shorten(repr(label))}, expected 0 for aerial or 1 for ground")
    view = text_set.view if label is None else VIEWS[int(label)]
    return {"pid": entry["id"], "split": entry["split"], "view": view, "captions": tuple(captions)}


def get_path(entry: dict[str, Any]) -> Any:
    """Return the path of an annotation's image, from the first of `PATH_KEYS` that it has."""
    return next(entry[key] for key in PATH_KEYS if key in entry)


def as_list(value: Any) -> Any:
    """Return the captions of an annotation as a list, also if there is a single text."""
    return [value] if isinstance(value, str) else value


def _parse_tags(path: str) -> dict[str, str]:
    # Sets put together from others keep each under its own folder.
    return {"source": path.split("/")[0]} if "/" in path else {}
