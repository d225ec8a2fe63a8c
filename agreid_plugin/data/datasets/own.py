"""Records of people's own images, from the words that a file name or a table gives for them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from agreid_plugin.errors import InputError, unknown
from agreid_plugin.types import PLATFORMS, UNKNOWN, Record, View

SPLITS = ("train", "val", "query", "gallery", "test")
VIEW_WORDS = {
    **dict.fromkeys(("aerial", "a", "uav", "drone"), View.AERIAL),
    **dict.fromkeys(("ground", "g", "cctv", "wearable"), View.GROUND),
}


@dataclass(frozen=True)
class Row:
    """What is said of one image, in words; what is empty nobody said.

    Attributes:
        where: the place it was said, for complaints.
    """

    where: str
    path: str
    pid: str
    split: str
    camera: str = ""
    view: str = ""
    platform: str = ""
    captions: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


def build(rows: Iterable[Row], aerial_cameras: Collection[int | str] = ()) -> list[Record]:
    """Turn words into records.

    Args:
        rows: one an image. Identities and cameras that are not all numbers are numbered in sorted order, and an
            identity's name is kept in the tag `identity`.
        aerial_cameras: the cameras in the air, when no row says a view.
    """
    rows = list(rows)
    pids = _numbers(row.pid for row in rows)
    cameras = {"": UNKNOWN, **_numbers(row.camera for row in rows if row.camera)}
    aerial = {_short(str(camera)) for camera in aerial_cameras}
    return [
        Record(
            path=row.path,
            pid=pids[row.pid],
            camera=cameras[row.camera],
            view=_view(row, aerial),
            platform=_platform(row),
            split=_split(row),
            attributes=row.attributes,
            captions=row.captions,
            tags={**row.tags, **({} if _is_number(row.pid) else {"identity": row.pid})},
        )
        for row in rows
    ]


def _numbers(names: Iterable[str]) -> dict[str, int]:
    names = sorted(set(names))
    if all(map(_is_number, names)):
        return {name: int(name) for name in names}
    return {name: number for number, name in enumerate(names)}


def _is_number(name: str) -> bool:
    # What has more digits than a label can hold is a name, like any other.
    return re.fullmatch(r"-?[0-9]{1,18}", name) is not None


def _short(camera: str) -> str:
    return camera.lstrip("0") or "0"


def _view(row: Row, aerial: Collection[str]) -> View | None:
    if row.view:
        if row.view.lower() not in VIEW_WORDS:
            raise unknown(f"{row.where}: view", row.view, VIEW_WORDS)
        return VIEW_WORDS[row.view.lower()]
    if not aerial or not row.camera:
        return None
    return View.AERIAL if _short(row.camera) in aerial else View.GROUND


def _platform(row: Row) -> str:
    # Whoever calls a view cctv or wearable says what carries the camera.
    return row.platform or (row.view.lower() if row.view.lower() in PLATFORMS else "")


def _split(row: Row) -> str:
    if row.split not in SPLITS:
        raise unknown(f"{row.where}: split", row.split, SPLITS)
    if not row.pid:
        raise InputError(f"{row.where}: no pid")
    return row.split
