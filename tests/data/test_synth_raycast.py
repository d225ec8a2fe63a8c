"""AG-Synth's ray caster against hand-computed hits and slow oracles."""

from __future__ import annotations

import numpy as np
import pytest

from agreid_plugin.synth.background import add_person
from agreid_plugin.synth.body import Pose
from agreid_plugin.synth.cameras import CAMERAS, camera_rays, draw_viewpoint, frame, pixel_bounds
from agreid_plugin.synth.people import sample_person
from agreid_plugin.synth.raycast import FAR, Rays, cast, surface
from agreid_plugin.synth.solids import TORSO, Builder, Material, Solids

GRAY = Material("", (0.2, 0.2, 0.2))
EVERYWHERE = np.array([[0, 1, 0, 1]])


def build(add) -> Solids:
    """Pack what `add(builder, material)` adds."""
    builder = Builder()
    add(builder, builder.material(GRAY))
    return builder.pack()


def one_ray(start, direction) -> Rays:
    fields = np.zeros((2, 3, 3), dtype=np.float32)
    fields[:, 0] = start, direction
    return Rays(fields[0], fields[1], 0.0, (1, 1))


def shoot(solids: Solids, start, direction) -> tuple[float, np.ndarray | None]:
    """Return where one ray hits and the normal there."""
    rays = one_ray(start, direction)
    hits = cast(solids, rays, np.repeat(EVERYWHERE, len(solids), axis=0))
    if hits.solid[0] < 0:
        return float(FAR), None
    return float(hits.distance[0]), surface(solids, rays, hits).normal[:, 0]


@pytest.mark.parametrize(
    ("start", "distance", "normal"),
    [
        ((0, 0, 10), 8.0, (0, 0, 1)),  # radius 2, straight at the center
        ((1, 0, 10), 10 - 3**0.5, (0.5, 0, 3**0.5 / 2)),  # one beside it: z = sqrt(4 - 1)
    ],
)
def test_ball_by_hand(start, distance, normal):
    ball = build(lambda builder, gray: builder.ball((0, 0, 0), (2, 2, 2), gray))
    t, n = shoot(ball, start, (0, 0, -1))
    assert t == pytest.approx(distance, rel=1e-5)
    np.testing.assert_allclose(n, normal, atol=1e-5)


def test_ray_beside_a_ball_misses():
    ball = build(lambda builder, gray: builder.ball((0, 0, 0), (2, 2, 2), gray))
    assert shoot(ball, (2.01, 0, 10), (0, 0, -1)) == (float(FAR), None)


def test_ball_behind_the_ray_is_not_hit():
    ball = build(lambda builder, gray: builder.ball((0, 0, 0), (2, 2, 2), gray))
    assert shoot(ball, (0, 0, 10), (0, 0, 1))[0] == FAR


def test_ellipsoid_has_a_radius_an_axis():
    solid = build(lambda builder, gray: builder.ball((0, 0, 0), (1, 2, 3), gray))
    assert shoot(solid, (9, 0, 0), (-1, 0, 0))[0] == pytest.approx(8)
    assert shoot(solid, (0, 9, 0), (0, -1, 0))[0] == pytest.approx(7)
    assert shoot(solid, (0, 0, 9), (0, 0, -1))[0] == pytest.approx(6)


@pytest.mark.parametrize(
    ("height", "distance", "normal"),
    [
        (1.0, 4.5, (1, 0, 0)),  # on the side of a capsule of radius 0.5
        (2.3, 4.6, (0.8, 0, 0.6)),  # on its cap, 0.3 above the ball's center: x = sqrt(0.25 - 0.09) = 0.4
    ],
)
def test_capsule_by_hand(height, distance, normal):
    capsule = build(lambda builder, gray: builder.limb(np.zeros(3), np.array((0, 0, 2.0)), (0.5, 0.5), gray))
    t, n = shoot(capsule, (5, 0, height), (-1, 0, 0))
    assert t == pytest.approx(distance, rel=1e-5)
    np.testing.assert_allclose(n, normal, atol=1e-4)
    assert shoot(capsule, (5, 0, 2.51), (-1, 0, 0))[0] == FAR


def test_round_cone_against_a_row_of_balls():
    """A round cone is the union of balls whose centers and radii run from one end to the other."""
    rng = np.random.default_rng(0)
    start, end, radii = np.array((0.1, -0.2, 0.3)), np.array((0.5, 0.4, 1.6)), (0.4, 0.15)
    limb = build(lambda builder, gray: builder.limb(start, end, radii, gray))
    share = np.linspace(0, 1, 4001)[:, None]
    centers, sizes = start + share * (end - start), radii[0] + share[:, 0] * (radii[1] - radii[0])
    hits = 0
    for _ in range(60):
        origin = rng.normal(size=3) * 3 + (0, 0, 1)
        aim = start + rng.random() * (end - start) + rng.normal(size=3) * 0.25 - origin
        aim /= np.linalg.norm(aim)
        along = (centers - origin) @ aim
        square = sizes**2 - np.sum((centers - origin) ** 2, axis=1) + along**2
        expected = (along - np.sqrt(np.maximum(square, 0)))[square > 0].min() if (square > 0).any() else float(FAR)
        if expected == float(FAR) or square.max() > 0.002:  # a graze may fall either way
            assert shoot(limb, origin, aim)[0] == pytest.approx(expected, abs=2e-3)
            hits += expected < FAR
    assert hits > 20


def test_cone_by_hand():
    """Radius 2 at the foot and 1 a meter up: halfway it is 1.5, and leans back by 45 degrees."""
    cone = build(lambda builder, gray: builder.cone((0, 0, 0), (0, 0, 1), (2, 1), gray))
    t, normal = shoot(cone, (5, 0, 0.5), (-1, 0, 0))
    assert t == pytest.approx(3.5)
    np.testing.assert_allclose(normal, (0.5**0.5, 0, 0.5**0.5), atol=1e-5)
    assert shoot(cone, (5, 0, 1.1), (-1, 0, 0))[0] == FAR


def test_cut_ball_shows_its_inside_from_below():
    dome = build(lambda builder, gray: builder.ball((0, 0, 0), (1, 1, 1), gray, lowest=0.0))
    t, normal = shoot(dome, (0, 0, -5), (0, 0, 1))
    assert t == pytest.approx(6)
    np.testing.assert_allclose(normal, (0, 0, -1), atol=1e-5)  # toward the viewer
    assert shoot(dome, (5, 0, -0.1), (-1, 0, 0))[0] == FAR


def test_box_by_hand():
    box = build(lambda builder, gray: builder.box((0, 0, 0), (1, 2, 3), gray))
    t, normal = shoot(box, (0.5, 10, 1), (0, -1, 0))
    assert t == pytest.approx(8)
    np.testing.assert_allclose(normal, (0, 1, 0), atol=1e-6)
    assert shoot(box, (1.1, 10, 0), (0, -1, 0))[0] == FAR


def test_nearest_solid_wins_whatever_the_order():
    def add(builder, gray):
        builder.ball((0, 0, 0), (1, 1, 1), gray)
        builder.box((0, 0, 4), (1, 1, 1), gray)
        builder.ball((0, 0, 2), (1, 1, 1), gray)

    solids = build(add)
    rays = one_ray((0, 0, 10), (0, 0, -1))
    hits = cast(solids, rays, np.repeat(EVERYWHERE, 3, axis=0))
    assert (int(hits.solid[0]), float(hits.distance[0])) == (1, 5.0)
    back = cast(solids, one_ray((0, 0, -10), (0, 0, 1)), np.repeat(EVERYWHERE, 3, axis=0))
    assert (int(back.solid[0]), float(back.distance[0])) == (0, 9.0)


@pytest.mark.parametrize("camera", CAMERAS, ids=lambda camera: f"Cam{camera.number}")
def test_rectangles_lose_no_pixel(camera):
    """Trying each solid only where it projects to finds what trying it everywhere finds."""
    rng = np.random.default_rng(camera.number)
    builder = Builder()
    add_person(builder, sample_person(1, 8), Pose(True, 0.9, rng.uniform(0, 6.28), umbrella_open=True))
    solids, view, shape = builder.pack(), draw_viewpoint(rng, camera), (48, 24)
    box = frame(view, solids, len(solids), 2.0, (0.1, 0.1), (0, 0))
    rays = camera_rays(view, box, shape, 0.3)
    whole = np.tile([0, shape[1], 0, shape[0]], (len(solids), 1))
    fast, slow = cast(solids, rays, pixel_bounds(view, solids, box, shape)), cast(solids, rays, whole)
    assert (slow.solid >= 0).mean() > 0.1
    np.testing.assert_array_equal(fast.distance, slow.distance)


def test_local_coordinates_follow_the_shared_frame():
    """A solid painted in another's frame has its coordinates: stripes run on from belly to chest."""

    def add(builder, gray):
        first = builder.cone((0, 0, 0), (0, 0, 1), (1, 1), gray)
        builder.cone((0, 0, 1), (0, 0, 2), (1, 1), gray, zone=TORSO, frame_of=first)

    solids, rays = build(add), one_ray((5, 0, 1.5), (-1, 0, 0))
    points = surface(solids, rays, cast(solids, rays, np.repeat(EVERYWHERE, 2, axis=0)))
    np.testing.assert_allclose(points.local[:, 0], (1, 0, 1.5), atol=1e-5)
    assert solids.zone[points.solid[0]] == TORSO
