import pytest
import torch

from agreid_plugin.errors import InputError
from agreid_plugin.types import (
    PLATFORMS,
    UNKNOWN,
    Batch,
    Record,
    View,
    platform_label,
    view_from_label,
    view_label,
    view_word,
)


def batch() -> Batch:
    return Batch(
        images=torch.zeros(2, 3, 4, 4),
        pids=torch.tensor([7, 8]),
        views=torch.tensor([View.AERIAL, UNKNOWN]),
        paths=("a.jpg", "b.jpg"),
    )


def test_views_have_one_encoding():
    assert (int(View.AERIAL), int(View.GROUND)) == (0, 1)


def test_views_have_words_and_labels_and_may_be_unknown():
    assert [view_word(view) for view in (View.AERIAL, View.GROUND, None)] == ["aerial", "ground", ""]
    assert [view_label(view) for view in (View.AERIAL, View.GROUND, None)] == [0, 1, UNKNOWN]
    assert [view_from_label(label) for label in (0, 1, UNKNOWN)] == [View.AERIAL, View.GROUND, None]


def test_platforms_have_one_encoding():
    assert PLATFORMS == ("uav", "cctv", "wearable")
    assert [platform_label(word) for word in ("uav", "CCTV", "wearable", "", "bicycle")] == [0, 1, 2, UNKNOWN, UNKNOWN]


def test_views_of_a_batch_may_be_words():
    images = torch.zeros(5, 3, 4, 4, device="meta")
    assert Batch(views=["aerial", "Ground", View.GROUND, -1, None]).views.tolist() == [0, 1, 1, -1, -1]
    assert Batch(images=images, views=("aerial",) * 5).views.device.type == "meta"
    given = torch.tensor([1, 0])
    assert Batch(views=given).views is given
    assert batch().with_(views=["ground", "aerial"]).views.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("views", "words"),
    [
        (["aerial", "areal"], r"view 'areal' unknown \(did you mean aerial\?\); known: aerial, ground"),
        ([0, 2], r"view 2 should be 0 \(aerial\), 1 \(ground\), -1 \(unknown\), or a word"),
        ("aerial", "views='aerial' should be a list: one view for each image"),
        (View.GROUND, "should be a list"),
    ],
)
def test_wrong_views_are_one_line(views, words):
    with pytest.raises(InputError, match=words):
        Batch(views=views)


def test_record_is_frozen():
    record = Record("a.jpg", 3)
    with pytest.raises(AttributeError):
        record.pid = 4
    assert record.view is None
    assert record.camera == UNKNOWN


def test_only_hides_every_other_field():
    seen = batch().only({"images", "views"})
    assert set(seen.present()) == {"images", "views"}
    assert seen.pids is None
    assert seen.paths is None


def test_batch_length_and_replacement():
    assert len(batch()) == 2
    assert len(Batch()) == 0
    changed = batch().with_(pids=torch.tensor([1, 2]))
    assert changed.pids.tolist() == [1, 2]
    assert batch().pids.tolist() == [7, 8]


def test_to_moves_tensors_and_keeps_paths():
    moved = batch().to("meta")
    assert moved.images.device.type == "meta"
    assert moved.paths == ("a.jpg", "b.jpg")
