import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from agreid_plugin.errors import InputError
from agreid_plugin.losses import SupConLoss

# Dot products of two images of person 5 and one of person 6 with two texts, of 5 and of 6.
IMAGES = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
TEXTS = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
PIDS, TEXT_PIDS = torch.tensor([5, 5, 6]), torch.tensor([5, 6])


def random_batch(seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images, texts = (torch.randn(7, 4, generator=generator, dtype=dtype) for _ in range(2))
    return images, texts, torch.randint(0, 3, (7,), generator=generator)


def slow_contrast(images, texts, pids, text_pids, temperature=1.0) -> float:
    """Both directions, row by row and partner by partner."""
    total = 0.0
    products = images @ texts.T / temperature
    for logits, own, others in ((products, pids, text_pids), (products.T, text_pids, pids)):
        rows = []
        for row, pid in zip(logits.tolist(), own.tolist(), strict=True):
            everyone = math.log(sum(math.exp(value) for value in row))
            costs = [everyone - value for value, other in zip(row, others.tolist(), strict=True) if other == pid]
            rows += [sum(costs) / len(costs)] if costs else []
        total += sum(rows) / max(len(rows), 1)
    return total


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_batch_by_hand(weight):
    # Images: log(e + 1) - 1 = 0.313262, log(1 + e^2) - 0 = 2.126928, log(2 e) - 1 = 0.693147; mean 1.044446.
    # Text of 5: log(2 e + 1) = 1.861995 less 1 and less 0 for its two images, mean 1.361995; text of 6:
    # log(1 + e^2 + e) - 1 = 1.407606; mean 1.384800.
    loss = SupConLoss(weight)(IMAGES, TEXTS, PIDS, TEXT_PIDS)
    assert loss.item() == pytest.approx(weight * (1.044446 + 1.384800), rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_slow_loop(seed, temperature):
    images, texts, pids = random_batch(seed)
    loss = SupConLoss(temperature=temperature)(images, texts, pids)
    assert loss.item() == pytest.approx(slow_contrast(images, texts, pids, pids, temperature), rel=1e-4)


def test_whoever_has_no_partner_takes_no_part():
    images, texts, pids = random_batch(3)
    text_pids = torch.where(pids == 2, 9, pids)
    loss = SupConLoss()(images, texts, pids, text_pids)
    assert loss.item() == pytest.approx(slow_contrast(images, texts, pids, text_pids), rel=1e-4)


def test_gradient_reaches_images_and_texts():
    images, texts, pids = random_batch(0, torch.float64)
    inputs = (images.requires_grad_(), texts.requires_grad_())
    assert torch.autograd.gradcheck(lambda i, t: SupConLoss()(i, t, pids), inputs)


@pytest.mark.parametrize("number", [0, 3])
def test_no_pair_is_a_zero_that_keeps_the_graph(number):
    images = torch.rand(number, 4, requires_grad=True)
    loss = SupConLoss()(images, torch.rand(number, 4), torch.zeros(number).long(), torch.ones(number).long())
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(images.grad, torch.zeros(number, 4))


def test_float32_inside_autocast():
    images, texts, pids = random_batch(1)
    half = images.bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = SupConLoss()(half, texts, pids)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(slow_contrast(half.detach().float(), texts, pids, pids), rel=1e-4)
    loss.backward()
    assert half.grad.dtype == torch.bfloat16


def test_no_value_is_read_back_from_the_device():
    with FakeTensorMode():  # tensors without values: reading one raises
        loss = SupConLoss()(torch.rand(6, 4), torch.rand(6, 4), torch.randint(0, 3, (6,)))
    assert loss.shape == ()


@pytest.mark.parametrize(("name", "value"), [("weight", -1), ("temperature", 0)])
def test_bad_arguments_are_named(name, value):
    with pytest.raises(InputError, match=rf"^{name}={value!r} [^\n]*$"):
        SupConLoss(**{name: value})


def test_bad_batches_are_named():
    for batch, words in [
        ((IMAGES[0], TEXTS, PIDS, TEXT_PIDS), r"^images=\(2,\) [^\n]*$"),
        ((IMAGES, TEXTS[:, :1], PIDS, TEXT_PIDS), r"^texts=\(2, 1\) should be texts by 2[^\n]*$"),
        ((IMAGES, TEXTS, PIDS[:1], TEXT_PIDS), r"^pids=\(1,\) [^\n]*: 3$"),
        ((IMAGES, TEXTS, PIDS), r"^text_pids=\(3,\) [^\n]*: 2$"),
    ]:
        with pytest.raises(InputError, match=words):
            SupConLoss()(*batch)
