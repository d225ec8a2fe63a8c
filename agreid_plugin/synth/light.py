"""Light of a scene: the sun or a lamp, the sky, and their shadows.

Shapes: n points, R x R cells of a shadow map.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from agreid_plugin.synth.cameras import rectangles
from agreid_plugin.synth.raycast import FAR, Rays, cast
from agreid_plugin.synth.solids import Array, Solids, cross

CELLS = 96
REACH = 1.7  # meters around the person whose shadows are cast
CENTER = np.array((0.0, 0.0, 0.9))
BIAS = 0.06  # meters; less and surfaces shade themselves


@dataclass(frozen=True)
class Light:
    """One strong light far away and the light of everything else.

    Attributes:
        direction: unit vector toward the strong light.
        sun: its linear RGB.
        sky: linear RGB from above.
        bounce: linear RGB from below.
        softness: blur of the shadow on the ground, in meters.
        night: whether it is dark.
    """

    direction: NDArray[np.float64]
    sun: Array
    sky: Array
    bounce: Array
    softness: float
    night: bool


def draw_light(rng: np.random.Generator, night: bool, indoor: bool) -> Light:
    """Draw the light of one picture: sun and clouds by day, a lamp by night, lamps on the ceiling indoors."""
    overcast = rng.uniform(0, 1) ** 1.5
    azimuth, elevation = rng.uniform(0, 2 * np.pi), np.radians(rng.uniform(24, 68))
    sun, sky, softness = np.array((1.0, 0.92, 0.80)) * 2.3 * (1 - 0.85 * overcast), np.array((0.62, 0.72, 0.88)), 0.03
    if indoor:
        elevation, softness = np.radians(rng.uniform(65, 82)), 0.12
        sun, sky = np.array((0.75, 0.72, 0.66)), np.array((0.85, 0.83, 0.80))
    if night:
        elevation, softness = np.radians(rng.uniform(42, 75)), 0.05
        lamp = np.array((1.0, 0.74, 0.44)) if rng.random() < 0.6 else np.array((0.92, 1.0, 0.98))
        sun, sky = lamp * rng.uniform(0.7, 1.1), np.array((0.22, 0.24, 0.33)) * (2.2 if indoor else 1.0)
    sky = sky * (0.75 + 0.7 * overcast * (not night))
    flat = np.cos(elevation)
    direction = np.array((flat * np.cos(azimuth), flat * np.sin(azimuth), np.sin(elevation)))
    bounce = 0.3 * sky + 0.14 * sun * direction[2]
    return Light(
        direction=direction,
        sun=sun.astype(np.float32),
        sky=sky.astype(np.float32),
        bounce=bounce.astype(np.float32),
        softness=softness + 0.1 * overcast,
        night=night,
    )


@dataclass(frozen=True)
class ShadowMap:
    """Reach of the strong light, on a square facing it."""

    side: Array  # (2, 3) axes of the square
    toward: Array  # (3,) unit vector toward the light
    depth: Array  # (R, R) meters from the square to the first solid
    cover: Array  # (R, R) 0..1, blurred

    @property
    def _count(self) -> int:
        return len(self.depth)

    def _cells(self, points: Array) -> tuple[Array, Array]:
        """Return the points' places on the square in cells, (2, n), and their depth, (n,)."""
        away = points - CENTER.astype(np.float32)[:, None]
        place = np.stack([_dot(axis, away) for axis in self.side]) + np.float32(REACH)
        return place * np.float32(self._count / (2 * REACH)) - np.float32(0.5), np.float32(REACH) - _dot(
            self.toward, away
        )

    def on_solids(self, points: Array) -> Array:
        """Return how much of the light is kept from points on solids, (n,): the mean over the four cells around."""
        (column, row), depth = self._cells(points)
        return self._mean_of_four(column, row, lambda cell: self.depth.ravel()[cell] < depth - BIAS)

    def on_ground(self, points: Array) -> Array:
        """Return how much of the light is kept from points below all solids, (n,)."""
        (column, row), _ = self._cells(points)
        half = self._count / 2
        near = (np.abs(column - half) < half - 1) & (np.abs(row - half) < half - 1)
        shade = np.zeros(points.shape[1], dtype=np.float32)
        shade[near] = self._mean_of_four(column[near], row[near], lambda cell: self.cover.ravel()[cell])
        return shade

    def _mean_of_four(self, column: Array, row: Array, value: Callable[[NDArray], NDArray]) -> Array:
        count = self._count
        column, row = (np.clip(place, 0, count - 1.001) for place in (column, row))
        left, top = column.astype(np.int32), row.astype(np.int32)
        right, down = column - left, row - top
        cell = top * count + left
        upper = value(cell) * (1 - right) + value(cell + 1) * right
        lower = value(cell + count) * (1 - right) + value(cell + count + 1) * right
        return (upper * (1 - down) + lower * down).astype(np.float32)


def _dot(vector: NDArray, points: Array) -> Array:
    return sum(np.float32(vector[i]) * points[i] for i in range(3))


def shadow_map(light: Light, solids: Solids, cells: int = CELLS) -> ShadowMap:
    """Look at the solids from the light, on a square of so many cells a side."""
    toward = light.direction
    across = cross(toward, (0.0, 0.0, 1.0))
    across /= np.linalg.norm(across)
    side = np.stack([across, cross(toward, across)])
    cell = 2 * REACH / cells
    corner = CENTER + toward * REACH + side.sum(axis=0) * (cell / 2 - REACH)
    start = np.stack([corner, side[0] * cell, side[1] * cell]).astype(np.float32)
    direction = np.stack([-toward, np.zeros(3), np.zeros(3)]).astype(np.float32)
    middle, reach = (solids.middle - CENTER) @ side.T + REACH, solids.reach(solids.half @ side.T)
    spots = rectangles((middle - reach) / cell, (middle + reach) / cell, (cells, cells))
    depth = cast(solids, Rays(start, direction, 0.0, (cells, cells)), spots).distance.reshape(cells, cells)
    cover = gaussian_filter((depth < FAR).astype(np.float32), max(0.6, light.softness / cell))
    return ShadowMap(side.astype(np.float32), toward.astype(np.float32), depth, cover)


def illuminate(light: Light, normal: Array, shade: Array, openness: Array) -> Array:
    """Return the light falling on surfaces, (3, n).

    Args:
        light: the light.
        normal: (3, n) unit normals.
        shade: (n,) share of the strong light that is blocked.
        openness: (n,) share of the sky and ground the point sees.
    """
    facing = np.clip((_dot(light.direction, normal) + 0.12) / 1.12, 0, 1) * (1 - shade)
    upward = (0.5 + 0.5 * normal[2]) * openness
    downward = (0.5 - 0.5 * normal[2]) * openness
    return light.sun[:, None] * facing + light.sky[:, None] * upward + light.bounce[:, None] * downward
