"""The world `gap` of AG-Synth: who lives there, from where they are seen, its labels and its pixels."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from agreid_plugin.data.datasets import load
from agreid_plugin.data.pixels import PHOTOGRAPHS, PixelStatistics, measure_picture
from agreid_plugin.synth import make_agsynth
from agreid_plugin.synth.captions import FEWEST, MOST
from agreid_plugin.synth.gap_people import CIRCLE_SIZE, sample_person
from agreid_plugin.synth.make import render_frame
from agreid_plugin.synth.people import Person
from agreid_plugin.synth.plan import SHOT, Frame, plan, random_stream
from agreid_plugin.synth.vocabulary import ATTRIBUTES
from agreid_plugin.synth.worlds import WORLDS

GAP, EASY = WORLDS["gap"], WORLDS["easy"]
SMALL = {"ids": 4, "images_per_id": 8, "size": (32, 16), "progress": False}
PEOPLE = {pid: sample_person(3, pid) for pid in range(4, 404)}
PINNED = Path(__file__).parents[1] / "snapshots" / "agsynth_easy.png"
"""Six pictures of the world `easy`, one below the other, from before there was another."""


def digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_easy_is_what_it_was():
    frames = [Frame(pid, pid, camera, pid % 2 == 0, "train") for pid, camera in enumerate((1, 3, 5, 6, 10, 13), 1)]
    now = np.concatenate([render_frame(EASY, 0, frame, (64, 32))[1].image for frame in frames]).astype(int)
    with Image.open(PINNED) as image:
        before = np.asarray(image, dtype=int)
    assert np.abs(now - before).max() <= 3  # the last bit of a sine differs between processors


def test_same_seed_same_bytes_whatever_the_workers(tmp_path):
    one, two = (make_agsynth(tmp_path / str(n), world="gap", workers=n, **SMALL) for n in (1, 2))
    assert digest(one) == digest(two)
    for other in ({"world": "gap", "seed": 1}, {"world": "easy"}):
        made = digest(make_agsynth(tmp_path / str(other), workers=1, **other, **SMALL))
        assert not set(made.values()) & set(digest(one).values())


def test_labels_are_those_of_the_people(tmp_path):
    folder = make_agsynth(tmp_path, world="gap", layout="csv", workers=1, **SMALL)
    with (folder / "images.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 32
    for row in rows:
        worn = sample_person(0, int(row["pid"])).attributes
        assert {name: row[name] for name in worn} == worn
        assert all(FEWEST <= len(row[f"caption {n}"].split()) <= MOST for n in (1, 2))
    make_agsynth(tmp_path, world="gap", workers=1, **SMALL)
    views = Counter((record.split, record.view) for record in load("CARGO", tmp_path).records)
    assert views == Counter((frame.split, int(frame.camera > 5)) for frame in plan(0, 4, 8))


def test_platforms_are_those_of_easy():
    assert [(c.number, c.platform) for c in GAP.cameras] == [(c.number, c.platform) for c in EASY.cameras]


def test_drones_are_high_with_a_few_oblique_ones_and_cameras_low():
    shots = [GAP.draw_shot(random_stream(1, SHOT, key), camera, False) for camera in GAP.cameras for key in range(60)]
    high = np.array([shot.view.pitch for shot in shots if shot.camera.aerial])
    assert 30 <= high.min() < 45 < 80 < high.max() <= 85
    assert 0.05 < (high < 45).mean() < 0.2
    assert max(shot.view.position[2] for shot in shots if not shot.camera.aerial) < 3
    assert max(shot.view.pitch for shot in shots if not shot.camera.aerial) < 25


def test_circles_share_one_garment_and_differ_in_the_other():
    """Of the pairs in a circle half wear the same, to the shade, above the waist or below it, and hardly any both."""
    circles = defaultdict(list)
    for pid, person in PEOPLE.items():
        circles[pid // CIRCLE_SIZE].append(person)
    for shared, other, parity in (("upper", "lower", 1), ("lower", "upper", 0)):
        pairs = [pair for circle, people in circles.items() if circle % 2 == parity for pair in combinations(people, 2)]
        same = np.array([[worn_alike(part, *pair) for part in (shared, other)] for pair in pairs]).mean(axis=0)
        assert 0.35 < same[0] < 0.65
        assert same[1] == 0


def worn_alike(part: str, one: Person, two: Person) -> bool:
    return one.attributes[part] == two.attributes[part] and one.colors[part] == two.colors[part]


def test_clothes_are_ordinary_and_go_together():
    uppers = Counter(person.attributes["upper"] for person in PEOPLE.values())
    colors = Counter(person.attributes["upper color"] for person in PEOPLE.values())
    assert uppers["t-shirt"] > 0.35 * len(PEOPLE)
    assert sum(colors[name] for name in ("black", "gray", "white")) > 0.55 * len(PEOPLE)
    for person in PEOPLE.values():
        worn = person.attributes
        assert list(worn) == list(ATTRIBUTES)
        assert all(value in ATTRIBUTES[name] for name, value in worn.items())
        assert (worn["upper"] == "dress") == (worn["lower"] == "dress")
        assert (worn["bag"] == "none") == (worn["bag color"] == "none") == ("bag" not in person.colors)


def test_ground_pictures_have_the_statistics_of_photographs():
    frames = [frame for frame in plan(0, 24, 12) if frame.camera > 5]
    pictures = [Image.fromarray(render_frame(GAP, 0, frame, (128, 64))[1].image) for frame in frames]
    found = PixelStatistics.average([measure_picture(picture) for picture in pictures])
    for name in ("luminance", "contrast", "saturation", "torso_saturation", "border_contrast"):
        assert getattr(found, name) == pytest.approx(getattr(PHOTOGRAPHS, name), rel=0.2), name


def test_drones_see_little_and_gray():
    """From the air a person has a few hundred pixels, and the picture less contrast than from the ground."""
    pixels, contrast = defaultdict(list), defaultdict(list)
    for frame in plan(0, 12, 12):
        picture = render_frame(GAP, 0, frame, (128, 64))[1]
        aerial = frame.camera <= 5
        pixels[aerial].append(sum(count for part, count in picture.seen.items() if ":" not in part))
        contrast[aerial].append(measure_picture(Image.fromarray(picture.image)).contrast)
    assert np.median(pixels[True]) < 700 < 1500 < np.median(pixels[False])
    assert np.mean(contrast[True]) < 0.85 * np.mean(contrast[False])
