import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from agreid_plugin.errors import InputError
from agreid_plugin.losses import ViewLoss
from agreid_plugin.types import UNKNOWN, View

LOGITS = torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.9, 0.1]]).log()
VIEWS = torch.tensor([View.AERIAL, View.GROUND, UNKNOWN])


def random_batch(seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(10, 2, generator=generator, dtype=dtype)
    return logits, torch.randint(UNKNOWN, 2, (10,), generator=generator)


def slow_view(logits, views) -> float:
    """Eq. 16 over the images of known view."""
    losses = []
    for row, view in zip(logits.tolist(), views.tolist(), strict=True):
        if view != UNKNOWN:
            losses.append(-math.log(math.exp(row[view]) / sum(math.exp(logit) for logit in row)))
    return sum(losses) / max(len(losses), 1)


@pytest.mark.parametrize("weight", [1.0, 0.001])
def test_a_batch_by_hand(weight):  # Eq. 16: -log 0.8 = 0.223144 and -log 0.6 = 0.510826, the unknown view left out
    assert ViewLoss(weight)(LOGITS, VIEWS).item() == pytest.approx(weight * 0.733970 / 2, rel=1e-5)


def test_columns_are_in_the_order_of_the_views():
    logits = torch.tensor([[9.0, 0.0]])
    assert ViewLoss()(logits, torch.tensor([View.AERIAL])) < 0.001
    assert ViewLoss()(logits, torch.tensor([View.GROUND])) > 8


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_slow_loop(seed):
    batch = random_batch(seed)
    assert ViewLoss()(*batch).item() == pytest.approx(slow_view(*batch), rel=1e-5)


def test_gradient():
    logits, views = random_batch(0, torch.float64)
    assert torch.autograd.gradcheck(lambda x: ViewLoss()(x, views), logits.requires_grad_())


@pytest.mark.parametrize("images", [0, 3])
def test_no_known_view_is_a_zero_that_keeps_the_graph(images):
    logits = torch.rand(images, 2, requires_grad=True)
    loss = ViewLoss()(logits, torch.full((images,), UNKNOWN))
    assert loss.item() == 0
    loss.backward()
    assert torch.equal(logits.grad, torch.zeros(images, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float32_inside_autocast(dtype):
    logits, views = random_batch(1)
    half = logits.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = ViewLoss()(half, views)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(slow_view(half.detach(), views), rel=1e-5)
    loss.backward()
    assert half.grad.isfinite().all()


def test_no_value_is_read_back_from_the_device():
    with FakeTensorMode():  # tensors without values: reading one raises
        loss = ViewLoss()(torch.rand(6, 2), torch.randint(UNKNOWN, 2, (6,)))
    assert loss.shape == ()


@pytest.mark.parametrize("weight", [-1, math.inf, "much"])
def test_a_bad_weight_is_named(weight):
    with pytest.raises(InputError, match=rf"^weight={weight!r} [^\n]*$"):
        ViewLoss(weight)


def test_bad_batches_are_named():
    for batch, words in [
        ((torch.rand(3), VIEWS), r"^logits=\(3,\) [^\n]*$"),
        ((torch.rand(3, 4), VIEWS), r"^logits=\(3, 4\) [^\n]* 2 views$"),
        ((LOGITS, VIEWS[:1]), r"^views=\(1,\) [^\n]*: 3$"),
    ]:
        with pytest.raises(InputError, match=words):
            ViewLoss()(*batch)
