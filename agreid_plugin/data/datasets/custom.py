"""Records of people's own images, from the words that a file name or a table gives for them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from agreid_plugin.errors import InputError, require_known, unknown
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


def view_named(word: str, what: str = "view") -> View:
    """Return the view of one of `VIEW_WORDS`, in any case, or refuse the word as what it was given for."""
    if word.lower() not in VIEW_WORDS:
        raise unknown(what, word, VIEW_WORDS)
    return VIEW_WORDS[word.lower()]


def platform_in(word: str) -> str:
    """Return what carries the camera by a word for its view: whoever says cctv or wearable says that, too."""
    return word.lower() if word.lower() in PLATFORMS else ""


def build(rows: Iterable[Row], aerial_cameras: Collection[int | str] = ()) -> list[Record]:
    """Turn words into records.

    Args:
        rows: one an image. Identities and cameras that are not all numbers are numbered in sorted order, and
            identities' names are kept in the tag `identity`.
        aerial_cameras: the cameras in the air, for rows that say no view.
    """
    rows = list(rows)
    for row in rows:
        _check(row)
    pids = _numbers(row.pid for row in rows)
    named = not all(map(_is_number, pids))
    cameras = {"": UNKNOWN, **_numbers(row.camera for row in rows if row.camera)}
    return [
        Record(
            path=row.path,
            pid=pids[row.pid],
            camera=cameras[row.camera],
            view=_view(row, aerial_cameras),
            platform=row.platform or platform_in(row.view),
            split=row.split,
            attributes=row.attributes,
            captions=row.captions,
            tags={**row.tags, **({"identity": row.pid} if named else {})},
        )
        for row in rows
    ]


def _check(row: Row) -> None:
    require_known(f"{row.where}: split", row.split, SPLITS)
    if not row.pid:
        raise InputError(f"{row.where}: no pid: say who is in the image, or leave it out")


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


def _view(row: Row, aerial: Collection[int | str]) -> View | None:
    if row.view:
        return view_named(row.view, f"{row.where}: view")
    return view_of_camera(row.camera, aerial)


def view_of_camera(camera: int | str, aerial_cameras: Collection[int | str]) -> View | None:
    """Return what a camera sees from by the list of those in the air; None without a list or a camera."""
    if not aerial_cameras or camera == "":
        return None
    return View.AERIAL if _short(str(camera)) in {_short(str(each)) for each in aerial_cameras} else View.GROUND
