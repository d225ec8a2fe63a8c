"""Solids of a scene: cones, balls and boxes, gathered one by one and packed into arrays for the ray caster.

Shapes: K solids. Every solid lives in a local frame where it is a surface of revolution x^2 + y^2 = q0 + q1 z + q2 z^2
between two heights, or the cube [-1, 1]^3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreid_plugin.synth.vocabulary import Color

Vector = Sequence[float] | NDArray[np.floating]
Array = NDArray[np.float32]

UP = (0.0, 0.0, 1.0)
LIMB, TORSO = 0, 1
"""Zones of a solid: a chest logo is painted on the torso only."""

BALL, TUBE, BOX = 0, 1, 2
"""Kinds of a solid: a whole ellipsoid, a cone or cut ellipsoid, a box."""


@dataclass(frozen=True)
class Material:
    """Material of a surface; `patterns.py` paints it.

    Attributes:
        part: what it belongs to, for counting what is visible (`upper`, `hair`); empty for anything but the person.
        color: linear RGB.
        accent: linear RGB of the pattern's second color.
        pattern: a name in `patterns.PATTERNS`.
        period: size of the pattern in meters.
        trims: further (pattern, linear RGB) painted over, such as the straps of a bag.
        wrinkle: how far cloth bends its normals.
        gloss: strength of the highlight.
    """

    part: str
    color: Color
    accent: Color = (0.0, 0.0, 0.0)
    pattern: str = "plain"
    period: float = 0.1
    trims: tuple[tuple[str, Color], ...] = ()
    wrinkle: float = 0.0
    gloss: float = 0.0


@dataclass(frozen=True)
class Solids:
    """K solids as arrays."""

    to_local: Array  # (K, 3, 3) rotation, then division by the solid's scale
    origin: Array  # (K, 3)
    quadric: Array  # (K, 3) q0, q1, q2
    clip: Array  # (K, 2) lowest and highest local z
    kind: NDArray[np.int64]  # (K,) BALL, TUBE or BOX
    middle: Array  # (K, 3) center of the bounding box in the world
    half: Array  # (K, 3, 3) its half axes
    material: NDArray[np.int64]  # (K,) index into materials
    zone: NDArray[np.int64]  # (K,)
    frame: Array  # (K, 3, 3) rotation into the frame in which patterns are painted
    anchor: Array  # (K, 3) its origin
    materials: tuple[Material, ...]

    def __len__(self) -> int:
        return len(self.origin)

    def reach(self, half: NDArray) -> NDArray:
        """Return how far each solid reaches from its middle, (K, P), given its half axes in a projection, (K, 3, P)."""
        x, y, z = np.abs(half).transpose(1, 0, 2)
        flat = np.hypot(x, y)
        kind = self.kind[:, None]
        return np.where(kind == BALL, np.hypot(flat, z), np.where(kind == TUBE, flat + z, x + y + z))


class Builder:
    """Collects solids; `pack` turns them into arrays in one go, which is far faster than one by one."""

    def __init__(self) -> None:
        self._rows: list[tuple] = []
        self._tags: list[tuple[int, int, int]] = []
        self._materials: list[Material] = []

    def __len__(self) -> int:
        return len(self._rows)

    def material(self, material: Material) -> int:
        """Register a material and return its number."""
        self._materials.append(material)
        return len(self._materials) - 1

    def _add(
        self, origin: Vector, axis: Vector, front: Vector, scale: Vector, shape: Vector, kind: int, tags: tuple
    ) -> int:
        material, zone, frame_of = tags
        self._rows.append((*origin, *axis, *front, *scale, *shape, kind))
        self._tags.append((material, zone, len(self._tags) if frame_of is None else frame_of))
        return len(self._rows) - 1

    def ball(
        self,
        center: Vector,
        radii: Vector,
        material: int,
        *,
        axis: Vector = UP,
        front: Vector = (1.0, 0.0, 0.0),
        lowest: float = -1.0,
        zone: int = LIMB,
        frame_of: int | None = None,
    ) -> int:
        """Add an ellipsoid with radii along (front, side, axis), cut off below `lowest` (-1 keeps it whole)."""
        shape = (1.0, 0.0, -1.0, lowest, 1.0, 1.0)
        return self._add(
            center, axis, front, radii, shape, BALL if lowest == -1.0 else TUBE, (material, zone, frame_of)
        )

    def cone(
        self,
        start: Vector,
        end: Vector,
        radii: tuple[float, float],
        material: int,
        *,
        flat: float = 1.0,
        front: Vector = (1.0, 0.0, 0.0),
        zone: int = LIMB,
        frame_of: int | None = None,
    ) -> int:
        """Add an open cone from `start` to `end`; `flat` scales it along `front`."""
        axis, length = _line(start, end)
        slope = (radii[1] - radii[0]) / length
        shape = (radii[0] ** 2, 2 * radii[0] * slope, slope**2, 0.0, length, max(radii))
        return self._add(start, axis, front, (flat, 1.0, 1.0), shape, TUBE, (material, zone, frame_of))

    def limb(
        self,
        start: Vector,
        end: Vector,
        radii: tuple[float, float],
        material: int,
        *,
        flat: float = 1.0,
        front: Vector = (1.0, 0.0, 0.0),
        zone: int = LIMB,
        frame_of: int | None = None,
    ) -> int:
        """Add a round cone: the cone touching a ball at `start` and one at `end`, and the two balls."""
        axis, length = _line(start, end)
        sine = min(max(float(radii[0] - radii[1]) / length, -0.95), 0.95)
        cosine = (1 - sine**2) ** 0.5
        low, high = start + axis * (radii[0] * sine), end + axis * (radii[1] * sine)
        inner = radii[0] * cosine, radii[1] * cosine
        first = self.cone(low, high, inner, material, flat=flat, front=front, zone=zone, frame_of=frame_of)
        frame = first if frame_of is None else frame_of
        for center, radius in ((start, radii[0]), (end, radii[1])):
            size = (radius * flat, radius, radius)
            self.ball(center, size, material, axis=axis, front=front, zone=zone, frame_of=frame)
        return first

    def box(
        self, center: Vector, half: Vector, material: int, *, axis: Vector = UP, front: Vector = (1.0, 0.0, 0.0)
    ) -> int:
        """Add a box with half sizes along (front, side, axis)."""
        return self._add(center, axis, front, half, (1.0, 0.0, 0.0, -1.0, 1.0, 1.0), BOX, (material, LIMB, None))

    def pack(self) -> Solids:
        """Return everything added so far as arrays."""
        rows = np.array(self._rows, dtype=np.float64)
        material, zone, frame_of = np.array(self._tags, dtype=np.int64).T
        origin, scale = rows[:, 0:3], rows[:, 9:12]
        frame = _frames(rows[:, 3:6], rows[:, 6:9])
        low, high, radius = rows[:, 15:18].T
        half = frame * (scale * np.stack([radius, radius, (high - low) / 2], axis=1))[:, :, None]
        middle = origin + frame[:, 2] * (scale[:, 2] * (low + high) / 2)[:, None]
        return Solids(
            to_local=(frame / scale[:, :, None]).astype(np.float32),
            origin=origin.astype(np.float32),
            quadric=rows[:, 12:15].astype(np.float32),
            clip=rows[:, 15:17].astype(np.float32),
            kind=rows[:, 18].astype(np.int64),
            middle=middle.astype(np.float32),
            half=half.astype(np.float32),
            material=material,
            zone=zone,
            frame=frame[frame_of].astype(np.float32),
            anchor=origin[frame_of].astype(np.float32),
            materials=tuple(self._materials),
        )


def cross(one: Vector, other: Vector) -> NDArray:
    """Return the cross product of two vectors, (3,), ten times as fast as numpy's of arrays."""
    a, b, c = (float(value) for value in one)
    x, y, z = (float(value) for value in other)
    return np.array((b * z - c * y, c * x - a * z, a * y - b * x))


def _line(start: Vector, end: Vector) -> tuple[NDArray, float]:
    """Return the direction from one point to another, (3,), and how far it is."""
    along = np.subtract(end, start)
    length = float(np.sqrt(along @ along))
    return along / length, length


def _frames(axis: NDArray, front: NDArray) -> NDArray:
    """Return rotations whose rows are (front made orthogonal, side, axis), (K, 3, 3)."""
    along = np.sum(front * axis, axis=1, keepdims=True)
    parallel = np.abs(along) > 0.999
    front = np.where(parallel, axis[:, [1, 2, 0]], front)  # any direction will do, as long as it is not the axis
    x = front - np.sum(front * axis, axis=1, keepdims=True) * axis
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return np.stack([x, np.cross(axis, x), axis], axis=1)
