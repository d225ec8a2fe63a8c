"""Every file the data side reads: how a good one is made, how it is damaged, what holds of it when it is accepted."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
from data import trees
from fuzz_cases import ODD_TEXTS, damaged, damaged_json, damaged_yaml
from hypothesis import strategies as st

from agreid_plugin.captioning import AttributeBackend, add_attributes, load_subjects, write_captions
from agreid_plugin.data.captions import load_back_translations
from agreid_plugin.data.check import check
from agreid_plugin.data.datasets import load
from agreid_plugin.data.protocols import Meta, read_protocols, usable_protocols

PEOPLE = {str(pid): {"gender": "male", "upper color": "red", "age": 30} for pid in (1, 2, 5)}
PROTOCOLS = """Mine:
  A2G: {query: {view: aerial, time: [day, dusk]}, gallery: {camera: 3}, hide: [same_time], source: me, note: mine}
  ALL: {restrict: query_in_gallery, list: test.txt, kind: image, source: me}
"""


@dataclass(frozen=True)
class Target:
    """A file that is read.

    Attributes:
        name: of the test.
        make: writes a good file, with all that belongs to it, into a folder and returns its path.
        read: reads the file and checks what comes out.
        damage: from a good file's content to damaged ones.
        also: what a refusal may name in place of the file.
    """

    name: str
    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    damage: Callable[[bytes], st.SearchStrategy[bytes]] = damaged_json
    also: tuple[str, ...] = ()


def _tree(build: Callable[[Path], Path], file: str) -> Callable[[Path], Path]:
    return lambda folder: build(folder) / file


def _dataset(name: str, up: int = 0) -> Callable[[Path], None]:
    return lambda file: read_dataset(name, file.parents[up])


def read_dataset(name: str, root: Path) -> None:
    """Load a dataset and look at all that others build on."""
    found = load(name, root)
    for record in found.records:
        assert os.path.isfile(record.path)
        assert not os.path.relpath(record.path, root).startswith("..")
        assert type(record.pid) is int
        texts = [*record.captions, *record.attributes.values(), *record.tags.values()]
        assert all(isinstance(text, str) for text in texts)
        "".join(texts).encode()
    Meta.collect(found.records)
    load_back_translations(found)
    check(found, images=False, progress=False)
    usable_protocols(found)


def _csv(folder: Path) -> Path:
    trees.write_images(folder, ["a/1.jpg", "a/2.jpg", "b.jpg"])
    rows = [
        "path,pid,split,camera,view,platform,caption,time,hair",
        'a/1.jpg,0007,query,1,aerial,uav,"a man, running",day,long',
        "a/2.jpg,7,gallery,2,ground,,,,",
        "b.jpg,8,,,,,,,",
    ]
    return trees.write_text(folder / "table.csv", "\n".join(rows))


def _damaged_lines(separators: str) -> Callable[[bytes], st.SearchStrategy[bytes]]:
    """Return what damages a text: the file, or one of the pieces between separators."""

    @st.composite
    def pieces(draw: st.DrawFn, original: bytes) -> bytes:
        separator = draw(st.sampled_from(separators))
        parts = original.decode().split(separator)
        parts[draw(st.integers(0, len(parts) - 1))] = draw(st.sampled_from(ODD_TEXTS))
        return separator.join(parts).encode("utf-8", "surrogatepass")

    return lambda original: damaged(original) | pieces(original)


def _mat(folder: Path) -> Path:
    file = trees.ag_reid(folder) / "qut_attribute_v4_88_attributes.mat"
    file.write_bytes(b"MATLAB 5.0 MAT-file".ljust(116) + file.read_bytes()[116:])  # the date it was made on goes
    return file


def _damaged_mat(original: bytes) -> st.SearchStrategy[bytes]:
    content = scipy.io.loadmat(io.BytesIO(original), simplify_cells=True)["qut_attribute"]
    odd = [np.inf, np.nan, -1, "x", [], np.ones((2, 2, 2)), 1j, {"a": 1}, np.array(["y", "x"], dtype=object), 1e300]
    fields = ["image_index", "gendermale", "bagunknown"]

    def write(half: str, field: str, value: Any) -> bytes:
        buffer = io.BytesIO()
        scipy.io.savemat(buffer, {"qut_attribute": {**content, half: {**content[half], field: value}}})
        return buffer.getvalue()

    said = st.builds(write, st.sampled_from(["train", "test"]), st.sampled_from(fields), st.sampled_from(odd))
    return damaged(original) | said


def _subjects(folder: Path) -> list:
    return load_subjects("folder", folder / "images", aerial_cameras=[1])


def _attributes(ending: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        trees.write_images(folder / "images", [f"{pid:04d}_c{camera}.jpg" for pid in (1, 2, 5) for camera in (1, 2)])
        if ending == "json":
            return trees.write_json(folder / "people.json", PEOPLE)
        return trees.write_text(folder / "people.csv", "id,gender,hat\n1,male,yes\n0002,female,\n")

    return make


def _journal(folder: Path) -> Path:
    """Write the progress of a run that stopped half-way."""
    out = folder / "out.json"
    with suppress(KeyError):
        file = _attributes("json")(folder)
        write_captions(add_attributes(_subjects(folder), file), StopsAfter(5), out)
    return out.with_name("out.json.partial.jsonl")


class StopsAfter(AttributeBackend):
    """Answers some questions, and then breaks."""

    def __init__(self, count: int):
        super().__init__()
        self.left = count

    def answer(self, *args: Any, **options: Any):
        self.left -= 1
        if self.left < 0:
            raise KeyError("enough")
        return super().answer(*args, **options)


def _continue(file: Path) -> None:
    """Go on with a run: its output is whole, or there is none."""
    folder, out = file.parent, file.parent / "out.json"
    out.unlink(missing_ok=True)
    subjects = add_attributes(_subjects(folder), folder / "people.json")
    before = sorted(os.listdir(folder))
    try:
        write_captions(subjects, AttributeBackend(), out)
    except Exception:
        assert not out.exists()
        assert sorted(os.listdir(folder)) == before
        raise
    assert [entry["file_path"] for entry in json.loads(out.read_bytes())] == [s.file_path for s in subjects]


def _read_attributes(file: Path) -> None:
    for subject in add_attributes(_subjects(file.parent), file):
        assert all(isinstance(value, str) for value in subject.attributes.values())


def _read_protocols(file: Path) -> None:
    for rows in read_protocols(file).values():
        for row in rows.values():
            texts = (row.name, *row.hide, row.list_file, row.restrict, row.source, row.note, row.kind)
            assert all(isinstance(text, str) for text in texts)


def _one_file(name: str) -> Callable[[Path], Path]:
    return _tree(lambda folder: trees.one_file_set(folder, name), name)


_CP2108 = "attributes_labeled_qwen.json", "attr_translation_idx.json", "attribute_captions_doubao.json"
_LIST = _damaged_lines("\n/_.")

TARGETS = [
    Target("TAG-PEDES", _tree(trees.tag_pedes, "anno_dir/train_reid.json"), _dataset("TAG-PEDES", 1)),
    Target("CUHK-PEDES", _one_file("reid_raw.json"), _dataset("CUHK-PEDES")),
    Target("ICFG-PEDES", _one_file("ICFG-PEDES.json"), _dataset("ICFG-PEDES")),
    Target("RSTPReid", _one_file("data_captions.json"), _dataset("RSTPReid")),
    *(Target(f"CP2108 {n}", _tree(trees.cp2108, n), _dataset("CP2108"), also=_CP2108[:1]) for n in _CP2108),
    Target("CP2108 list", _tree(trees.cp2108, "split_v100/query_v100.txt"), _dataset("CP2108", 1), _LIST),
    Target("AG-ReID attributes", _mat, _dataset("AG-ReID"), _damaged_mat),
    Target("AG-ReID.v2 list", _tree(trees.ag_reid_v2, "exp1_aerial_to_cctv.txt"), _dataset("AG-ReID.v2"), _LIST),
    Target("LAGPeR list", _tree(trees.lagper, "exp3_A2G+.txt"), _dataset("LAGPeR"), _LIST),
    Target("G2APS list", _tree(trees.g2aps, "exp4_G2A+.txt"), _dataset("G2APS-ReID"), _LIST),
    Target("csv", _csv, _dataset("csv"), _damaged_lines(",\n"), also=("no image is left under",)),
    Target("protocols", lambda folder: trees.write_text(folder / "mine.yml", PROTOCOLS), _read_protocols, damaged_yaml),
    Target("attributes to caption by", _attributes("json"), _read_attributes),
    Target("table to caption by", _attributes("csv"), _read_attributes, _damaged_lines(",\n")),
    Target("progress of captions", _journal, _continue, _damaged_lines('\n,"')),
]
