"""The thirteen cameras, and the position and direction of one for a picture.

The person stands at the origin of a world whose z axis points up; a camera looks along +x. Image axes are right and
down; image coordinates are tangents (meters at one meter's depth), and times `focal` they are pixels of the full frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreid_plugin.synth.raycast import Rays
from agreid_plugin.synth.solids import Solids, cross

BODY_MIDDLE = 0.9  # meters: the height a line of sight aims at


@dataclass(frozen=True)
class Camera:
    """A camera and its place.

    Attributes:
        number: 1..13 as in CARGO: 1 to 5 are aerial, the others on the ground.
        platform: `uav`, `cctv` or `wearable`.
        altitude: lowest and highest height of the camera in meters.
        pitch: lowest and highest angle below the horizon in degrees at which it sees people (aerial cameras).
        distance: nearest and farthest person in meters (ground cameras; for aerial ones it follows from the pitch).
        focal: focal length in pixels, which with the distance decides how many pixels a person gets.
        surfaces: what people walk on there, the main one first.
        wall: what stands behind them.
        tint: its white balance.
    """

    number: int
    platform: str
    altitude: tuple[float, float]
    focal: float
    surfaces: tuple[str, str]
    pitch: tuple[float, float] = (0.0, 0.0)
    distance: tuple[float, float] = (0.0, 0.0)
    wall: str = ""
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)

    @property
    def aerial(self) -> bool:
        """Whether it flies."""
        return self.platform == "uav"


CAMERAS: tuple[Camera, ...] = (
    Camera(1, "uav", (14, 18), 1950, ("paving", "grass"), pitch=(30, 40), tint=(1.0, 1.0, 1.04)),
    Camera(2, "uav", (18, 25), 2300, ("asphalt", "road"), pitch=(40, 51), tint=(1.05, 1.0, 0.95)),
    Camera(3, "uav", (25, 34), 2800, ("grass", "gravel"), pitch=(50, 62), tint=(0.98, 1.02, 1.0)),
    Camera(4, "uav", (34, 46), 3500, ("crossing", "slabs"), pitch=(60, 73), tint=(0.95, 1.0, 1.08)),
    Camera(5, "uav", (46, 60), 4300, ("concrete", "paving"), pitch=(70, 85), tint=(1.04, 0.99, 0.98)),
    Camera(6, "wearable", (1.45, 1.7), 1150, ("paving", "asphalt"), distance=(3.5, 7), wall="facade"),
    Camera(
        7, "wearable", (1.4, 1.65), 1050, ("grass", "gravel"), distance=(3.5, 7), wall="hedge", tint=(1.02, 1.0, 0.93)
    ),
    Camera(
        8, "wearable", (1.5, 1.75), 1100, ("slabs", "brick"), distance=(3.5, 8), wall="shops", tint=(0.94, 1.0, 1.08)
    ),
    Camera(9, "wearable", (1.4, 1.7), 1050, ("asphalt", "road"), distance=(4, 8), wall="fence", tint=(0.97, 1.0, 1.05)),
    Camera(10, "cctv", (2.3, 2.8), 1300, ("floor", "floor"), distance=(5, 9), wall="hall", tint=(1.08, 1.0, 0.88)),
    Camera(11, "cctv", (2.4, 3.1), 1400, ("brick", "paving"), distance=(6, 11), wall="wall", tint=(1.05, 1.0, 0.95)),
    Camera(
        12, "cctv", (2.5, 3.2), 1350, ("concrete", "slabs"), distance=(6, 11), wall="shops", tint=(0.93, 1.01, 1.06)
    ),
    Camera(
        13, "cctv", (2.2, 2.9), 1250, ("crossing", "asphalt"), distance=(6, 10), wall="facade", tint=(1.0, 1.03, 0.98)
    ),
)
"""In the order of their numbers."""


def camera(number: int) -> Camera:
    """Return the camera with this number."""
    return CAMERAS[number - 1]


@dataclass(frozen=True)
class Viewpoint:
    """A camera in its place: `axes` has the rows right, down, forward."""

    position: NDArray[np.float64]  # (3,)
    axes: NDArray[np.float64]  # (3, 3)
    focal: float

    def project(self, points: NDArray) -> NDArray:
        """Return image coordinates of world points, (..., 2)."""
        local = (points - self.position) @ self.axes.T
        return local[..., :2] / local[..., 2:]

    @property
    def distance(self) -> float:
        """Meters to the middle of the person."""
        return float(np.linalg.norm(self.position - np.array((0, 0, BODY_MIDDLE))))

    @property
    def pitch(self) -> float:
        """Degrees below the horizon at which the person is seen."""
        return float(np.degrees(np.arcsin((self.position[2] - BODY_MIDDLE) / self.distance)))


def draw_viewpoint(rng: np.random.Generator, camera: Camera) -> Viewpoint:
    """Draw a place of `camera` in its ranges, with the person anywhere but at the edges of its frame."""
    altitude = rng.uniform(*camera.altitude)
    if camera.aerial:
        pitch = np.radians(rng.uniform(*camera.pitch))
        aside = rng.uniform(-0.22, 0.22), rng.uniform(-0.12, 0.12)
    else:
        pitch = np.arctan2(altitude - BODY_MIDDLE, rng.uniform(*camera.distance))
        aside = rng.uniform(-0.3, 0.3), rng.uniform(-0.1, 0.1)
    return place(altitude, float(pitch), camera.focal, aside)


def place(altitude: float, pitch: float, focal: float, aside: tuple[float, float] = (0.0, 0.0)) -> Viewpoint:
    """Put a camera at `altitude` so that it sees the person `pitch` radians below the horizon.

    Args:
        altitude: meters.
        pitch: radians, of the line of sight to the person.
        focal: pixels.
        aside: how far right and down the optical axis points beside the person, as tangents.
    """
    sight = np.array((np.cos(pitch), 0.0, -np.sin(pitch)))
    position = np.array((0, 0, BODY_MIDDLE)) - sight * (altitude - BODY_MIDDLE) / np.sin(pitch)
    right, down = np.array((0.0, -1.0, 0.0)), np.array((-np.sin(pitch), 0.0, -np.cos(pitch)))
    forward = sight + aside[0] * right + aside[1] * down
    forward /= np.linalg.norm(forward)
    right = cross(forward, (0.0, 0.0, 1.0))
    right /= np.linalg.norm(right)
    return Viewpoint(position, np.stack([right, cross(forward, right), forward]), focal)


@dataclass(frozen=True)
class Box:
    """A crop in image coordinates."""

    left: float
    top: float
    width: float
    height: float


def extent(view: Viewpoint, solids: Solids) -> tuple[NDArray, NDArray]:
    """Return least and greatest image coordinates each solid reaches, (K, 2) and (K, 2)."""
    middle = view.project(solids.middle)  # (K, 2)
    half = view.project(solids.middle[:, None] + solids.half) - middle[:, None]
    reach = solids.reach(half)
    return middle - reach, middle + reach


def frame(
    view: Viewpoint, solids: Solids, own: int, aspect: float, margin: tuple[float, float], shift: tuple[float, float]
) -> Box:
    """Return the crop a detector would cut around the first `own` of the solids.

    Args:
        view: the camera.
        solids: the person and what is around.
        own: how many of them are the person.
        aspect: height over width of the picture. A box of another shape is widened most of the way to it, and the
            rest is left to resizing, as in real crops.
        margin: share of the box added in width and height.
        shift: how far the box lies off, as a share of it.
    """
    low, high = (edge[:own] for edge in extent(view, solids))
    low, high = low.min(axis=0), high.max(axis=0)
    width, height = (high - low) * (1 + np.array(margin))
    squeeze = 1.12
    width, height = max(width, height / (aspect * squeeze)), max(height, width * aspect / squeeze)
    center = (low + high) / 2 + np.array(shift) * (width, height)
    return Box(center[0] - width / 2, center[1] - height / 2, width, height)


@dataclass(frozen=True)
class Detection:
    """Errors of a detector's box.

    Attributes:
        edges: how far left, top, right and bottom edge lie outside the person, as shares of its width and height.
        stretch: how far resizing may change the shape of what is in the box.
    """

    edges: tuple[float, float, float, float]
    stretch: float


def detect(view: Viewpoint, solids: Solids, own: int, aspect: float, detection: Detection) -> Box:
    """Return the crop that a detector cuts around the first `own` solids, for a picture of this height over width."""
    low, high = (edge[:own] for edge in extent(view, solids))
    low, high = low.min(axis=0), high.max(axis=0)
    size, edges = high - low, np.array(detection.edges)
    low, high = low - edges[:2] * size, high + edges[2:] * size
    width, height = high - low
    width, height = max(width, height / (aspect * detection.stretch)), max(height, width * aspect / detection.stretch)
    center = (low + high) / 2
    return Box(center[0] - width / 2, center[1] - height / 2, width, height)


def camera_rays(view: Viewpoint, box: Box, shape: tuple[int, int], near: float) -> Rays:
    """Return the rays of a picture of `box` with `shape` pixels, starting at the depth `near`."""
    right, down, forward = view.axes
    step = box.width / shape[1], box.height / shape[0]
    first = forward + (box.left + step[0] / 2) * right + (box.top + step[1] / 2) * down
    direction = np.stack([first, step[0] * right, step[1] * down])
    start = np.stack([view.position, np.zeros(3), np.zeros(3)])
    return Rays(start.astype(np.float32), direction.astype(np.float32), near, shape)


def rectangles(low: NDArray, high: NDArray, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Return the pixels covered from `low` to `high`, both (K, 2) in pixels, as `raycast.cast` takes them, (K, 4)."""
    low, high = np.floor(low - 0.5), np.ceil(high + 0.5)  # half a pixel for the error of a linear projection
    limits = [(low[:, 0], high[:, 0], shape[1]), (low[:, 1], high[:, 1], shape[0])]
    return np.stack([np.clip(edge, 0, size) for *edges, size in limits for edge in edges], axis=1).astype(np.int64)


def pixel_bounds(view: Viewpoint, solids: Solids, box: Box, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Return the pixels each solid may cover in a picture of `box`, (K, 4)."""
    step = box.width / shape[1], box.height / shape[0]
    low, high = ((edge - (box.left, box.top)) / step for edge in extent(view, solids))
    return rectangles(low, high, shape)
