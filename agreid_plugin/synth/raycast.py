"""Ray casting: rays against solids, all pairs at once.

Rays of one picture are affine in the pixel, so a solid's local rays follow from three vectors instead of a matrix
product a pixel. Each solid is tried only inside the rectangle of pixels its bounding box projects to.

Shapes: K solids, H x W pixels, N pairs of a pixel and a solid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreid_plugin.synth.solids import BOX, Array, Solids

FAR = np.float32(1e9)
"""Distance along a ray that hits nothing."""


Meet = Callable[[Solids, NDArray, NDArray, Array, Array], tuple[NDArray, Array]]


@dataclass(frozen=True)
class Rays:
    """The rays of a picture. A field is a vector for every pixel: field[0] + column * field[1] + row * field[2].

    Attributes:
        start: (3, 3) field; a ray starts at `start + near * direction`.
        direction: (3, 3) field.
        near: where along the line the ray begins. Starting close to the solids keeps float32 exact enough far away.
        shape: H, W.
    """

    start: Array
    direction: Array
    near: float
    shape: tuple[int, int]

    def directions(self) -> Array:
        """Return every direction, (3, H * W)."""
        return _spread(self.direction, self.shape)

    def origins(self) -> Array:
        """Return every origin, (3, H * W)."""
        return _spread(self.start, self.shape) + np.float32(self.near) * self.directions()


def _spread(field: Array, shape: tuple[int, int]) -> Array:
    column = np.arange(shape[1], dtype=np.float32)[None, None, :]
    row = np.arange(shape[0], dtype=np.float32)[None, :, None]
    constant, per_column, per_row = field[:, :, None, None]
    return (constant + per_column * column + per_row * row).reshape(3, -1)


@dataclass(frozen=True)
class Hits:
    """Nearest solid along each of the H * W rays."""

    distance: Array  # (H * W,), FAR where nothing is hit
    solid: NDArray[np.int64]  # (H * W,), -1 where nothing is hit


def cast(solids: Solids, rays: Rays, rectangles: NDArray[np.int64]) -> Hits:
    """Find the nearest solid along each ray.

    Args:
        solids: K solids.
        rays: H x W rays.
        rectangles: (K, 4) first and last+1 column, first and last+1 row a solid may cover.
    """
    size = rays.shape[0] * rays.shape[1]
    distance = np.full(size, FAR, dtype=np.float32)
    owner = np.full(size, -1, dtype=np.int64)
    covered = (rectangles[:, 1] > rectangles[:, 0]) & (rectangles[:, 3] > rectangles[:, 2])
    boxes = solids.kind == BOX
    for chosen, meet in ((covered & ~boxes, _meet_quadric), (covered & boxes, _meet_box)):
        if chosen.any():
            pixel, solid, t = _hits(solids, rays, np.flatnonzero(chosen), rectangles[chosen], meet)
            np.minimum.at(distance, pixel, t)
            nearest = t == distance[pixel]
            owner[pixel[nearest]] = solid[nearest]
    return Hits(distance, owner)


def _hits(
    solids: Solids, rays: Rays, chosen: NDArray, rectangles: NDArray, meet: Meet
) -> tuple[NDArray, NDArray, NDArray]:
    """Return pixel, solid and distance of every hit with the `chosen` solids."""
    left, right, top, bottom = rectangles.T
    counts = (right - left) * (bottom - top)
    column, row = _pixels(rectangles, counts)
    origin, direction = _local_rays(solids, rays, chosen, counts, column, row)
    kept, t = meet(solids, chosen, counts, origin, direction)
    pixel = row[kept].astype(np.int64) * rays.shape[1] + column[kept].astype(np.int64)
    return pixel, np.repeat(chosen, counts)[kept], t


def _pixels(rectangles: NDArray, counts: NDArray) -> tuple[Array, Array]:
    """List every pixel of every rectangle, one rectangle after the other."""
    left, right, top, _ = rectangles.T
    within = np.arange(counts.sum(), dtype=np.int32)
    within -= np.repeat((np.cumsum(counts) - counts).astype(np.int32), counts)
    width = np.repeat((right - left).astype(np.int32), counts)
    row = within // width
    column = within - row * width
    column += np.repeat(left.astype(np.int32), counts)
    row += np.repeat(top.astype(np.int32), counts)
    return column.astype(np.float32), row.astype(np.float32)


def _local_rays(
    solids: Solids, rays: Rays, chosen: NDArray, counts: NDArray, column: Array, row: Array
) -> tuple[Array, Array]:
    """Return origin and direction of each pair's ray in its solid's frame, (3, N) each."""

    def local(field: Array, offset: Array) -> Array:
        matrix = solids.to_local[chosen]
        total = np.repeat(np.einsum("kij,kj->ik", matrix, field[0] - offset), counts, axis=1)
        for step, place in zip(field[1:], (column, row), strict=True):
            if step.any():
                total += np.repeat(np.einsum("kij,j->ik", matrix, step), counts, axis=1) * place
        return total

    direction = local(rays.direction, np.zeros_like(solids.origin[chosen]))
    origin = local(rays.start, solids.origin[chosen])
    return (origin + np.float32(rays.near) * direction if rays.near else origin), direction


def _meet_quadric(
    solids: Solids, chosen: NDArray, counts: NDArray, origin: Array, direction: Array
) -> tuple[NDArray, Array]:
    """Return the pairs that hit a surface of revolution, and where: the nearer root whose height is not clipped."""
    q0, q1, q2 = np.repeat(solids.quadric[chosen].T, counts, axis=1)
    (ox, oy, oz), (dx, dy, dz) = origin, direction
    a = dx * dx + dy * dy - q2 * dz * dz
    b = ox * dx + oy * dy - (q2 * oz + q1 / 2) * dz
    c = ox * ox + oy * oy - q0 - (q1 + q2 * oz) * oz
    square = b * b - a * c
    kept = np.flatnonzero((square >= 0) & (np.abs(a) > 1e-9))
    a, b, square, oz, dz = a[kept], b[kept], square[kept], oz[kept], dz[kept]
    low, high = solids.clip[np.repeat(chosen, counts)[kept]].T
    root = np.sqrt(square) * np.sign(a)
    t = np.full_like(root, FAR)
    for candidate in ((root - b) / a, (-root - b) / a):  # the farther first, so that the nearer overrules it
        z = oz + candidate * dz
        t = np.where((candidate > 0) & (z >= low) & (z <= high), candidate, t)
    hit = t < FAR
    return kept[hit], t[hit]


def _meet_box(
    _solids: Solids, _chosen: NDArray, _counts: NDArray, origin: Array, direction: Array
) -> tuple[NDArray, Array]:
    """Return the pairs that hit the cube [-1, 1]^3, and where."""
    safe = np.where(np.abs(direction) < 1e-9, np.float32(1e-9), direction)
    one, two = (-1 - origin) / safe, (1 - origin) / safe
    enter = np.minimum(one, two).max(axis=0)
    leave = np.maximum(one, two).min(axis=0)
    kept = np.flatnonzero((enter <= leave) & (enter > 0))
    return kept, enter[kept]


@dataclass(frozen=True)
class Surface:
    """The n visible points of a picture."""

    pixel: NDArray[np.int64]  # (n,) flat index
    solid: NDArray[np.int64]  # (n,)
    point: Array  # (3, n) in the world
    normal: Array  # (3, n) in the world, toward the viewer
    local: Array  # (3, n) in the solid's frame for patterns, meters
    unit: Array  # (3, n) in the solid's own frame, where a ball has radius 1


def surface(solids: Solids, rays: Rays, hits: Hits) -> Surface:
    """Work out normals and local coordinates where rays hit something."""
    pixel = np.flatnonzero(hits.solid >= 0)
    solid, toward = hits.solid[pixel], rays.directions()[:, pixel]
    point = rays.origins()[:, pixel] + toward * hits.distance[pixel]
    unit = _rotate(solids.to_local, solid, point - solids.origin.T[:, solid])
    local = _rotate(solids.frame, solid, point - solids.anchor.T[:, solid])
    normal = _rotate(solids.to_local.transpose(0, 2, 1), solid, _local_normals(solids, solid, unit))
    normal /= np.sqrt(np.sum(normal * normal, axis=0)) + np.float32(1e-9)
    normal *= np.where(np.sum(normal * toward, axis=0) > 0, np.float32(-1), np.float32(1))
    return Surface(pixel, solid, point, normal, local, unit)


def _rotate(matrices: Array, solid: NDArray, vectors: Array) -> Array:
    """Multiply each of the n vectors by its solid's matrix, (3, n)."""
    rows = matrices.transpose(1, 2, 0)  # (3, 3, K)
    return np.stack([sum(rows[i, j][solid] * vectors[j] for j in range(3)) for i in range(3)])


def _local_normals(solids: Solids, solid: NDArray, unit: Array) -> Array:
    _, q1, q2 = solids.quadric.T[:, solid]
    round_ = np.stack([unit[0], unit[1], -q1 / 2 - q2 * unit[2]])
    boxed = solids.kind[solid] == BOX
    if not boxed.any():
        return round_
    size = np.abs(unit)
    return np.where(boxed, np.where(size >= size.max(axis=0), np.sign(unit), 0), round_).astype(np.float32)
