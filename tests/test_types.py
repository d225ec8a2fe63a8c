import pytest
import torch

from agreid_plugin.errors import InputError, did_you_mean, unknown
from agreid_plugin.types import PLATFORMS, UNKNOWN, Batch, Record, View, platform_label


def batch() -> Batch:
    return Batch(
        images=torch.zeros(2, 3, 4, 4),
        pids=torch.tensor([7, 8]),
        views=torch.tensor([View.AERIAL, UNKNOWN]),
        paths=("a.jpg", "b.jpg"),
    )


def test_views_have_one_encoding():
    assert (int(View.AERIAL), int(View.GROUND)) == (0, 1)


def test_platforms_have_one_encoding():
    assert PLATFORMS == ("uav", "cctv", "wearable")
    assert [platform_label(word) for word in ("uav", "CCTV", "wearable", "", "bicycle")] == [0, 1, 2, UNKNOWN, UNKNOWN]


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


def test_nearest_name_is_suggested_whatever_its_case():
    assert did_you_mean("cargo", ["CARGO", "LAGPeR"]) == " (did you mean CARGO?)"
    assert did_you_mean("Marekt1501", ["Market1501"]) == " (did you mean Market1501?)"
    assert did_you_mean("zzz", ["CARGO"]) == ""


def test_unknown_lists_what_exists():
    error = unknown("dataset", "CARG", ["LAGPeR", "CARGO"])
    assert isinstance(error, InputError)
    assert str(error) == "dataset 'CARG' unknown (did you mean CARGO?); known: CARGO, LAGPeR"


def test_unknown_does_not_list_hundreds():
    message = str(unknown("dataset", "x", [f"name{number:03d}" for number in range(90)]))
    assert message.endswith("name019, ... (90 in all)")
