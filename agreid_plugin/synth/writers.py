"""Writers of dataset layouts: the path of each picture, and annotation files."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from agreid_plugin.synth.cameras import camera
from agreid_plugin.synth.people import Person
from agreid_plugin.synth.plan import Frame
from agreid_plugin.synth.vocabulary import cp2108_labels, cp2108_values, qut_labels

SOURCE = "AG-Synth"  # the folder of a text set's images names where they come from
_CP2108_FIRST_AERIAL = 23
_QUT_PLATFORMS = {"uav": 0, "wearable": 2, "cctv": 3}
_QUT_LISTS = {  # list file -> cameras of query and gallery
    "exp1_aerial_to_cctv.txt": (0, 3),
    "exp2_aerial_to_wearable.txt": (0, 2),
    "exp4_cctv_to_aerial.txt": (3, 0),
    "exp5_wearable_to_aerial.txt": (2, 0),
}
_MAT_HEADER = b"MATLAB 5.0 MAT-file, AG-Synth".ljust(116)


@dataclass(frozen=True)
class WrittenPicture:
    """A picture on disk with its annotations."""

    frame: Frame
    captions: tuple[str, str]
    pose: str
    facing: str


People = Mapping[int, Person]


@dataclass(frozen=True)
class Layout:
    """Layout of a dataset's files.

    Attributes:
        folder: the folder of the dataset whose layout it is; for a table, which may have any, AG-Synth's name.
        least_images: of an identity, so that every protocol has both sides.
        place: where a picture goes, relative to the folder.
        annotate: writes the other files; None where the names of the pictures are all annotations.
    """

    folder: str
    least_images: int
    place: Callable[[Frame], str]
    annotate: Callable[[Path, Sequence[WrittenPicture], People], None] | None


def _cargo_place(frame: Frame) -> str:
    name = f"Cam{frame.camera}_{'night' if frame.night else 'day'}_{frame.pid}_{frame.index}.jpg"
    return f"{frame.split}/Cam{frame.camera}/{name}"


def _qut_name(pid: int) -> str:
    # Day and altitude are part of the identity there, so they are the same in all its names.
    return f"P{pid:04d}T01010A0"


def _qut_camera(frame: Frame) -> int:
    return _QUT_PLATFORMS[camera(frame.camera).platform]


def _qut_place(frame: Frame) -> str:
    name = _qut_name(frame.pid)
    split = "train_all" if frame.split == "train" else frame.split
    return f"AG-ReID.v2/{split}/{name}/{name}C{_qut_camera(frame)}F{frame.index}.jpg"


def _annotate_qut(root: Path, taken: Sequence[WrittenPicture], people: People) -> None:
    for file, (query, gallery) in _QUT_LISTS.items():
        sides = {"query": query, "gallery": gallery}
        frames = [shot.frame for shot in taken if sides.get(shot.frame.split) == _qut_camera(shot.frame)]
        _write(root / file, "".join(f"{_qut_place(frame).removeprefix('AG-ReID.v2/')}\n" for frame in frames))
    train = {shot.frame.pid for shot in taken if shot.frame.split == "train"}
    halves = {"train": sorted(train), "test": sorted(people.keys() - train)}
    content = {half: _qut_struct(pids, people) for half, pids in halves.items()}
    stream = io.BytesIO()
    scipy.io.savemat(stream, {"qut_attribute": content})
    # The header has the time of writing in it; the same dataset should be the same bytes.
    (root / "qut_attribute_v8.mat").write_bytes(_MAT_HEADER + stream.getvalue()[len(_MAT_HEADER) :])


def _qut_struct(pids: Sequence[int], people: People) -> dict[str, np.ndarray]:
    from agreid_plugin.data.attributes import QUT_GROUPS  # imports torch, which rendering does without

    labels = [qut_labels(people[pid].attributes) for pid in pids]
    struct = {
        group + value: np.array([[1 + (given[group] == value) for given in labels]], dtype=np.uint8)
        for group, values in QUT_GROUPS.items()
        for value in values
    }
    keys = np.empty((1, len(pids)), dtype=object)
    keys[0] = ["".join(filter(str.isdigit, _qut_name(pid))) for pid in pids]
    return struct | {"image_index": keys}


def _cp2108_name(frame: Frame) -> str:
    aerial = camera(frame.camera).aerial
    number = frame.camera + _CP2108_FIRST_AERIAL - 1 if aerial else frame.camera - 5
    return f"{frame.pid}_{number}_{int(not frame.night)}_{frame.camera}_{frame.index:04d}.jpg"


def _cp2108_place(frame: Frame) -> str:
    return f"images_v100/{_cp2108_name(frame)}"


def _annotate_cp2108(root: Path, taken: Sequence[WrittenPicture], people: People) -> None:
    (root / "split_v100").mkdir()
    for split in ("train", "query", "gallery"):
        names = [_cp2108_name(shot.frame) for shot in taken if shot.frame.split == split]
        _write(root / "split_v100" / f"{split}_v100.txt", "".join(f"{name}\n" for name in names))
    groups: dict[str, list[WrittenPicture]] = defaultdict(list)
    for shot in taken:
        frame = shot.frame
        groups[f"{frame.pid}_{int(camera(frame.camera).aerial)}_{int(not frame.night)}"].append(shot)
    attributes = {key: _cp2108_attributes(shots, people) for key, shots in groups.items()}
    _write_json(root / "attributes_labeled_qwen.json", attributes)
    _write_json(root / "attr_translation_idx.json", cp2108_values())
    _write_json(root / "attribute_captions_doubao.json", {key: shots[0].captions[0] for key, shots in groups.items()})


def _cp2108_attributes(shots: Sequence[WrittenPicture], people: People) -> dict[str, str]:
    """Return the attributes of one identity in one view at one time: what most of the pictures show."""
    pose, facing = (
        Counter(values).most_common(1)[0][0] for values in zip(*((s.pose, s.facing) for s in shots), strict=True)
    )
    frame = shots[0].frame
    return cp2108_labels(people[frame.pid].attributes, pose, facing, "Low_Light" if frame.night else "Normal_Light")


def _tag_place(frame: Frame) -> str:
    return f"images/{SOURCE}/{frame.pid:04d}_{frame.camera:02d}_{frame.index:04d}.jpg"


def _annotate_tag(root: Path, taken: Sequence[WrittenPicture], _people: People) -> None:
    (root / "anno_dir").mkdir()
    for split in ("train", "test"):
        entries = [
            {
                "file_path": _tag_place(shot.frame).removeprefix("images/"),
                "id": shot.frame.pid,
                "captions": list(shot.captions),
                "cam_id": 0 if camera(shot.frame.camera).aerial else 1,
            }
            for shot in taken
            if (shot.frame.split == "train") == (split == "train")
        ]
        _write_json(root / "anno_dir" / f"{split}_reid.json", entries)


def _table_place(frame: Frame) -> str:
    return f"images/{frame.pid:04d}_{frame.camera:02d}_{frame.index:04d}.jpg"


def _annotate_table(root: Path, taken: Sequence[WrittenPicture], people: People) -> None:
    """Write a table with everything that is known of a picture, all attributes of the person in AG-Synth's words."""
    rows = [
        {
            "path": _table_place(shot.frame),
            "pid": shot.frame.pid,
            "split": shot.frame.split,
            "camera": shot.frame.camera,
            "view": "aerial" if camera(shot.frame.camera).aerial else "ground",
            "platform": camera(shot.frame.camera).platform,
            "time": "night" if shot.frame.night else "day",
            "caption 1": shot.captions[0],
            "caption 2": shot.captions[1],
            **people[shot.frame.pid].attributes,
            "pose": shot.pose,
            "facing": shot.facing,
        }
        for shot in taken
    ]
    stream = io.StringIO()
    table = csv.DictWriter(stream, rows[0], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    _write(root / "images.csv", stream.getvalue())


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _write_json(path: Path, content: Any) -> None:
    _write(path, json.dumps(content, indent=1) + "\n")


LAYOUTS_BY_NAME: dict[str, Layout] = {
    "cargo": Layout("CARGO", 4, _cargo_place, None),
    "ag-reid-v2": Layout("AG-ReID.v2", 8, _qut_place, _annotate_qut),
    "cp2108": Layout("CP2108", 4, _cp2108_place, _annotate_cp2108),
    "tag-pedes": Layout("TAG-PEDES", 4, _tag_place, _annotate_tag),
    "csv": Layout(SOURCE, 4, _table_place, _annotate_table),
}
"""By the name users give."""
