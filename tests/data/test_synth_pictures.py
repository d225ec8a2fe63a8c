"""AG-Synth's cameras and pictures: geometry by hand, and nothing in a picture that tells who it is but the person."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from agreid_plugin.synth.background import add_person
from agreid_plugin.synth.cameras import CAMERAS, Box, camera, draw_viewpoint, frame, place
from agreid_plugin.synth.light import draw_light, shadow_map
from agreid_plugin.synth.people import sample_person
from agreid_plugin.synth.plan import SHOT, random_stream
from agreid_plugin.synth.render import draw_shot, render
from agreid_plugin.synth.solids import Builder, Material

SIZE = (64, 32)


def shot_of(number: int, key: int = 0, night: bool = False):
    return draw_shot(random_stream(5, SHOT, key), camera(number), night)


def test_camera_looks_down_by_hand():
    """At 10.9 m and 45 degrees the camera is 10 m away and 10 m above the middle of the body at 0.9 m."""
    view = place(10.9, np.pi / 4, 1000.0)
    np.testing.assert_allclose(view.position, (-10, 0, 10.9))
    assert view.distance == pytest.approx(200**0.5)
    assert view.pitch == pytest.approx(45)


@pytest.mark.parametrize(
    ("point", "image"),
    [
        ((0, 0, 0.9), (0, 0)),
        ((0, -1, 0.9), (1 / 200**0.5, 0)),  # looking along +x, -y is right; depth is 10 sqrt(2)
        ((0, 0, 1.9), (0, -(0.5**0.5) / (200**0.5 - 0.5**0.5))),  # up in the image, and nearer
    ],
)
def test_projection_by_hand(point, image):
    np.testing.assert_allclose(place(10.9, np.pi / 4, 1000.0).project(np.array(point)), image, atol=1e-9)


def test_optical_axis_beside_the_person_moves_it_the_other_way():
    x, y = place(10.9, np.pi / 4, 1000.0, aside=(0.1, 0.0)).project(np.array((0, 0, 0.9)))
    assert np.hypot(x, y) == pytest.approx(0.1)
    assert x < -0.099  # the rest is roll: people at the side of a frame lean


def test_thirteen_cameras_in_their_ranges():
    assert [c.number for c in CAMERAS] == list(range(1, 14))
    assert Counter(c.platform for c in CAMERAS) == {"uav": 5, "wearable": 4, "cctv": 4}
    rng = np.random.default_rng(0)
    for c in CAMERAS:
        pitches = [draw_viewpoint(rng, c).pitch for _ in range(50)]
        if c.aerial:
            assert 30 <= min(pitches) < max(pitches) <= 85
            assert c.pitch[0] <= min(pitches) < max(pitches) <= c.pitch[1]
        else:
            assert c.altitude[1] < 3.5
            assert 0 < min(pitches) < max(pitches) < 25


def test_crop_holds_the_person():
    """The box reaches the shadowless body on all sides, and is at most a little stretched to the picture's shape."""
    for number in (1, 5, 9):
        shot, builder = shot_of(number), Builder()
        add_person(builder, sample_person(5, 1), shot.pose)
        solids = builder.pack()
        box = frame(shot.view, solids, len(solids), 2.0, (0.0, 0.0), (0.0, 0.0))
        spots = shot.view.project(solids.middle)
        inside = (spots - (box.left, box.top)) / (box.width, box.height)
        assert inside.min() > 0
        assert inside.max() < 1
        assert 2.0 / 1.13 < box.height / box.width < 2.0 * 1.13


def test_higher_cameras_give_fewer_pixels():
    def body(number: int) -> float:
        pictures = [render(sample_person(5, 1), shot_of(number, key), (256, 128)) for key in range(3)]
        return sum(n for picture in pictures for part, n in picture.seen.items() if ":" not in part)

    ground, low, high = body(6), body(1), body(5)
    assert ground > 1.5 * low
    assert low > 1.5 * high


def test_shadow_falls_away_from_the_light():
    """A pole of 1 m under a light at 45 degrees from +x shades the ground up to 1 m toward -x."""
    light = replace(
        draw_light(np.random.default_rng(0), False, False), direction=np.array((0.5**0.5, 0, 0.5**0.5)), softness=0.0
    )
    builder = Builder()
    builder.cone((0, 0, 0), (0, 0, 1), (0.1, 0.1), builder.material(Material("", (0.2, 0.2, 0.2))))
    shadows = shadow_map(light, builder.pack())
    ground = np.array([(-0.5, 0, 0), (0.5, 0, 0), (-1.3, 0, 0), (-0.5, 0.4, 0)], dtype=np.float32).T
    shade = shadows.on_ground(ground)
    assert shade[0] > 0.9
    np.testing.assert_allclose(shade[1:], 0, atol=0.05)
    pole = np.array([(0.1, 0, 0.5), (-0.1, 0, 0.5)], dtype=np.float32).T
    np.testing.assert_allclose(shadows.on_solids(pole), (0, 1), atol=0.05)


def test_same_shot_is_the_same_picture():
    one, two = (render(sample_person(5, 2), shot_of(3), SIZE) for _ in range(2))
    np.testing.assert_array_equal(one.image, two.image)
    assert one.seen == two.seen


def test_background_knows_nothing_of_the_person():
    """Two people in one shot have the same surroundings; one person in two shots has not."""
    for number in (2, 12):
        shot = shot_of(number)
        near = render(sample_person(5, 1), shot, SIZE).box
        wide = Box(near.left - near.width, near.top - near.height / 2, near.width * 3, near.height * 2)
        first, second = (render(sample_person(5, pid), shot, SIZE, wide).image.astype(int) for pid in (1, 2))
        other = render(sample_person(5, 1), shot_of(number, key=1), SIZE, wide).image.astype(int)
        same, changed = (np.abs(first - image).max(axis=2) <= 8 for image in (second, other))
        assert same.mean() > 0.6
        assert changed.mean() < 0.5 * same.mean()
        assert np.abs(first - second).max() > 40  # the people do differ


def test_people_differ_and_stay_themselves():
    """Colors of the parts come from the person, whatever the shot."""
    red = sample_person(5, 1)
    painted = replace(red, colors={**red.colors, "upper": (0.8, 0.0, 0.0), "upper accent": (0.8, 0.0, 0.0)})
    for number in (1, 4, 7, 13):
        plain, vivid = (render(person, shot_of(number), SIZE).image.astype(int) for person in (red, painted))
        redness = (vivid - plain)[..., 0] - (vivid - plain)[..., 2]
        assert redness.max() > 40


def test_night_is_darker():
    day, night = (
        np.mean([render(sample_person(5, 3), shot_of(6, key, dark), SIZE).image.mean() for key in range(6)])
        for dark in (False, True)
    )
    assert night < 0.8 * day


def test_seen_counts_what_shows():
    """What hangs on the back is seen from behind alone, a face from the front alone."""
    person = next(p for p in (sample_person(5, pid) for pid in range(1, 200)) if p.attributes["bag"] == "backpack")
    shot = shot_of(6)
    shot = replace(shot, around=replace(shot.around, things=(), passers=()))
    poses = {name: replace(shot.pose, yaw=yaw, head=0.0) for name, yaw in (("back", 0.0), ("front", np.pi))}
    seen = {name: render(person, replace(shot, pose=pose), (256, 128)).seen for name, pose in poses.items()}
    assert [poses[name].facing for name in ("back", "front")] == ["Back", "Front"]
    assert seen["back"]["bag"] > 4 * seen["front"].get("bag", 0)
    assert seen["front"]["face: face"] > 0 == seen["back"].get("face: face", 0)
