"""Train, query and gallery splits of custom images by identity, and a CSV table that keeps them."""

from __future__ import annotations

import csv
import os
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agreid_plugin.data.atomic_write import atomic_write, write_error_context
from agreid_plugin.data.bad_images import describe_images
from agreid_plugin.data.datasets.custom import get_camera_view
from agreid_plugin.errors import InputError, require_within
from agreid_plugin.types import UNKNOWN, Record

NUMBER = "number"
"""Tag with an image's number, from which `set_cameras` finds its camera."""


def split_people(records: Sequence[Record], test_share: float = 0.5, seed: int = 0) -> list[Record]:
    """Give every image a split: some people are for training, the others for tests.

    One image of each test person and camera is a query, the rest gallery. A person whose images are all of one camera,
    or who has only one image, cannot be matched and is for training.

    Args:
        records: images, whose splits are ignored.
        test_share: share of the people that can be matched.
        seed: of the choice.

    Raises:
        InputError: no person can be matched, or none is left for training.
    """
    require_within("test_share", test_share, 0, 1)
    people: dict[int, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda each: each.path):
        people[record.pid].append(record)
    found = [pid for pid in sorted(people) if _can_be_matched(people[pid])]
    if not found:
        raise InputError("no person can be matched: none has images of two cameras, or two images without cameras")
    random.Random(seed).shuffle(found)
    test_people = set(found[: max(1, round(test_share * len(found)))])
    if len(test_people) == len(people):
        raise InputError(f"all {len(people)} people are for tests and none is left for training: lower the share")
    return [split for pid, images in people.items() for split in _split_person(images, pid in test_people)]


def _can_be_matched(images: Sequence[Record]) -> bool:
    cameras = {image.camera for image in images}
    return len(images) > 1 if UNKNOWN in cameras else len(cameras) > 1


def _split_person(images: Sequence[Record], is_test: bool) -> list[Record]:
    if not is_test:
        return [replace(image, split="train") for image in images]
    by_camera: dict[int, list[Record]] = defaultdict(list)
    for image in images:
        by_camera[image.camera].append(image)
    firsts = [group[0] for group in by_camera.values() if len(group) > 1]  # the only image of a camera is gallery
    queries = {image.path for image in firsts or images[:1]}
    return [replace(image, split="query" if image.path in queries else "gallery") for image in images]


def set_cameras(
    records: Iterable[Record], cameras: Mapping[range, int], aerial_cameras: Collection[int | str] = ()
) -> list[Record]:
    """Set cameras by the images' numbers, the group `number` of a pattern, and views by the cameras.

    Args:
        records: images.
        cameras: numbers of images -> the camera.
        aerial_cameras: the cameras in the air, for images without a view.

    Raises:
        InputError: an image has no number, or one in no range.
    """
    found = []
    for record in records:
        number = record.tags.get(NUMBER, "")
        fitting = [camera for span, camera in cameras.items() if number.isdecimal() and int(number) in span]
        if len(fitting) != 1:
            why = f"number {number} is in {len(fitting)} ranges" if number else f"the pattern has no group {NUMBER}"
            raise InputError(f"{record.path}: which camera? {why}")
        found.append(
            replace(
                record,
                camera=fitting[0],
                view=get_camera_view(fitting[0], aerial_cameras) if record.view is None else record.view,
            )
        )
    return found


def write_table(path: Path, records: Sequence[Record]) -> None:
    """Write records as a table that the dataset `csv` reads; paths below its folder are relative to it."""
    if bad := [record.path for record in records if not record.path.isprintable()]:
        raise InputError(
            f"{describe_images(bad, 'cannot stand in a table, for line breaks or bytes that are not UTF-8')}: rename"
        )
    rows = [_row(record, path.absolute().parent) for record in records]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with write_error_context(path), atomic_write(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _row(record: Record, folder: Path) -> dict[str, str]:
    image = Path(os.path.abspath(record.path))
    return {
        "path": str(image.relative_to(folder) if image.is_relative_to(folder) else image),
        "pid": record.tags.get("identity", str(record.pid)),
        "split": record.split,
        "camera": "" if record.camera == UNKNOWN else str(record.camera),
        "view": "" if record.view is None else record.view.word,
        "platform": record.platform,
        **{f"caption_{place}": text for place, text in enumerate(record.captions, start=1)},
        **record.attributes,
        **{name: text for name, text in record.tags.items() if name in ("time", "scene", "altitude")},
    }
