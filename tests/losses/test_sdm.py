import math

import pytest
import torch
import torch.nn.functional as F

from agreid_plugin.errors import InputError
from agreid_plugin.losses import SDMLoss


def drawn(seed: int, pairs: int = 6, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(pairs, 5, generator=generator, dtype=dtype) for _ in range(2)]


def slow_sdm(images, texts, pids, scale: float, eps: float) -> float:
    """Both directions, row by row."""
    total = 0.0
    for rows, columns in ((images, texts), (texts, images)):
        for row, pid in zip(rows, pids, strict=True):
            logits = [scale * F.cosine_similarity(row, column, dim=0).item() for column in columns]
            top = sum(math.exp(value) for value in logits)
            same = [float(pid == other) for other in pids]
            for value, match in zip(logits, same, strict=True):
                share = math.exp(value) / top
                total += share * (math.log(share) - math.log(match / sum(same) + eps)) / len(rows)
    return total


def test_two_pairs_by_hand():
    # Cosines are the unit matrix, scale 1: every row has p = e / (1 + e) for its own and 1 - p for the other.
    images = torch.eye(2, dtype=torch.float64)
    p = math.e / (1 + math.e)
    row = p * (math.log(p) - math.log(1 + 1e-8)) + (1 - p) * (math.log(1 - p) - math.log(1e-8))
    found = SDMLoss(temperature=1.0)(images, images, torch.tensor([0, 1]))
    assert found.item() == pytest.approx(2 * row)


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_slow_loop(seed):
    images, texts = drawn(seed)
    pids = [0, 0, 1, 2, 2, 2]
    found = SDMLoss()(images, texts, torch.tensor(pids))
    assert found.item() == pytest.approx(slow_sdm(images, texts, pids, 50, 1e-8))


def test_weight_and_scale():
    images, texts = drawn(0)
    pids = torch.arange(6)
    assert SDMLoss(0.5)(images, texts, pids, 10.0).item() == pytest.approx(
        0.5 * slow_sdm(images, texts, list(range(6)), 10, 1e-8)
    )


def test_gradient():
    images, texts = (features.requires_grad_() for features in drawn(0))
    pids = torch.tensor([0, 0, 1, 2, 2, 2])
    assert torch.autograd.gradcheck(lambda a, b: SDMLoss(temperature=0.5)(a, b, pids), (images, texts))


def test_a_batch_that_is_as_it_should_be_costs_next_to_nothing():
    images = torch.eye(4)
    assert SDMLoss()(images, images, torch.arange(4)).item() == pytest.approx(0, abs=1e-6)


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="smoothing=0 should be"):
        SDMLoss(smoothing=0)
    with pytest.raises(InputError, match=r"texts=\(2, 3\) should have the shape of images: \(2, 4\)"):
        SDMLoss()(torch.zeros(2, 4), torch.zeros(2, 3), torch.arange(2))
