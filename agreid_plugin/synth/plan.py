"""Plan of a dataset's pictures (who, by which camera, at what time, for which split), and its random streams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agreid_plugin.synth.cameras import CAMERAS

PERSON, FAMILY, PLAN, SHOT, CAPTION, PREVIEW = range(6)
"""Purposes of streams."""
MIN_IDS = 4  # two to train on, two to tell apart
_AERIAL = tuple(camera.number for camera in CAMERAS if camera.aerial)
_WEARABLE = tuple(camera.number for camera in CAMERAS if camera.platform == "wearable")
_CCTV = tuple(camera.number for camera in CAMERAS if camera.platform == "cctv")


def random_stream(seed: int, *path: int) -> np.random.Generator:
    """Return the generator of one thing, for example `random_stream(seed, SHOT, pid, index)`."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, *path))))


@dataclass(frozen=True)
class Frame:
    """One picture to take.

    Attributes:
        pid: the identity, from 1.
        index: its number among the identity's pictures, from 0.
        camera: 1..13.
        night: whether it is taken by night; identities with an even number have pictures of both times.
        split: `train`, `query` or `gallery`.
    """

    pid: int
    index: int
    camera: int
    night: bool
    split: str


def plan(seed: int, ids: int, images_per_id: int) -> list[Frame]:
    """List every picture: half of each identity's from the air, half from the ground, in as many cameras as there are.

    The first half of the identities is for training. Of every other identity one aerial picture is a query, and one
    from the ground, or one by each platform there when that leaves both in the gallery.
    """
    return [frame for pid in range(1, ids + 1) for frame in _plan_identity(seed, pid, pid <= ids // 2, images_per_id)]


def _plan_identity(seed: int, pid: int, train: bool, count: int) -> list[Frame]:
    rng = random_stream(seed, PLAN, pid)
    aerial, ground = count // 2, count - count // 2
    platforms = [rng.permutation(_WEARABLE), rng.permutation(_CCTV)]
    if rng.random() < 0.5:
        platforms.reverse()
    alternating = np.stack(platforms, axis=1).ravel()
    frames: list[Frame] = []
    for cameras, total, queries in (
        (rng.permutation(_AERIAL), aerial, 1),
        (alternating, ground, 2 if ground >= 4 else 1),
    ):
        for place in range(total):
            split = "train" if train else "query" if place < queries else "gallery"
            night = pid % 2 == 0 and place % 3 == 1
            frames.append(Frame(pid, len(frames), int(cameras[place % len(cameras)]), night, split))
    return frames
