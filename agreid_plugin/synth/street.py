"""A crowded street: bicycles, railings, low walls, figures far away, and walls with deep contrast.

The world `gap` takes them beside what `background.py` and `textures.py` have.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from agreid_plugin.synth.solids import Array, Builder, Material
from agreid_plugin.synth.textures import blend, cells, noise, paint_rgb
from agreid_plugin.synth.vocabulary import Color, darker

_RUBBER, _STEEL = (0.008, 0.008, 0.009), (0.16, 0.17, 0.18)
Place = tuple[float, float, float]


def _add_bicycle(builder: Builder, place: Place, size: float, color: Color) -> None:
    """Add a bicycle that stands across the line of sight."""
    (x, y, _), radius = place, 0.33 * size
    tire = builder.material(Material("", _RUBBER))
    frame = builder.material(Material("", darker(color, 0.6), gloss=0.3))
    hub, saddle, bars = (
        np.array((x, y + along * size, height * size)) for along, height in ((0, 0.32), (-0.2, 0.85), (0.35, 0.95))
    )
    for along in (-0.52, 0.52):
        middle = np.array((x, y + along * size, radius))
        spots = [middle + radius * np.array((0, np.cos(turn), np.sin(turn))) for turn in np.arange(9) * np.pi / 4]
        for one, two in pairwise(spots):
            builder.cone(one, two, (0.016, 0.016), tire)
        builder.cone(hub if along < 0 else bars, middle, (0.02, 0.02), frame)
    for one, two in ((hub, saddle), (hub, bars), (saddle, bars)):
        builder.cone(one, two, (0.024, 0.024), frame)
    builder.ball(saddle, (0.06, 0.13, 0.04), tire)
    builder.cone(np.subtract(bars, (0.25, 0, 0)), np.add(bars, (0.25, 0, 0)), (0.018, 0.018), tire)


def _add_railing(builder: Builder, place: Place, size: float, color: Color) -> None:
    metal = builder.material(Material("", _STEEL if sum(color) < 0.4 else darker(color, 0.7), gloss=0.3))
    x, y, _ = place
    for height in (0.5, 0.98):
        builder.box((x, y, height * size), (0.025, 1.6, 0.03), metal)
    for along in np.linspace(-1.5, 1.5, 9):
        builder.box((x, y + along, 0.49 * size), (0.018, 0.018, 0.49 * size), metal)


def _add_low_wall(builder: Builder, place: Place, size: float, color: Color) -> None:
    x, y, _ = place
    gray = sum(color) / 3
    stone = builder.material(Material("", (0.5 * gray + 0.12, 0.5 * gray + 0.115, 0.5 * gray + 0.105), wrinkle=0.25))
    builder.box((x, y, 0.27 * size), (0.12, 1.5, 0.27 * size), stone)


def _add_sign(builder: Builder, place: Place, size: float, color: Color) -> None:
    x, y, _ = place
    board = builder.material(Material("", color, darker(color, 0.6), "striped", 0.7))
    builder.box((x, y, 0.62 * size), (0.03, 0.3 * size, 0.5 * size), board)
    builder.box((x, y, 0.06), (0.15, 0.3 * size, 0.05), builder.material(Material("", _STEEL)))


def _add_figure(builder: Builder, place: Place, size: float, color: Color) -> None:
    """Add someone far away, of few solids."""
    x, y, _ = place
    turn = 40 * (x + y)  # from the place, any will do
    upper = builder.material(Material("", color, wrinkle=0.4))
    lower = builder.material(Material("", darker(color[::-1], 0.35), wrinkle=0.4))
    skin, hair = (builder.material(Material("", rgb)) for rgb in ((0.45, 0.28, 0.2), (0.02, 0.016, 0.014)))
    front = np.array((np.cos(turn), np.sin(turn), 0.0))
    side, foot = np.array((-front[1], front[0], 0.0)), np.array((x, y, 0.0))

    def at(ahead: float, aside: float, up: float) -> np.ndarray:
        return foot + size * (ahead * front + aside * side) + (0, 0, up * size)

    step = 0.22 * np.sin(turn * 3)
    for leg in (1, -1):
        builder.cone(at(leg * step, leg * 0.1, 0.05), at(0, leg * 0.09, 0.9), (0.06, 0.09), lower)
        builder.cone(at(-leg * step, leg * 0.24, 0.85), at(0, leg * 0.19, 1.38), (0.04, 0.055), upper)
    builder.cone(at(0, 0, 0.82), at(0, 0, 1.42), (0.16, 0.18), upper, flat=0.65, front=front)
    builder.ball(at(0, 0, 1.42), (0.11, 0.18, 0.08), upper, front=front)
    builder.ball(at(0.02, 0, 1.62), (0.09, 0.08, 0.12), skin, front=front)
    builder.ball(at(-0.02, 0, 1.66), (0.1, 0.09, 0.11), hair, front=front)


THINGS: dict[str, Callable[[Builder, Place, float, Color], None]] = {
    "bicycle": _add_bicycle,
    "railing": _add_railing,
    "low wall": _add_low_wall,
    "sign": _add_sign,
    "figure": _add_figure,
}


def _arcade(x: Array, z: Array) -> Array:
    """Paint bright pillars and dark doorways."""
    pillar, cell = cells(x, z + 0.3, 1.9, 3.1, 0.24)
    inside = paint_rgb((46, 45, 46), 0.9 + 0.8 * cell + 0.9 * noise(x, z, 0.03) + 0.5 * noise(x, z, 0.1, 2))
    stone = paint_rgb((196, 192, 184), 1 + 0.12 * noise(x, z) + 0.08 * noise(x, z, tile=1))
    poster = (np.mod(x + 0.4, 3.8) < 0.55) & (np.abs(z - 1.5) < 0.4)
    return blend(blend(inside, stone, pillar), paint_rgb((120, 118, 122), 1 + 1.2 * noise(x, z, 0.05, 1)), poster)


def _street(x: Array, z: Array) -> Array:
    """Paint the far side of a street: parked things below, windows, and the sky above the roofs."""
    frame, cell = cells(x, z, 1.3, 1.8, 0.3)
    house = paint_rgb((138, 132, 124), 1 + 0.5 * noise(np.floor(x / 5), z * 0, 1.0, 2) + 0.1 * noise(x, z))
    glass = paint_rgb((62, 66, 72), 1 + 1.3 * np.maximum(cell, 0) + 0.2 * noise(x, z, 0.1))
    wall = blend(glass, house, frame)
    parked = z < 0.9 + 0.5 * noise(np.floor(x / 1.7), z * 0, 1.0, 2)
    metal = paint_rgb((72, 72, 74), 1 + 1.6 * noise(x, z * 0.5, 0.03) + 0.6 * noise(x, z, tile=1))
    sky = paint_rgb((226, 230, 236), 1 + 0.06 * noise(x, z, 0.2))
    return blend(blend(wall, metal, parked), sky, z > 3.4 + 2 * noise(np.floor(x / 5), z * 0, 1.0, 2))


def _windows(x: Array, z: Array) -> Array:
    """Paint a glass front: bright and dark panes between thin frames."""
    frame, cell = cells(x, z, 0.85, 2.3, 0.035)
    shine = np.clip(noise(x + 0.6 * z, z * 0.3, 0.04) * 1.5, 0, 1)
    pane = paint_rgb((70, 73, 76), 0.7 + 0.9 * cell + 0.4 * noise(x, z, 0.06))
    pane = blend(pane, paint_rgb((214, 216, 218), np.ones_like(x)), shine * (cell > 0))
    return blend(pane, paint_rgb((52, 52, 54), np.ones_like(x)), frame)


def _park(x: Array, z: Array) -> Array:
    """Paint trunks and dark leaves with the sky between them."""
    leaves = paint_rgb((58, 66, 50), 0.8 + 0.9 * noise(x, z, tile=1) + 0.6 * noise(x, z, 0.04))
    gap = noise(x, z, 0.03) + 0.35 * (z - 1.9) > 0.35
    trunk = (np.mod(x, 2.7) < 0.3) & (z < 2.5)
    scene = blend(leaves, paint_rgb((222, 226, 230), np.ones_like(x)), gap)
    return blend(scene, paint_rgb((58, 52, 46), 1 + 0.5 * noise(x * 3, z)), trunk)


def _corridor(x: Array, z: Array) -> Array:
    """Paint a bright hall with dark doors, lamps and boards."""
    wall = paint_rgb((196, 194, 190), 1 + 0.05 * noise(x, z))
    door = (np.mod(x, 2.3) < 0.95) & (z < 2.15)
    board = (np.abs(np.mod(x, 2.3) - 1.6) < 0.35) & (np.abs(z - 1.45) < 0.5)
    wall = blend(wall, paint_rgb((48, 46, 46), 1 + 0.6 * noise(x, z, 0.05)), door)
    return blend(wall, paint_rgb((104, 104, 108), 1 + 1.3 * noise(x, z, 0.05, 1)), board)


WALLS: dict[str, Callable[[Array, Array], Array]] = {
    "arcade": _arcade,
    "street": _street,
    "windows": _windows,
    "park": _park,
    "corridor": _corridor,
}
