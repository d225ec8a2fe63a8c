import pytest
import torch

from agreid_plugin.data.collate import Sample, collate
from agreid_plugin.types import UNKNOWN, View


def sample(pid: int, **values) -> Sample:
    return Sample(image=torch.full((3, 2, 2), float(pid)), pid=pid, path=f"{pid}.jpg", **values)


def test_every_field_reaches_the_batch():
    batch = collate(
        [
            sample(4, camera=2, view=View.GROUND, platform=2, attributes=(1, UNKNOWN), tokens=torch.tensor([7, 8])),
            sample(5, camera=3, attributes=(0, 2), tokens=torch.tensor([9, 0])),
        ]
    )
    assert batch.images.shape == (2, 3, 2, 2)
    assert batch.pids.tolist() == [4, 5]
    assert batch.cameras.tolist() == [2, 3]
    assert batch.views.tolist() == [1, -1]
    assert batch.platforms.tolist() == [2, -1]
    assert batch.attributes.tolist() == [[1, -1], [0, 2]]
    assert batch.tokens.tolist() == [[7, 8], [9, 0]]
    assert batch.paths == ("4.jpg", "5.jpg")


def test_what_no_sample_has_is_none():
    batch = collate([sample(1), sample(2)])
    assert batch.attributes is None
    assert batch.tokens is None


def test_half_given_fields_are_an_error_with_the_path():
    with pytest.raises(ValueError, match=r"2\.jpg has no attributes"):
        collate([sample(1, attributes=(0,)), sample(2)])
