"""Procedural textures: noise, and surfaces and walls painted with it.

A texture is a function of two coordinates in meters that returns linear RGB, (3, n). The noise is the same for every
dataset: what differs between pictures is where in it they look.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from agreid_plugin.synth.solids import Array
from agreid_plugin.synth.vocabulary import Color, linear

SIZE = 512
TEXEL = 0.02  # meters; the noise repeats after SIZE * TEXEL = 10 m


@lru_cache(maxsize=1)
def _fields() -> Array:
    """Return two tiles of fractal noise (power falling with frequency) and one of white noise, in -1..1."""
    rng = np.random.Generator(np.random.PCG64(20240229))
    frequency = np.hypot(np.fft.fftfreq(SIZE)[:, None], np.fft.rfftfreq(SIZE)[None, :])
    frequency[0, 0] = np.inf
    tiles = []
    for power in (1.35, 0.8, 0.0):
        spectrum = np.fft.rfft2(rng.standard_normal((SIZE, SIZE))) / frequency**power
        tile = np.fft.irfft2(spectrum, (SIZE, SIZE))
        tiles.append(np.clip(tile / (2.5 * tile.std()), -1, 1).ravel())
    return np.array(tiles, dtype=np.float32)


def noise(x: Array, y: Array, texel: float = TEXEL, tile: int = 0) -> Array:
    """Look up fractal noise in -1..1: tile 0 is cloudy, 1 grainy, 2 white."""
    column = (x * np.float32(1 / texel)).astype(np.int32) & (SIZE - 1)
    row = (y * np.float32(1 / texel)).astype(np.int32) & (SIZE - 1)
    return _fields()[tile][row * SIZE + column]


def paint_rgb(rgb: Color, value: Array) -> Array:
    """Return an sRGB color times a value a point, as linear light."""
    return np.array(linear(rgb), dtype=np.float32)[:, None] * np.maximum(value, 0.02)


def blend(one: Array, other: Array, mask: NDArray | np.float32) -> Array:
    """Return `one` where the mask is 0 and `other` where it is 1."""
    return one + (other - one) * mask


def cells(x: Array, y: Array, width: float, height: float, joint: float, shift: float = 0.0) -> tuple[Array, Array]:
    """Return where the joints of a tiling run (0 or 1), and a random value in -1..1 for each of its cells."""
    row = np.floor(y / height)
    along = x / width + shift * row
    column = np.floor(along)
    inside = (np.abs(along - column - 0.5) < 0.5 - joint / width) & (
        np.abs(y / height - row - 0.5) < 0.5 - joint / height
    )
    return (~inside).astype(np.float32), noise(column, row, 1.0, 2)


def _asphalt(x: Array, y: Array) -> Array:
    value = 1 + 0.22 * noise(x, y) + 0.14 * noise(x, y, tile=1)
    return paint_rgb((104, 104, 108), value)


def _road(x: Array, y: Array) -> Array:
    worn = 0.75 + 0.25 * noise(x, y, tile=1)
    line = (np.abs(np.mod(y, 3.4) - 1.7) < 0.07) & (np.mod(x, 3.0) < 1.9)
    return blend(_asphalt(x, y), paint_rgb((214, 212, 204), worn), line * np.float32(0.9))


def _crossing(x: Array, y: Array) -> Array:
    stripe = (np.mod(y, 1.0) < 0.5) & (np.mod(x, 8.0) < 4.0)
    return blend(
        _asphalt(x, y), paint_rgb((206, 205, 198), 0.85 + 0.2 * noise(x, y, tile=1)), stripe * np.float32(0.85)
    )


def _paving(x: Array, y: Array) -> Array:
    joint, stone = cells(x, y, 0.6, 0.4, 0.012, 0.5)
    value = 1 + 0.1 * stone + 0.12 * noise(x, y) + 0.06 * noise(x, y, tile=1)
    return paint_rgb((158, 152, 144), value * (1 - 0.42 * joint))


def _slabs(x: Array, y: Array) -> Array:
    joint, stone = cells(x, y, 0.5, 0.5, 0.01)
    red = paint_rgb((150, 112, 98), 1 + 0.12 * stone + 0.1 * noise(x, y))
    gray = paint_rgb((142, 140, 138), 1 + 0.12 * stone + 0.1 * noise(x, y))
    return blend(gray, red, (stone > 0.15).astype(np.float32)) * (1 - 0.4 * joint)


def _brick(x: Array, y: Array) -> Array:
    joint, stone = cells(x, y, 0.22, 0.11, 0.008, 0.5)
    return blend(
        paint_rgb((142, 86, 70), 1 + 0.2 * stone + 0.12 * noise(x, y)),
        paint_rgb((150, 144, 134), 1 + 0.1 * noise(x, y)),
        joint * np.float32(0.8),
    )


def _grass(x: Array, y: Array) -> Array:
    value = 1 + 0.35 * noise(x, y) + 0.5 * noise(x, y, tile=1)
    lush, dry = paint_rgb((78, 102, 48), value), paint_rgb((124, 118, 70), value)
    return blend(lush, dry, np.clip(0.35 + 0.9 * noise(x, y, 0.05), 0, 1))


def _concrete(x: Array, y: Array) -> Array:
    joint, _ = cells(x, y, 2.4, 2.4, 0.015)
    return paint_rgb((164, 162, 156), (1 + 0.18 * noise(x, y) + 0.06 * noise(x, y, tile=1)) * (1 - 0.35 * joint))


def _gravel(x: Array, y: Array) -> Array:
    return paint_rgb((156, 140, 116), 1 + 0.16 * noise(x, y) + 0.3 * noise(x, y, tile=1))


def _floor(x: Array, y: Array) -> Array:
    joint, tile = cells(x, y, 0.6, 0.6, 0.006)
    return paint_rgb((186, 180, 170), (1 + 0.04 * tile + 0.05 * noise(x, y, 0.04)) * (1 - 0.3 * joint))


SURFACES: dict[str, Callable[[Array, Array], Array]] = {
    "asphalt": _asphalt,
    "road": _road,
    "crossing": _crossing,
    "paving": _paving,
    "slabs": _slabs,
    "brick": _brick,
    "grass": _grass,
    "concrete": _concrete,
    "gravel": _gravel,
    "floor": _floor,
}
"""Surfaces of the ground."""


def _sky(x: Array, z: Array) -> Array:
    return paint_rgb((188, 204, 224), 1.1 + 0.25 * noise(x, z * 2, 0.2))


def _facade(x: Array, z: Array) -> Array:
    joint, cell = cells(x, z + 0.8, 2.1, 2.9, 0.5)
    frame, _ = cells(x, z + 0.8, 2.1, 2.9, 0.42)
    wall = paint_rgb((170, 154, 132), 1 + 0.08 * noise(x, z))
    glass = paint_rgb((66, 78, 92), 0.9 + 0.5 * cell + 0.3 * noise(x, z, 0.1))
    return blend(blend(glass, paint_rgb((220, 216, 208), np.ones_like(x)), joint), wall, frame)


def _hedge(x: Array, z: Array) -> Array:
    leaves = paint_rgb((52, 78, 40), 0.9 + 0.7 * noise(x, z, tile=1) + 0.5 * noise(x, z, 0.04))
    return blend(leaves, _sky(x, z), (z > 2.6 + 0.5 * noise(x, z * 0.01, 0.05)).astype(np.float32))


def _shops(x: Array, z: Array) -> Array:
    pillar, cell = cells(x, z, 3.4, 3.2, 0.22)
    things = paint_rgb((150, 120, 92), 0.8 + 0.9 * noise(x, z, 0.05) + 0.3 * noise(x, z, 0.15, 2))
    glass = blend(things, paint_rgb((54, 62, 70), 1 + 0.2 * cell), np.clip(0.55 + 0.5 * cell, 0, 1))
    shop = blend(glass, paint_rgb((96, 92, 90), 1 + 0.2 * noise(x, z)), pillar)
    sign = (np.abs(z - 3.05) < 0.28).astype(np.float32)
    return blend(shop, paint_rgb((122, 58, 52), 1 + 0.7 * noise(np.floor(x / 3.4), z * 0, 1.0, 2)), sign)


def _fence(x: Array, z: Array) -> Array:
    far = blend(_hedge(x * 0.6, z * 0.6), _grass(x, z), (z < 0.4).astype(np.float32))
    bar = ((np.mod(x, 0.14) < 0.03) | (np.abs(np.mod(z, 0.95) - 0.15) < 0.03)) & (z < 1.2)
    return blend(far, paint_rgb((70, 72, 76), np.ones_like(x)), bar * np.float32(0.9))


def _hall(x: Array, z: Array) -> Array:
    wall = paint_rgb((206, 200, 186), 1 + 0.04 * noise(x, z))
    door = (np.mod(x, 3.6) < 1.0) & (z < 2.1)
    poster = (np.abs(np.mod(x, 3.6) - 2.3) < 0.45) & (np.abs(z - 1.6) < 0.55)
    wall = blend(wall, paint_rgb((128, 92, 62), 1 + 0.1 * noise(x, z)), door.astype(np.float32))
    wall = blend(wall, paint_rgb((96, 116, 140), 1 + 0.8 * noise(x, z, 0.06)), poster.astype(np.float32))
    return blend(wall, paint_rgb((92, 88, 84), np.ones_like(x)), ((z < 0.1) & ~door).astype(np.float32))


WALLS: dict[str, Callable[[Array, Array], Array]] = {
    "facade": _facade,
    "wall": _brick,
    "hedge": _hedge,
    "shops": _shops,
    "fence": _fence,
    "hall": _hall,
}
"""Walls behind people; the height is in meters above the ground."""
