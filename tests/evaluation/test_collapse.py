import numpy as np
import pytest
import torch

from agreid_plugin.evaluation.validation import bound_cosines, describe_collapse


def test_the_bound_holds_for_every_pair():
    rng = np.random.default_rng(0)
    for spread in (1e-4, 1e-2, 0.1, 1.0):
        features = np.ones((20, 6)) + spread * rng.normal(size=(20, 6))
        directions = features / np.linalg.norm(features, axis=1, keepdims=True)
        assert bound_cosines(features) <= (directions @ directions.T).min() + 1e-12


def test_two_features_at_an_angle():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # 45 degrees each to their mean, 90 between them
    assert bound_cosines(features) == pytest.approx(0.0, abs=1e-7)
    assert bound_cosines(-features) == pytest.approx(0.0, abs=1e-7)
    assert bound_cosines(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])) == -1.0


@pytest.mark.parametrize("features", [torch.ones(4, 3), torch.zeros(4, 3), 7 * torch.ones(9, 2, dtype=torch.float16)])
def test_equal_features_have_collapsed(features):
    assert bound_cosines(features) == pytest.approx(1.0)
    assert (
        describe_collapse(features)
        == f"the features of {len(features)} different images are all alike (no cosine below 1.000000)"
    )


def test_length_does_not_tell_images_apart():
    assert describe_collapse(torch.ones(5, 3) * torch.arange(1, 6)[:, None])


def test_one_that_differs_is_enough():
    features = torch.ones(50, 3)
    features[7, 0] = 1.05  # its cosine with the others is 0.9995
    assert not describe_collapse(features)


def test_few_images_may_be_alike():
    assert not describe_collapse(torch.ones(3, 8))
