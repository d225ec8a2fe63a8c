"""Pictures of the world `gap`: drones high above in haze, low cameras in a crowded street, boxes of a detector."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from agreid_plugin.synth.background import Background, Passer, Thing, draw_ground, draw_occluder, draw_thing
from agreid_plugin.synth.body import draw_pose
from agreid_plugin.synth.cameras import BODY_MIDDLE, Camera, Detection, Viewpoint, draw_viewpoint
from agreid_plugin.synth.gap_people import draw_person
from agreid_plugin.synth.light import Light, draw_light
from agreid_plugin.synth.render import Shot
from agreid_plugin.synth.sensor import Film, Sensor
from agreid_plugin.synth.vocabulary import Color

OBLIQUE = 0.12  # share of the drones' pictures
OBLIQUE_PITCH = (30.0, 45.0)
PIXELS_PER_METER = {"uav": (26.0, 80.0), "cctv": (42.0, 110.0), "wearable": (55.0, 140.0)}
_FURNITURE = ("bicycle", "bicycle", "railing", "sign", "pole", "bollard", "bin", "bush", "car", "low wall")
_IN_FRONT = ("bicycle", "bicycle", "railing", "low wall", "planter", "bush", "pole")

CAMERAS: tuple[Camera, ...] = (
    Camera(1, "uav", (22, 34), 1, ("slabs", "road"), pitch=(45, 62)),
    Camera(2, "uav", (28, 42), 1, ("crossing", "asphalt"), pitch=(52, 70)),
    Camera(3, "uav", (34, 50), 1, ("grass", "paving"), pitch=(60, 76)),
    Camera(4, "uav", (42, 60), 1, ("asphalt", "slabs"), pitch=(66, 81)),
    Camera(5, "uav", (50, 75), 1, ("paving", "crossing"), pitch=(72, 85)),
    Camera(6, "wearable", (1.35, 1.6), 1, ("paving", "asphalt"), distance=(2.5, 6), wall="arcade"),
    Camera(7, "wearable", (1.3, 1.6), 1, ("gravel", "grass"), distance=(2.5, 6), wall="park"),
    Camera(8, "wearable", (1.4, 1.65), 1, ("slabs", "brick"), distance=(2.5, 7), wall="windows"),
    Camera(9, "wearable", (1.3, 1.6), 1, ("asphalt", "road"), distance=(3, 7), wall="street"),
    Camera(10, "cctv", (2.0, 2.6), 1, ("floor", "floor"), distance=(4, 9), wall="corridor"),
    Camera(11, "cctv", (2.0, 2.8), 1, ("brick", "paving"), distance=(5, 11), wall="arcade"),
    Camera(12, "cctv", (2.1, 2.9), 1, ("concrete", "slabs"), distance=(5, 11), wall="windows"),
    Camera(13, "cctv", (2.0, 2.7), 1, ("crossing", "asphalt"), distance=(5, 11), wall="street"),
)
"""In the order of their numbers; the focal length follows from how many pixels a meter gets."""


def draw_shot(rng: np.random.Generator, camera: Camera, night: bool) -> Shot:
    """Draw the random numbers of a picture by `camera`."""
    oblique = camera.aerial and rng.random() < OBLIQUE
    view = draw_viewpoint(rng, replace(camera, pitch=OBLIQUE_PITCH) if oblique else camera)
    low, high = PIXELS_PER_METER[camera.platform]
    view = replace(view, focal=low * (high / low) ** rng.random() * view.distance)
    light = _draw_light(rng, camera, night)
    return Shot(
        camera=camera,
        view=view,
        pose=draw_pose(rng),
        light=light,
        around=_draw_background(rng, camera, view),
        sensor=_draw_sensor(rng, camera, light),
        margin=(0.0, 0.0),
        shift=(0.0, 0.0),
        grain_seed=int(rng.integers(2**31)),
        detection=_draw_detection(rng, camera),
        oversampling=1.6 if camera.aerial else 1.3,
        shadow_cells=40 if camera.aerial else 64,
    )


def _draw_light(rng: np.random.Generator, camera: Camera, night: bool) -> Light:
    """Draw harder light than that of `light.py`: more sun, less sky, and on the ground often against the camera."""
    indoor = camera.wall == "corridor"
    light = draw_light(rng, night, indoor)
    if night or indoor:
        return light
    sun, sky = light.sun * np.float32(1.5), light.sky * np.float32(0.6)
    if camera.aerial or rng.random() < 0.4:
        return replace(light, sun=sun, sky=sky)
    away = np.abs(light.direction) * (1, np.sign(light.direction[1]), 1)  # the camera looks along +x, against the sun
    return replace(light, sun=sun, sky=sky, direction=away)


def _draw_detection(rng: np.random.Generator, camera: Camera) -> Detection:
    """Draw a detector's errors: on the ground it cuts heads and feet, or comes too near."""
    left, top, right, bottom = np.clip(rng.normal(0.04, 0.05, 4), -0.12, 0.22)
    aside = rng.normal(0, 0.06)
    cut, near = rng.random(2)
    if not camera.aerial and cut < 0.15:
        top -= rng.uniform(0.04, 0.11)
    if not camera.aerial and cut > 0.78:
        bottom -= rng.uniform(0.05, 0.2)
    if not camera.aerial and near < 0.1:
        bottom -= rng.uniform(0.2, 0.38)
    edges = float(left - aside), float(top), float(right + aside), float(bottom)
    return Detection(edges, 1.4 if camera.aerial else 1.15)


def _color(rng: np.random.Generator) -> Color:
    gray, tint = rng.uniform(0.02, 0.75) ** 1.6, rng.normal(0, 0.12, 3)
    red, green, blue = np.clip(gray * (1 + tint), 0.006, 0.85).tolist()
    return red, green, blue


def _draw_background(rng: np.random.Generator, camera: Camera, view: Viewpoint) -> Background:
    things = [
        replace(draw_thing(rng, camera), kind=_FURNITURE[rng.integers(len(_FURNITURE))], color=_color(rng))
        for _ in range(rng.poisson(0.9 if camera.aerial else 1.4))
    ]
    things += [_draw_figure(rng, camera) for _ in range(rng.poisson(0.35 if camera.aerial else 0.8))]
    passers = []
    occluded = rng.random()
    if camera.aerial and occluded < 0.2:
        things.append(draw_occluder(rng, camera, view))
    elif not camera.aerial and occluded < 0.07:
        side = rng.choice((-1, 1)) * rng.uniform(0.25, 0.45)
        spot = (float(view.position[0] * rng.uniform(0.15, 0.35)), float(side))
        passers.append(Passer(draw_person(rng, rng), draw_pose(rng), spot))
    elif not camera.aerial and occluded < 0.36:
        things.append(_draw_front(rng, view))
    ground = replace(
        draw_ground(rng, camera),
        wall=rng.uniform(1.2, 6.0),
        brightness=float(np.clip(rng.normal(1.0, 0.35), 0.35, 1.9)),
        dapple=rng.uniform(0.2, 0.7),
    )
    return Background(camera, ground, tuple(things), tuple(passers))


def _draw_figure(rng: np.random.Generator, camera: Camera) -> Thing:
    side = rng.choice((-1, 1))
    if camera.aerial:
        angle, far = rng.uniform(0, 2 * np.pi), rng.uniform(0.75, 1.5)
        spot = (far * np.cos(angle), far * np.sin(angle), 0.0)
    else:
        spot = (rng.uniform(0.8, 5.0), side * rng.uniform(0.25, 1.2), 0.0)
    return Thing("figure", spot, rng.uniform(0.95, 1.05), _color(rng))


def _draw_front(rng: np.random.Generator, view: Viewpoint) -> Thing:
    """Draw something between the camera and the legs."""
    toward = view.position - np.array((0, 0, BODY_MIDDLE))
    kind = _IN_FRONT[rng.integers(len(_IN_FRONT))]
    narrow = kind in ("pole", "bush", "planter")
    aside = rng.choice((-1, 1)) * rng.uniform(0.1, 0.3) if narrow else rng.uniform(-0.5, 0.5)
    return Thing(kind, (toward[0] * rng.uniform(0.1, 0.35), aside, 0.0), rng.uniform(0.8, 1.15), _color(rng))


@lru_cache(maxsize=len(CAMERAS))
def _get_habits(camera: Camera) -> dict[str, float]:
    """Return what is the same in all pictures of a camera: its cast, its tone curve, its compression."""
    rng = np.random.Generator(np.random.PCG64((4511, camera.number)))
    warmth, green = rng.normal(0.01, 0.05), rng.normal(0, 0.02)
    curve = rng.uniform(1.15, 1.4) if camera.aerial else rng.uniform(1.15, 1.45)
    return {"red": 1 + warmth, "green": 1 + green, "blue": 1 - warmth, "curve": curve, "quality": rng.uniform(35, 75)}


def _draw_sensor(rng: np.random.Generator, camera: Camera, light: Light) -> Sensor:
    habits, aerial = _get_habits(camera), camera.aerial
    length, angle = min(rng.exponential(0.5 if aerial else 1.1), 4.0), rng.uniform(0, 2 * np.pi)
    film = Film(
        metering=rng.uniform(0.6, 0.95),
        haze=rng.uniform(0.1, 0.31) * (0.5 if light.night else 1.0) if aerial else rng.uniform(0, 0.04),
        air=(0.37, 0.435, 0.54),
        focus=rng.uniform(0.25, 0.6) if aerial else rng.uniform(0.2, 0.8),
        curve=habits["curve"] * rng.uniform(0.92, 1.08),
        mid=rng.uniform(0.4, 0.5),
    )
    return Sensor(
        balance=(
            habits["red"] * (0.98 if aerial else 1.03),
            habits["green"],
            habits["blue"] * (1.04 if aerial else 0.98),
        ),
        exposure=rng.normal((-0.5 if light.night else 0.0) + (0.1 if aerial else 0.3), 0.18),
        contrast=1.0,
        saturation=float(np.clip(rng.normal(0.78 if aerial else 0.52, 0.06) * (0.8 if light.night else 1.0), 0.2, 1.2)),
        blur=(length * np.cos(angle), length * np.sin(angle)),
        grain=rng.uniform(0.008, 0.022) * (2.0 if light.night else 1.0),
        quality=int(np.clip(habits["quality"] + rng.normal(0, 6), 20, 90)),
        film=film,
    )
