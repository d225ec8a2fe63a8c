"""Tiny trees in the layouts of the real datasets. Every image is 4 x 8 pixels; each builder returns its folder."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
from PIL import Image

from agreid_plugin.data.attributes import QUT_GROUPS


def jpeg(height: int = 8, width: int = 4) -> bytes:
    """Return a valid JPEG file of noise."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


JPEG = jpeg()


def write_images(folder: Path, paths: Iterable[str]) -> Path:
    """Write an image at each of the paths, relative to the folder."""
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(JPEG)
    return folder


def write_text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def write_json(path: Path, content: Any) -> Path:
    return write_text(path, json.dumps(content))


def write_mat(path: Path, train: Mapping[int, Mapping[str, str]], test: Mapping[int, Mapping[str, str]]) -> Path:
    """Write AG-ReID's attribute file, identity -> group -> value, its fields in an order of its own."""
    halves = {}
    for half, people in (("train", train), ("test", test)):
        fields = {"image_index": np.array([str(pid) for pid in people], dtype=object)}
        for group, values in reversed(QUT_GROUPS.items()):
            for value in values:
                fields[group + value] = np.array([2 if told.get(group) == value else 1 for told in people.values()])
        halves[half] = fields
    scipy.io.savemat(path, {"qut_attribute": halves})
    return path


CARGO_TRAIN = ("Cam1_day_1_1", "Cam6_night_1_2", "Cam2_day_2_1", "Cam7_day_2_2")
CARGO_QUERY = ("Cam1_day_11_1", "Cam6_day_11_2", "Cam3_night_12_1")
CARGO_GALLERY = (
    *("Cam1_day_11_3", "Cam2_day_11_4", "Cam6_day_11_5"),
    *("Cam8_day_12_2", "Cam3_day_12_3", "Cam9_day_13_1"),
)


def cargo(folder: Path) -> Path:
    for split, names in (("train", CARGO_TRAIN), ("query", CARGO_QUERY), ("gallery", CARGO_GALLERY)):
        write_images(folder, [f"{split}/{name.split('_')[0]}/{name}.jpg" for name in names])
    return folder


# Identities 1040410, 2040410 in train, 3050500 and 4050501 in test (person, time, altitude).
AG_REID = {
    "bounding_box_train": ("P0001T04041A0C0F1", "P0001T04041A0C3F2", "P0002T04041A0C0F1", "P0002T04041A0C3F2"),
    "query_all_c0": ("P0003T05050A0C0F1", "P0004T05050A1C0F1"),
    "query_all_c3": ("P0003T05050A0C3F1",),
    "bounding_box_test_all_c0": ("P0003T05050A0C0F2", "P0003T05050A0C0F3"),
    "bounding_box_test_all_c3": ("P0003T05050A0C3F2", "P0004T05050A1C3F2", "P0004T05050A1C3F3"),
}
AG_REID_PEOPLE = {1040410: {"gender": "male", "bag": "handbag"}, 2040410: {"gender": "female", "upper": "cardiga"}}
AG_REID_TEST_PEOPLE = {3050500: {"gender": "unknown"}, 4050501: {}}


def ag_reid(folder: Path, attributes: bool = True) -> Path:
    write_images(folder, [f"{part}/{name}.jpg" for part, names in AG_REID.items() for name in names])
    if attributes:
        write_mat(folder / "qut_attribute_v4_88_attributes.mat", AG_REID_PEOPLE, AG_REID_TEST_PEOPLE)
    return folder


def ag_reid_rearranged(folder: Path) -> Path:
    parts = {"bounding_box_train": "train", "query_all_c0": "query", "query_all_c3": "query"}
    paths = [f"{parts.get(part, 'gallery')}/{name}.jpg" for part, names in AG_REID.items() for name in names]
    return write_images(folder, paths)


AG_REID_V2 = {
    "train_all": ("P0001T04041A0C0F1", "P0001T04041A0C2F2", "P0001T04041A0C3F3"),
    "query": ("P0003T05050A0C0F1", "P0003T05050A0C2F1", "P0003T05050A0C3F1", "P0004T05050A1C0F1"),
    "gallery": ("P0003T05050A0C0F2", "P0003T05050A0C2F2", "P0003T05050A0C3F2", "P0004T05050A1C3F2"),
}
AG_REID_V2_LISTS = {  # the official lists leave out the second identity, which file names alone would let in
    "exp1_aerial_to_cctv.txt": ("query/3c0", "gallery/3c3"),
    "exp2_aerial_to_wearable.txt": ("query/3c0", "gallery/3c2"),
    "exp4_cctv_to_aerial.txt": ("query/3c3", "gallery/3c0"),
    "exp5_wearable_to_aerial.txt": ("query/3c2", "gallery/3c0"),
}


def ag_reid_v2(folder: Path, doubled: bool = True, lists: bool = True) -> Path:
    inner = folder / "AG-ReID.v2" if doubled else folder
    paths = {name: f"{part}/{name.split('C')[0]}/{name}.jpg" for part, names in AG_REID_V2.items() for name in names}
    write_images(inner, paths.values())
    short = {f"{p.split('/')[0]}/{int(n[1:5])}c{n.split('C')[1][0]}": p for n, p in paths.items()}
    for file, lines in AG_REID_V2_LISTS.items() if lists else ():
        write_text(folder / file, "\n".join(short[line] for line in lines))  # no newline at the end, as happens
    return folder


LAGPER_LISTS = {
    # Cameras 3 and 6 are aerial, 1, 2 and 11 ground.
    "exp3_A2G+.txt": ("query_a/0007_c3_1.jpg", "gallery_g/0007_c1_2.jpg", "gallery_g/0008_c2_1.jpg"),
    "exp4_G2A+.txt": ("query_g/0007_c1_1.jpg", "gallery_a/0007_c3_2.jpg", "gallery_a/0008_c6_2.jpg"),
    "exp5_G2A+G.txt": (
        *("query_g/0007_c1_1.jpg", "query_g/0008_c11_1.jpg"),
        *("gallery_g/0007_c1_2.jpg", "gallery_g/0008_c2_1.jpg", "gallery_a/0007_c3_2.jpg"),
    ),
}


def lagper(folder: Path) -> Path:
    write_images(folder, [f"bounding_box_train/s1/{n}.jpg" for n in ("0001_c3_1", "0001_c11_2", "-1_c1_3")])
    return _listed(folder, LAGPER_LISTS)


G2APS_LISTS = {
    "exp3_A2G+.txt": ("query_c0/0009_c0v1_000001.jpg", "gallery/0009_c3v1_000002.jpg", "gallery/5555_c3v2_000003.jpg"),
    "exp4_G2A+.txt": ("query_c3/0009_c3v1_000004.jpg", "gallery/0009_c0v1_000005.jpg"),
}


def g2aps(folder: Path) -> Path:
    write_images(folder, [f"bounding_box_train/0001/0001_c{camera}v2_00000{camera}.jpg" for camera in (0, 3)])
    return _listed(folder, G2APS_LISTS)


def _listed(folder: Path, lists: Mapping[str, Iterable[str]]) -> Path:
    for file, lines in lists.items():
        write_images(folder, lines)
        write_text(folder / file, "".join(f"{line}\r\n" for line in lines))
    return folder


CP2108 = {  # pid_camera_time_scene: cameras from 23 on are aerial
    "train": ("1_1_1_1_0001.jpg", "1_23_0_2_0001.jpg"),
    "query": ("5_2_1_1_0001.jpg", "5_24_1_1_0001.jpg", "6_3_1_1_0001.jpg"),
    "gallery": ("5_2_1_1_0002.jpg", "5_4_0_1_0001.jpg", "5_24_0_1_0002.jpg", "6_4_1_1_0001.jpg", "7_25_1_1_0001.jpg"),
}


def cp2108(folder: Path) -> Path:
    for split, names in CP2108.items():
        write_images(folder / "images_v100", names)
        write_text(folder / "split_v100" / f"{split}_v100.txt", "\n".join(names))
    labels = {
        "1_0_1": {"Pose": "Walking", "Glasses": "Unknown"},
        "1_1_0": {"Pose": "Riding", "Glasses": "No"},
        "5_1_0": {"Pose": "Riding", "Glasses": "No"},
    }
    write_json(folder / "attributes_labeled_qwen.json", labels)
    values = {"Pose": {"Walking": 0, "Riding": 1}, "Glasses": {"Unknown": 2, "No": 0, "Yes": 1}}
    write_json(folder / "attr_translation_idx.json", values)
    captions = {"1_0_1": "a person walking by day", "1_1_0": "a person riding at night"}
    write_json(folder / "attribute_captions_doubao.json", captions)
    return folder


def tag_pedes(folder: Path, images: str = "images/", views: bool = True) -> Path:
    rows = {
        "train": [("G2APS/1.jpg", 0, 0), ("AG-ReID.v2/2.jpg", 0, 1)],
        "test": [("G2APS/3.jpg", 7, 0), ("G2APS/4.jpg", 7, 1), ("PRAI/5.jpg", 8, 1)],
    }
    for split, entries in rows.items():
        write_images(folder, [images + path for path, _, _ in entries])
        content = [
            {
                "file_path": path,
                "id": pid,
                "captions": [f"{path} one", f"{path} two"],
                **({"cam_id": v} if views else {}),
            }
            for path, pid, v in entries
        ]
        write_json(folder / "anno_dir" / f"{split}_reid.json", content)
    return folder


def one_file_set(folder: Path, file: str, path_key: str = "file_path") -> Path:
    """Write a text set annotated in one file, as CUHK-PEDES, ICFG-PEDES and RSTPReid are."""
    entries = [
        {"split": split, path_key: f"cam_a/{n}.jpg", "id": n, "captions": [f"person {n}"]}
        for n, split in enumerate(("train", "val", "test", "test"), start=1)
    ]
    write_images(folder / "imgs", [entry[path_key] for entry in entries])
    write_json(folder / file, entries)
    return folder
