"""Worlds of AG-Synth: who lives in one, which cameras see them, and how a picture is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from agreid_plugin.errors import require_known
from agreid_plugin.synth import gap_people, gap_shots, people, render
from agreid_plugin.synth.cameras import CAMERAS, Camera
from agreid_plugin.synth.people import Person
from agreid_plugin.synth.render import Shot


@dataclass(frozen=True)
class World:
    """A world.

    Attributes:
        cameras: thirteen, with the platforms of `cameras.CAMERAS`.
        sample_person: seed and identity -> person.
        draw_shot: random numbers, camera and whether it is night -> everything about a picture but the person.
    """

    cameras: tuple[Camera, ...]
    sample_person: Callable[[int, int], Person]
    draw_shot: Callable[[np.random.Generator, Camera, bool], Shot]


WORLDS = {
    "easy": World(CAMERAS, people.sample_person, render.draw_shot),
    "gap": World(gap_shots.CAMERAS, gap_people.sample_person, gap_shots.draw_shot),
}
DEFAULT_WORLD = "easy"


def get_world(name: str) -> World:
    """Return the world of this name."""
    return WORLDS[require_known("world", name, WORLDS)]
