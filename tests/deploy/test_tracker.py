"""The appearance model of a tracker, called as BoxMOT's trackers call theirs."""

from pathlib import Path

import numpy as np
import pytest
from small_exports import make_model

from agreid_plugin.cli import main
from agreid_plugin.deploy import ExportedModel, TrackerReID
from agreid_plugin.errors import InputError


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tracker")
    config, weights = make_model(folder, "ViSA")
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
    np.testing.assert_allclose(reid.get_features(dets, frame), wanted, atol=1e-5)
    np.testing.assert_allclose(reid.get_features(dets[0, :4], frame), wanted[:1], atol=1e-5)
    assert np.abs(TrackerReID(path, "ground").get_features(dets[:, :4], frame) - wanted).max() > 1e-4


@pytest.mark.parametrize("empty", [np.empty((0, 4)), np.array([]), np.empty((0, 6)), []])
def test_no_box_is_no_feature(reid, frame, empty):
    assert reid.get_features(empty, frame).shape == (0, reid.model.about.width)


def test_boxes_are_cut_at_the_border(reid, frame):
    found = reid.get_features([[-20, -5, 30, 60], [60, 70, 500, 500]], frame)
    wanted = reid.get_features([[0, 0, 30, 60], [60, 70, 90, 120]], frame)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize(
    "box",
    [[10, 10, 10, 50], [50, 10, 20, 60], [200, 200, 300, 300], [np.nan, 0, 5, 5], [0, 0, np.inf, 5], [-9, -9, -1, -1]],
)
def test_a_box_of_nothing_counts_as_black(reid, frame, box):
    found = reid.get_features([box, [10, 20, 40, 100]], frame)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    black = reid.get_features([[0, 0, 9, 9]], np.zeros((9, 9, 3), np.uint8))
    np.testing.assert_allclose(found[:1], black, atol=1e-6)


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
    for boxes in (np.zeros((1, 5)), np.zeros((1, 3)), np.zeros((1, 1, 4))):
        with pytest.raises(InputError, match="left, top, right, bottom"):
            reid.get_features(boxes, frame)
    for wrong in (frame[..., 0], frame / 255, None):
        with pytest.raises(InputError, match="blue first"):
            reid.get_features([[0, 0, 5, 5]], wrong)
    with pytest.raises(InputError, match="view 'airial' unknown"):
        TrackerReID(path, view="airial")
