"""Background of a picture: passers-by, street furniture, occluders, the ground and the wall behind the person."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreid_plugin.synth.accessories import add_belongings
from agreid_plugin.synth.body import Pose, draw_pose, skeleton
from agreid_plugin.synth.cameras import BODY_MIDDLE, Camera, Viewpoint
from agreid_plugin.synth.clothes import dress
from agreid_plugin.synth.people import Person, draw_person
from agreid_plugin.synth.solids import Array, Builder, Material
from agreid_plugin.synth.street import THINGS as STREET_THINGS
from agreid_plugin.synth.street import WALLS as STREET_WALLS
from agreid_plugin.synth.textures import SURFACES, WALLS, blend, noise
from agreid_plugin.synth.vocabulary import COLORS, Color, darker, linear


@dataclass(frozen=True)
class Thing:
    """One thing near the person: what, where on the ground, how large, and a color."""

    kind: str
    place: tuple[float, float, float]
    size: float
    color: Color


@dataclass(frozen=True)
class Passer:
    """Someone else in the picture."""

    person: Person
    pose: Pose
    place: tuple[float, float]


@dataclass(frozen=True)
class Ground:
    """The person's place in the camera's surfaces."""

    turn: float  # radians
    shift: tuple[float, float]  # meters
    kerb: float  # meters from the person to the second surface
    kerb_turn: float
    wall: float  # meters behind the person
    wall_turn: float
    brightness: float
    dapple: float = 0.0  # share of the ground in the shade of trees and houses


@dataclass(frozen=True)
class Background:
    """All of it, drawn without knowing who the person is."""

    camera: Camera
    ground: Ground
    things: tuple[Thing, ...]
    passers: tuple[Passer, ...]


def _color(rng: np.random.Generator) -> Color:
    return linear(COLORS[list(COLORS)[rng.integers(len(COLORS))]])


def draw_background(rng: np.random.Generator, camera: Camera, view: Viewpoint) -> Background:
    """Draw the surroundings of one picture."""
    things = [draw_thing(rng, camera) for _ in range(rng.poisson(1.1))]
    passers = []
    if rng.random() < 0.3:
        passers.append(_draw_passer(rng, camera, view, blocking=False))
    if rng.random() < 0.2:
        if not camera.aerial and rng.random() < 0.3:
            passers.append(_draw_passer(rng, camera, view, blocking=True))
        else:
            things.append(draw_occluder(rng, camera, view))
    return Background(camera, draw_ground(rng, camera), tuple(things), tuple(passers))


def draw_ground(rng: np.random.Generator, camera: Camera) -> Ground:
    """Draw where the person stands in the camera's surfaces."""
    return Ground(
        turn=rng.uniform(0, 2 * np.pi) if camera.aerial else rng.normal(0, 0.3),
        shift=tuple(rng.uniform(0, 40, 2)),
        kerb=rng.uniform(0.2, 3.5),
        kerb_turn=rng.uniform(0, 2 * np.pi),
        wall=rng.uniform(2.0, 9.0),
        wall_turn=rng.normal(0, 0.25),
        brightness=rng.normal(1.0, 0.12),
    )


def draw_thing(rng: np.random.Generator, camera: Camera) -> Thing:
    """Draw a thing beside the person."""
    kind = list(_THINGS)[rng.integers(len(_THINGS))]
    side = rng.choice((-1, 1)) * rng.uniform(0.55, 1.5)
    away = rng.uniform(-1.2, 1.2) if camera.aerial else rng.uniform(0.3, 3.0)
    return Thing(kind, (away, side, 0.0), rng.uniform(0.8, 1.2), _color(rng))


def draw_occluder(rng: np.random.Generator, camera: Camera, view: Viewpoint) -> Thing:
    """Add an occluder on the line of sight, beside its middle so that most of the person stays visible."""
    toward = view.position - np.array((0, 0, BODY_MIDDLE))
    if camera.aerial:
        spot = toward * rng.uniform(2.0, 3.5) / toward[2] + np.array((0, 0, BODY_MIDDLE))
        offset = rng.uniform(0.35, 0.6) * np.array((np.cos(angle := rng.uniform(0, 6.28)), np.sin(angle), 0))
        return Thing("foliage", tuple(spot + offset), rng.uniform(0.5, 0.85), _color(rng))
    spot = toward * rng.uniform(0.2, 0.5)
    kind = ("pole", "bush", "planter")[rng.integers(3)]
    return Thing(kind, (spot[0], rng.choice((-1, 1)) * rng.uniform(0.08, 0.3), 0.0), rng.uniform(0.8, 1.1), _color(rng))


def _draw_passer(rng: np.random.Generator, camera: Camera, view: Viewpoint, blocking: bool) -> Passer:
    side = rng.choice((-1, 1))
    if blocking:
        spot = (view.position[0] * rng.uniform(0.15, 0.35), side * rng.uniform(0.3, 0.45))
    elif camera.aerial:
        angle, far = rng.uniform(0, 2 * np.pi), rng.uniform(0.75, 1.3)
        spot = (far * np.cos(angle), far * np.sin(angle))
    else:
        spot = (rng.uniform(0.6, 4.0), side * rng.uniform(0.45, 1.1))
    return Passer(draw_person(rng, rng), draw_pose(rng), (float(spot[0]), float(spot[1])))


def add_person(builder: Builder, person: Person, pose: Pose, place: tuple[float, float] = (0.0, 0.0)) -> None:
    """Add a person with everything worn and carried."""
    joints = skeleton(person, pose, place)
    dress(builder, person, joints)
    add_belongings(builder, person, pose, joints)


def add_background(builder: Builder, around: Background) -> None:
    """Add the solids of the surroundings."""
    for thing in around.things:
        if thing.kind in _ADD:
            _ADD[thing.kind](builder, thing)
        else:
            STREET_THINGS[thing.kind](builder, thing.place, thing.size, thing.color)
    for passer in around.passers:
        add_person(builder, passer.person, passer.pose, passer.place)


def _add_leaves(builder: Builder, center: NDArray, reach: tuple[float, float, float], count: int) -> None:
    """Fill an ellipsoid with small balls, spread evenly by the golden angle."""
    looks = (((0.022, 0.055, 0.016), (0.10, 0.16, 0.045)), ((0.035, 0.06, 0.015), (0.16, 0.19, 0.06)))
    leaves = [builder.material(Material("", dark, lit, "leaves", wrinkle=1.8)) for dark, lit in looks]
    for number in range(count):
        level, turn = 1 - 2 * (number + 0.5) / count, 2.399963 * number
        flat = (1 - level**2) ** 0.5
        spot = center + np.array(reach) * (flat * np.cos(turn), flat * np.sin(turn), level)
        size = max(reach) * (0.2 + 0.09 * (number % 3))
        builder.ball(spot, (size, size, size * 0.8), leaves[number % 5 % 2])


def _add_bush(builder: Builder, thing: Thing) -> None:
    x, y, _ = thing.place
    size = 0.3 * thing.size
    _add_leaves(builder, np.array((x, y, 1.1 * size)), (size, size, 0.9 * size), 34)


def _add_foliage(builder: Builder, thing: Thing) -> None:
    size = 0.26 * thing.size
    _add_leaves(builder, np.array(thing.place), (size * 1.3, size, 0.5 * size), 30)


def _add_pole(builder: Builder, thing: Thing) -> None:
    metal = builder.material(Material("", (0.07, 0.08, 0.08), gloss=0.3))
    x, y, _ = thing.place
    builder.cone((x, y, 0.0), (x, y, 3.6), (0.055 * thing.size, 0.04 * thing.size), metal)


def _add_bollard(builder: Builder, thing: Thing) -> None:
    metal = builder.material(Material("", (0.06, 0.06, 0.065), (0.7, 0.68, 0.6), "striped", 0.4, gloss=0.2))
    x, y, _ = thing.place
    builder.limb(np.array((x, y, 0.0)), np.array((x, y, 0.75)), (0.07 * thing.size, 0.07 * thing.size), metal)


def _add_planter(builder: Builder, thing: Thing) -> None:
    stone = builder.material(Material("", (0.3, 0.28, 0.25), wrinkle=0.2))
    x, y, _ = thing.place
    builder.box((x, y, 0.22), (0.3 * thing.size, 0.3 * thing.size, 0.22), stone)
    _add_leaves(builder, np.array((x, y, 0.5)), (0.2 * thing.size, 0.2 * thing.size, 0.15), 22)


def _add_bench(builder: Builder, thing: Thing) -> None:
    wood = builder.material(Material("", (0.2, 0.11, 0.05), wrinkle=0.2))
    x, y, _ = thing.place
    builder.box((x, y, 0.43), (0.24, 0.75 * thing.size, 0.03), wood)
    builder.box((x + 0.24, y, 0.68), (0.03, 0.75 * thing.size, 0.16), wood)
    for end in (-0.6, 0.6):
        builder.box((x, y + end, 0.2), (0.2, 0.04, 0.2), wood)


def _add_bin(builder: Builder, thing: Thing) -> None:
    metal = builder.material(Material("", darker(thing.color, 0.5), gloss=0.2))
    x, y, _ = thing.place
    builder.cone((x, y, 0.0), (x, y, 0.85), (0.2 * thing.size, 0.24 * thing.size), metal)
    builder.ball((x, y, 0.85), (0.25 * thing.size, 0.25 * thing.size, 0.1), metal)


def _add_car(builder: Builder, thing: Thing) -> None:
    paint = builder.material(Material("", thing.color, gloss=0.5))
    glass = builder.material(Material("", (0.02, 0.025, 0.03), gloss=0.6))
    tire = builder.material(Material("", (0.01, 0.01, 0.01)))
    side = np.sign(thing.place[1])
    x, y = thing.place[0], thing.place[1] + side * 0.7
    builder.box((x, y, 0.6), (2.0, 0.82, 0.3), paint)
    builder.ball((x, y, 0.8), (1.35, 0.78, 0.68), glass, lowest=0.0)
    builder.ball((x, y, 1.3), (0.8, 0.66, 0.2), paint)
    for along in (-1.25, 1.25):
        for across in (-0.75, 0.75):
            builder.ball((x + along, y + across, 0.32), (0.32, 0.12, 0.32), tire)


_THINGS: dict[str, Callable[[Builder, Thing], None]] = {
    "bush": _add_bush,
    "pole": _add_pole,
    "bollard": _add_bollard,
    "planter": _add_planter,
    "bench": _add_bench,
    "bin": _add_bin,
    "car": _add_car,
}
_ADD = _THINGS | {"foliage": _add_foliage}
_WALLS = WALLS | STREET_WALLS


def dapple(ground: Ground, x: Array, y: Array) -> NDArray[np.bool_]:
    """Return which points of the ground lie in the shade of trees and houses."""
    at = np.float32(0.6), np.float32(ground.turn)
    return noise(at[0] * x + at[1], at[0] * y - at[1], 0.02) > 1.2 - 2 * ground.dapple


def ground_color(around: Background, x: Array, y: Array) -> Array:
    """Return the ground's linear color at world points, (3, n)."""
    ground, (main, second) = around.ground, around.camera.surfaces
    cos, sin = np.float32(np.cos(ground.turn)), np.float32(np.sin(ground.turn))
    u = cos * x - sin * y + np.float32(ground.shift[0])
    v = sin * x + cos * y + np.float32(ground.shift[1])
    color = SURFACES[main](u, v)
    edge = x * np.float32(np.cos(ground.kerb_turn)) + y * np.float32(np.sin(ground.kerb_turn)) - np.float32(ground.kerb)
    beyond = edge > 0
    if main != second and beyond.any():
        color[:, beyond] = SURFACES[second](u[beyond], v[beyond])
        color[:, np.abs(edge - 0.06) < 0.06] = 0.32
    return color * (np.float32(ground.brightness) * (1 + np.float32(0.12) * noise(u, v, 0.11)))


def wall_color(around: Background, along: Array, height: Array) -> Array:
    """Return the wall's linear color, (3, n)."""
    shift = np.float32(around.ground.shift[0])
    color = _WALLS[around.camera.wall](along + shift, height)
    return blend(color, color.mean(axis=1, keepdims=True), np.float32(0.15)) * np.float32(around.ground.brightness)
