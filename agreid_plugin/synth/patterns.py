"""Patterns on clothes and features of a face: each is a mask over the visible points of one material.

A pattern takes the points and returns how much of the accent color each gets, 0..1. Coordinates are meters in the frame
of the solid (front, left, up); on the trunk they start at the pelvis, on the head at its center.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreid_plugin.synth.solids import TORSO, Array, Material
from agreid_plugin.synth.textures import noise


@dataclass(frozen=True)
class Points:
    """The n visible points of one material."""

    local: Array  # (3, n)
    unit: Array  # (3, n)
    zone: NDArray[np.int64]  # (n,)
    period: float

    @property
    def chest(self) -> NDArray[np.bool_]:
        """Places of the points on the front of the trunk."""
        return (self.zone == TORSO) & (self.local[0] > 0.0)


Pattern = Callable[[Points], Array | NDArray[np.bool_]]


def _phase(value: Array, period: float) -> Array:
    return np.mod(value / np.float32(period), 1.0)


def _around(points: Points) -> Array:
    """Return meters along the girth, so that checks and dots do not smear on the sides."""
    return np.arctan2(points.local[1], np.abs(points.local[0]) + 0.02) * np.float32(0.16)


def _stripe_mask(points: Points) -> NDArray[np.bool_]:
    return _phase(points.local[2], points.period) < 0.45


def _check_mask(points: Points) -> Array:
    across = _phase(_around(points), points.period * 0.8) < 0.5
    along = _phase(points.local[2], points.period * 0.8) < 0.5
    return 0.5 * across + 0.5 * along


def _dot_mask(points: Points) -> NDArray[np.bool_]:
    size = points.period * 0.75
    row = np.floor(points.local[2] / size)
    u = _phase(_around(points) + 0.5 * size * row, size) - 0.5
    v = points.local[2] / size - row - 0.5
    return u * u + v * v < 0.09


def _logo(points: Points) -> NDArray[np.bool_]:
    y, z = points.local[1], points.local[2]
    block = (np.abs(y) < 0.095) & (np.abs(z - 0.29) < 0.065)
    letters = (np.mod(y, 0.05) < 0.012) & (np.abs(z - 0.29) < 0.03)
    return points.chest & block & ~letters


def _two_tone(points: Points) -> NDArray[np.bool_]:
    return (points.zone == TORSO) & (points.local[2] > 0.26)


def _denim(points: Points) -> Array:
    fade = noise(points.local[1], points.local[2], 0.008, 1) + noise(points.local[0], points.local[2], 0.02)
    return np.clip(0.06 + 0.07 * fade, 0, 1)


def _strands(points: Points) -> Array:
    return np.clip(0.25 * noise(points.local[1], points.local[2] * 0.2, 0.004, 1), 0, 1)


def _gores(points: Points) -> NDArray[np.bool_]:
    return _phase(np.arctan2(points.unit[1], points.unit[0]), np.pi / 4) < 0.12


def _leaves(points: Points) -> Array:
    return np.clip(0.4 + 1.2 * noise(points.local[0] + points.local[1], points.local[2], 0.009, 1), 0, 1)


def _face(points: Points) -> Array:
    x, y, z = points.local
    eye = (np.abs(np.abs(y) - 0.032) < 0.014) & (np.abs(z - 0.004) < 0.009)
    brow = (np.abs(np.abs(y) - 0.033) < 0.02) & (np.abs(z - 0.028) < 0.006)
    mouth = (np.abs(y) < 0.026) & (np.abs(z + 0.072) < 0.007)
    return (x > 0) * (0.8 * eye + 0.45 * brow + 0.3 * mouth)


def _beard(points: Points) -> NDArray[np.bool_]:
    x, y, z = points.local
    lips = (np.abs(y) < 0.022) & (np.abs(z + 0.071) < 0.008)
    return (x > -0.01) & (z < -0.048 + 0.35 * np.abs(y)) & ~lips


def _clear_glasses(points: Points) -> NDArray[np.bool_]:
    x, y, z = points.local
    ring = np.hypot((np.abs(y) - 0.033) / 0.03, (z - 0.004) / 0.024)
    temple = (np.abs(z - 0.01) < 0.006) & (x < 0.07)
    return (x > -0.01) & ((np.abs(ring - 1) < 0.22) | temple)


def _sun_glasses(points: Points) -> NDArray[np.bool_]:
    x, y, z = points.local
    lens = (np.abs(np.abs(y) - 0.034) < 0.031) & (np.abs(z - 0.004) < 0.021)
    temple = (np.abs(z - 0.01) < 0.007) & (x < 0.07)
    return (x > -0.01) & (lens | temple)


def _opening(points: Points) -> NDArray[np.bool_]:
    return points.chest & (np.abs(points.local[1]) < 0.034 + 0.03 * np.clip(points.local[2] / 0.4, 0, 1))


def _lapels(points: Points) -> NDArray[np.bool_]:
    y, z = points.local[1], points.local[2]
    return points.chest & (np.abs(y) < 0.30 * (z - 0.16)) & (z > 0.16)


def _tie(points: Points) -> NDArray[np.bool_]:
    y, z = points.local[1], points.local[2]
    return points.chest & (np.abs(y) < 0.021) & (z > 0.18)


def _buttons(points: Points) -> NDArray[np.bool_]:
    y, z = points.local[1], points.local[2]
    seam = np.abs(y - 0.03) < 0.004
    button = np.hypot(np.abs(y) - 0.05, np.mod(z, 0.12) - 0.06) < 0.013
    return points.chest & (seam | button)


def _placket(points: Points) -> Array:
    y, z = points.local[1], points.local[2]
    button = np.hypot(y, np.mod(z, 0.08) - 0.04) < 0.008
    return points.chest * (0.3 * (np.abs(np.abs(y) - 0.016) < 0.003) + 0.6 * button)


def _zip(points: Points) -> Array:
    y, z = points.local[1], points.local[2]
    pocket = (np.abs(np.abs(y) - 0.13 + 0.5 * z) < 0.005) & (z > 0.02) & (z < 0.14)
    return points.chest * (0.7 * (np.abs(y) < 0.005) + 0.5 * pocket)


def _two_straps(points: Points) -> NDArray[np.bool_]:
    y, z = points.local[1], points.local[2]
    return points.chest & (np.abs(np.abs(y) - 0.1) < 0.02) & (z > 0.14)


def _strap(points: Points, side: float = 1.0) -> NDArray[np.bool_]:
    y, z = points.local[1] * side, points.local[2]
    return (points.zone == TORSO) & (np.abs(y - 0.16 + 0.62 * (z + 0.02)) < 0.024) & (z > -0.04)


def _mirror_strap(points: Points) -> NDArray[np.bool_]:
    return _strap(points, -1.0)


PATTERNS: dict[str, Pattern] = {
    "striped": _stripe_mask,
    "checked": _check_mask,
    "dotted": _dot_mask,
    "logo": _logo,
    "two-tone": _two_tone,
    "denim": _denim,
    "strands": _strands,
    "gores": _gores,
    "leaves": _leaves,
    "face": _face,
    "beard": _beard,
    "clear glasses": _clear_glasses,
    "sun glasses": _sun_glasses,
    "opening": _opening,
    "lapels": _lapels,
    "tie": _tie,
    "buttons": _buttons,
    "placket": _placket,
    "zip": _zip,
    "two straps": _two_straps,
    "strap": _strap,
    "strap mirrored": _mirror_strap,
}
"""Every pattern but `plain`, which paints nothing."""


def paint(material: Material, points: Points) -> tuple[Array, dict[str, NDArray[np.bool_]]]:
    """Return the material's linear color at each point, (3, n), and where each of its patterns shows."""
    count = points.local.shape[1]
    color = np.repeat(np.array(material.color, dtype=np.float32)[:, None], count, axis=1)
    shown = {}
    for name, accent in ((material.pattern, material.accent), *material.trims):
        if name != "plain":
            mask = PATTERNS[name](points).astype(np.float32)
            color += (np.array(accent, dtype=np.float32)[:, None] - color) * mask
            shown[name] = mask > 0.4
    return color, shown
