"""The appearance model of a tracker, called as BoxMOT's trackers call theirs."""

import re
from pathlib import Path

import numpy as np
import pytest
import small_mmengine
from small_exports import make_model

from agreid_plugin.cli import main
from agreid_plugin.deploy import ExportedModel, TrackerReID
from agreid_plugin.errors import InputError


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tracker")
    vit = {**small_mmengine.VIT, "width": 128}  # features of 256 values: of fewer, random ones are not far apart
    config, weights = make_model(folder, "ViSA", backbone={**small_mmengine.BACKBONES["ViSA"], "vit": vit})
    out = folder / "visa.onnx"
    assert main(["export", "--config", str(config), "--weights", str(weights), "--out", str(out), "--raw"]) == 0
    return out


@pytest.fixture(scope="module")
def reid(path) -> TrackerReID:
    return TrackerReID(path, view="aerial")


@pytest.fixture(scope="module")
def frame() -> np.ndarray:
    """A frame as OpenCV reads it: blue first."""
    return np.random.default_rng(0).integers(0, 256, (120, 90, 3), dtype=np.uint8)


def test_a_tracker_calls_it_with_slices_of_detections(reid, path, frame):
    dets = np.array([[10, 20, 40, 100, 0.9, 0], [5.4, 3.6, 30.2, 60.7, 0.8, 0]], dtype=np.float32)
    features = reid.get_features(dets[:, 0:4], frame)
    crops = [frame[20:100, 10:40], frame[4:61, 5:30]]
    wanted = ExportedModel(path)([crop[..., ::-1] for crop in crops], "aerial")
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, wanted, atol=1e-5)
    np.testing.assert_allclose(reid.get_features(dets[0, :4], frame), wanted[:1], atol=1e-5)
    assert np.abs(TrackerReID(path, "ground").get_features(dets[:, :4], frame) - wanted).max() > 1e-4


@pytest.mark.parametrize("empty", [np.empty((0, 4)), np.array([]), np.empty((0, 6)), []])
def test_no_box_is_no_feature(reid, frame, empty):
    assert reid.get_features(empty, frame).shape == (0, reid.model.metadata.width)


def test_boxes_are_cut_at_the_border(reid, frame):
    found = reid.get_features([[-20, -5, 30, 60], [60, 70, 500, 500]], frame)
    wanted = reid.get_features([[0, 0, 30, 60], [60, 70, 90, 120]], frame)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


NOWHERE = [[200, 200, 300, 300], [-9, -9, -1, -1], [10, 10, 10, 50], [20.1, 10, 20.3, 60], [0, 120, 90, 130]]


def test_boxes_without_a_pixel_match_nothing(reid, frame):
    people = [[10, 20, 40, 100], [5, 4, 30, 61]]
    shown = reid.get_features(people, frame)
    found = [reid.get_features([*NOWHERE, *people], frame) for _ in range(8)]
    for features in found:
        np.testing.assert_allclose(features[-2:], shown, atol=1e-5)
    nowhere = np.concatenate([features[:-2] for features in found])
    assert nowhere.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(nowhere, axis=1), 1, atol=1e-5)
    cosines = np.abs(nowhere @ np.concatenate([nowhere, shown]).T - np.eye(len(nowhere), len(nowhere) + 2))
    assert cosines.max() < 0.4  # more than six deviations of 1 / sqrt(256)


def test_a_video_gives_the_same_features_again(path, frame):
    first, again = (TrackerReID(path, view="aerial") for _ in range(2))
    for boxes in (NOWHERE, [[10, 20, 40, 100], NOWHERE[0]], []):
        np.testing.assert_array_equal(first.get_features(boxes, frame), again.get_features(boxes, frame))


@pytest.mark.parametrize(
    ("box", "words"),
    [
        ([np.nan, 0, 5, 5], "box 1 of 2, [nan, 0.0, 5.0, 5.0], is not finite"),
        ([0, 0, np.inf, 5], "box 1 of 2, [0.0, 0.0, inf, 5.0], is not finite"),
        ([50, 10, 20, 60], "box 1 of 2, [50.0, 10.0, 20.0, 60.0], is inverted: give left, top, right, bottom"),
        ([20, 60, 50, 10], "box 1 of 2, [20.0, 60.0, 50.0, 10.0], is inverted"),
    ],
)
def test_a_box_that_is_none_is_refused_by_its_row(reid, frame, box, words):
    with pytest.raises(InputError, match=re.escape(words)):
        reid.get_features([[10, 20, 40, 100], box], frame)


def test_nothing_given_is_changed(reid, frame):
    boxes = np.array([[-20.5, -5, 30, 60]])
    before = boxes.copy(), frame.copy()
    reid.get_features(boxes, frame)
    np.testing.assert_array_equal(boxes, before[0])
    np.testing.assert_array_equal(frame, before[1])


def test_it_is_warmed_up_as_trackers_do(reid, monkeypatch):
    seen, get_features = [], reid.get_features
    monkeypatch.setattr(reid, "get_features", lambda boxes, img: seen.append((boxes, img)) or get_features(boxes, img))
    reid.warmup(imgsz=[(200, 90, 3)])
    reid.warmup()
    assert [boxes.tolist() for boxes, _ in seen] == [[[0, 0, 90, 200]], [[0, 0, 128, 256]]]
    assert [img.shape for _, img in seen] == [(200, 90, 3), (256, 128, 3)]


def test_what_is_no_box_or_frame_is_refused(path, reid, frame):
    for boxes in (np.zeros((1, 5)), np.zeros((1, 6)), np.zeros((1, 3)), np.zeros((1, 1, 4))):
        with pytest.raises(InputError, match="left, top, right, bottom"):
            reid.get_features(boxes, frame)
    for wrong in (frame[..., 0], frame / 255, None):
        with pytest.raises(InputError, match="blue first"):
            reid.get_features([[0, 0, 5, 5]], wrong)
    with pytest.raises(InputError, match="view 'airial' unknown"):
        TrackerReID(path, view="airial")
