"""The view-gap card: what it counts, on features set by hand and on a tiny AG-Synth; its pixels by hand."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from agreid_plugin.data.datasets import load
from agreid_plugin.data.pixels import measure_picture
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import view_gap
from agreid_plugin.evaluation.view_gap import count_confusions, measure_view_gap
from agreid_plugin.synth import make_agsynth
from agreid_plugin.types import View


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    root = tmp_path_factory.mktemp("gap")
    make_agsynth(root, ids=12, images_per_id=4, size=(64, 32), world="gap", workers=1, progress=False)
    return load("CARGO", root)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(view_gap, "EPOCHS", 1)
    return tmp_path / "agreid_plugin"


def test_confusions_by_hand():
    """Two people with a picture a view, whose features are angles."""
    angles = {(1, View.AERIAL): 0, (1, View.GROUND): 90, (2, View.AERIAL): 10, (2, View.GROUND): 60}
    turns = np.radians(list(angles.values()))
    features = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    pids, views = np.array(list(angles)).T
    found = count_confusions(features, pids, views)
    assert found["same_view"] == pytest.approx(np.cos(np.radians((10, 30))).mean())
    assert found["cross_view"] == pytest.approx(np.cos(np.radians((60, 80))).mean())
    assert found["same_person"] == pytest.approx(np.cos(np.radians((90, 50))).mean())
    # Every query finds the other person in its own view. Across views, person 1 from above finds 2 from the ground,
    # 1 from the ground finds 2 from above, 2 finds itself both ways.
    assert (found["errors"], found["same_view_errors"], found["rank1_both"]) == (4, 1.0, 0.0)
    assert found["rank1_across"] == 50.0
    assert np.isnan(found["rank1_within"])  # nobody has a second picture in a view


def test_card_of_a_tiny_set_is_the_same_again(dataset, cache):
    card = measure_view_gap(dataset, progress=False)
    (kept,) = cache.iterdir()
    assert (card.train_people, card.test_people) == (6, 6)
    assert 0 <= card.same_view_errors <= 1
    assert set(card.pixels) == {"aerial", "ground"}
    text = "\n".join(card.lines())
    assert "photographs" in text
    assert f"{card.same_view_errors:.0%} of those {card.errors} errors are strangers in the same view" in text
    kept.write_text("{")  # damaged: measured again
    assert measure_view_gap(dataset, progress=False) == card
    kept.write_text(json.dumps(dataclasses.asdict(card) | {"errors": 7}))
    assert measure_view_gap(dataset, progress=False).errors == 7  # not measured again


def test_one_view_has_no_gap(dataset, cache):
    ground = dataclasses.replace(dataset, records=[r for r in dataset.records if r.view == View.GROUND])
    with pytest.raises(InputError, match="CARGO has no view gap to measure: 0 people of train are seen from the air"):
        measure_view_gap(ground, progress=False)
    assert not cache.exists()


def test_pixels_by_hand():
    """The left half red, the right half black: a red of luminance 0.299 is wholly saturated, black not at all."""
    pixels = np.zeros((128, 64, 3), dtype=np.uint8)
    pixels[:, :32, 0] = 255
    found = measure_picture(Image.fromarray(pixels))
    assert found.luminance == pytest.approx(0.1495, abs=1e-4)
    assert found.contrast == pytest.approx(0.1495, abs=1e-4)
    assert found.saturation == pytest.approx(0.5)
    assert found.dark_torsos == 1.0
    assert found.border_contrast == pytest.approx(0.1495, abs=1e-4)
