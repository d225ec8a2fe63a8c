"""Rendering of one picture from a person and a shot.

A shot is everything but the person, and is drawn without it: two people in the same shot share background, light, pose
and noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

from agreid_plugin.synth.background import (
    Background,
    add_background,
    add_person,
    dapple,
    draw_background,
    ground_color,
    wall_color,
)
from agreid_plugin.synth.body import Pose, draw_pose
from agreid_plugin.synth.cameras import (
    Box,
    Camera,
    Detection,
    Viewpoint,
    camera_rays,
    detect,
    draw_viewpoint,
    frame,
    pixel_bounds,
)
from agreid_plugin.synth.light import CELLS, Light, ShadowMap, draw_light, illuminate, shadow_map
from agreid_plugin.synth.patterns import Points, paint
from agreid_plugin.synth.people import Person
from agreid_plugin.synth.raycast import FAR, Hits, Rays, Surface, cast, surface
from agreid_plugin.synth.sensor import Sensor, develop, draw_sensor
from agreid_plugin.synth.solids import Array, Builder, Solids
from agreid_plugin.synth.textures import noise

OVERSAMPLING = 1.75  # rendered pixels for each native one, across


@dataclass(frozen=True)
class Shot:
    """Everything about a picture but who is in it.

    A `detection` takes the place of `margin` and `shift`: the box that a detector cuts, with the resolution it has.
    """

    camera: Camera
    view: Viewpoint
    pose: Pose
    light: Light
    around: Background
    sensor: Sensor
    margin: tuple[float, float]
    shift: tuple[float, float]
    grain_seed: int
    detection: Detection | None = None
    oversampling: float = OVERSAMPLING
    shadow_cells: int = CELLS


def draw_shot(rng: np.random.Generator, camera: Camera, night: bool) -> Shot:
    """Draw the random numbers of a picture by `camera`."""
    view = draw_viewpoint(rng, camera)
    light = draw_light(rng, night, indoor=camera.wall == "hall")
    return Shot(
        camera=camera,
        view=view,
        pose=draw_pose(rng),
        light=light,
        around=draw_background(rng, camera, view),
        sensor=draw_sensor(rng, camera, light),
        margin=(rng.uniform(0.02, 0.16), rng.uniform(0.02, 0.12)),
        shift=(float(np.clip(rng.normal(0, 0.03), -0.07, 0.07)), float(np.clip(rng.normal(0, 0.02), -0.05, 0.05))),
        grain_seed=int(rng.integers(2**31)),
    )


@dataclass(frozen=True)
class Picture:
    """A rendered image.

    Attributes:
        image: (H, W, 3) uint8.
        seen: part or pattern -> how many of the camera's own pixels show it.
        box: the crop.
    """

    image: NDArray[np.uint8]
    seen: Mapping[str, float]
    box: Box


def render(person: Person, shot: Shot, size: tuple[int, int], box: Box | None = None) -> Picture:
    """Render `person` in `shot` at `size` (height, width), cropped like a detector would or to `box`."""
    builder = Builder()
    add_person(builder, person, shot.pose)
    own = len(builder)
    add_background(builder, shot.around)
    solids = builder.pack()
    box = box or _cut(shot, solids, own, size[0] / size[1])
    native = _native_shape(shot, box, size)
    shape = round(shot.oversampling * native[0]), round(shot.oversampling * native[1])
    light, seen = _radiance(solids, own, shot, box, shape)
    rng = np.random.Generator(np.random.PCG64(shot.grain_seed))
    image = develop(light, shot.sensor, rng, native, size)
    per_pixel = native[0] * native[1] / (shape[0] * shape[1])
    return Picture(image, {part: count * per_pixel for part, count in seen.items()}, box)


def _cut(shot: Shot, solids: Solids, own: int, aspect: float) -> Box:
    """Return the crop around the first `own` solids."""
    if shot.detection:
        return detect(shot.view, solids, own, aspect, shot.detection)
    return frame(shot.view, solids, own, aspect, shot.margin, shot.shift)


def _native_shape(shot: Shot, box: Box, size: tuple[int, int]) -> tuple[int, int]:
    """Return the crop's size in the camera's own pixels, at most that of the result."""
    if shot.detection:
        height, width = (
            min(edge, shot.view.focal * side) for edge, side in zip(size, (box.height, box.width), strict=True)
        )
        return max(8, round(height)), max(4, round(width))
    share = min(1.0, shot.view.focal * box.height / size[0])
    return max(8, round(size[0] * share)), max(4, round(size[1] * share))


def _radiance(
    solids: Solids, own: int, shot: Shot, box: Box, shape: tuple[int, int]
) -> tuple[Array, Mapping[str, int]]:
    """Return linear light (H, W, 3) and how many pixels show each part of the person, the first `own` solids."""
    near = max(0.3, shot.view.distance - 6)
    rays = camera_rays(shot.view, box, shape, near)
    hits = cast(solids, rays, pixel_bounds(shot.view, solids, box, shape))
    shadows = shadow_map(shot.light, solids, shot.shadow_cells)
    light = _background(rays, hits, shot, shadows)
    points = surface(solids, rays, hits)
    color, gloss, wrinkle, seen = _materials(solids, own, points)
    light[:, points.pixel] = _shade(
        points, color, gloss, wrinkle, shot, shadows, _openness(hits.distance.reshape(shape))
    )
    return light.reshape(3, *shape).transpose(1, 2, 0), seen


def _background(rays: Rays, hits: Hits, shot: Shot, shadows: ShadowMap) -> Array:
    """Return the light of ground and wall where no solid is in front, (3, H * W)."""
    empty = np.flatnonzero(hits.solid < 0)
    start, step = rays.origins()[:, empty], rays.directions()[:, empty]
    falling = step[2] < -1e-6
    to_ground = np.where(falling, -start[2] / np.where(falling, step[2], -1), FAR)
    to_wall, along, height = _wall_hits(start, step, shot)
    on_wall = to_wall < to_ground
    light = np.zeros((3, len(hits.solid)), dtype=np.float32)
    on_ground = ~on_wall
    point = (start + step * np.where(on_ground, to_ground, 0))[:, on_ground]
    light[:, empty[on_ground]] = _ground_light(point, shot, shadows)
    if on_wall.any():
        falling_on = (shot.light.sun * np.float32(0.35) + shot.light.sky * np.float32(0.75))[:, None]
        light[:, empty[on_wall]] = wall_color(shot.around, along[on_wall], height[on_wall]) * falling_on
    return light


def _wall_hits(start: Array, step: Array, shot: Shot) -> tuple[Array, Array, Array]:
    """Return distance, place along the wall and height where rays meet the wall behind the person."""
    if not shot.camera.wall:
        return np.full(start.shape[1], FAR * 2), start[0], start[2]
    cos, sin = (np.float32(f(shot.around.ground.wall_turn)) for f in (np.cos, np.sin))
    away = np.maximum(cos * step[0] + sin * step[1], np.float32(1e-3))
    distance = (np.float32(shot.around.ground.wall) - cos * start[0] - sin * start[1]) / away
    spot = start + step * distance
    return distance, cos * spot[1] - sin * spot[0], spot[2]


def _ground_light(point: Array, shot: Shot, shadows: ShadowMap) -> Array:
    shade = shadows.on_ground(point)
    if shot.around.ground.dapple:
        shade = np.maximum(shade, dapple(shot.around.ground, point[0], point[1]) * np.float32(0.9))
    near = point[0] ** 2 + point[1] ** 2
    openness = 1 - np.float32(0.45) * np.exp(-near / np.float32(0.09)) - np.float32(0.15) * np.exp(-near)
    normal = np.zeros_like(point)
    normal[2] = 1
    return ground_color(shot.around, point[0], point[1]) * illuminate(shot.light, normal, shade, openness)


def _openness(depth: Array) -> Array:
    """Return how open each pixel of a depth map is, (H * W,): less where its neighbors are nearer, as in an armpit."""
    nearest = depth[depth < FAR].min() if (depth < FAR).any() else 0
    depth = np.minimum(depth, nearest + 1.5)
    behind = depth - uniform_filter(depth, max(3, depth.shape[0] // 24))
    return 1 - np.clip(behind * 3, -0.15, 0.5).ravel()


def _materials(solids: Solids, own: int, points: Surface) -> tuple[Array, Array, Array, Counter]:
    """Return color (3, n), gloss and wrinkle (n,) of each point, and how many points show each part of the person."""
    material = solids.material[points.solid]
    color = np.empty_like(points.point)
    gloss, wrinkle = np.empty((2, len(material)), dtype=np.float32)
    mine = points.solid < own
    order = np.argsort(material, kind="stable")
    edges = np.searchsorted(material[order], np.arange(len(solids.materials) + 1))
    seen: Counter[str] = Counter()
    for look, begin, end in zip(solids.materials, edges[:-1], edges[1:], strict=True):
        if begin == end:
            continue
        chosen = order[begin:end]
        zone = solids.zone[points.solid[chosen]]
        color[:, chosen], shown = paint(
            look, Points(points.local[:, chosen], points.unit[:, chosen], zone, look.period)
        )
        gloss[chosen], wrinkle[chosen] = look.gloss, look.wrinkle
        if mine[chosen[0]]:
            seen[look.part] += len(chosen)
            for name, where in shown.items():
                seen[f"{look.part}: {name}"] += int(where.sum())
    return color, gloss, wrinkle, seen


def _shade(
    points: Surface, color: Array, gloss: Array, wrinkle: Array, shot: Shot, shadows: ShadowMap, openness: Array
) -> Array:
    """Return the light each point sends to the camera, (3, n)."""
    normal = points.normal.copy()
    across = points.local[0] + points.local[1]
    for axis, shift in enumerate((0.0, 1.7, 3.1)):
        normal[axis] += 0.5 * wrinkle * noise(across + shift, points.local[2] * 0.7 + shift, 0.012)
    normal /= np.sqrt(np.sum(normal * normal, axis=0))
    shade = shadows.on_solids(points.point)
    low = np.clip(points.point[2] * 1.5, 0, 0.35) + 0.65
    falling = illuminate(shot.light, normal, shade, openness[points.pixel] * low)
    half = shot.light.direction - shot.view.axes[2]
    half = half / np.linalg.norm(half)
    shine = np.clip(sum(np.float32(half[i]) * normal[i] for i in range(3)), 0, 1) ** 24 * gloss * (1 - shade)
    return color * falling + shine * shot.light.sun[:, None]
