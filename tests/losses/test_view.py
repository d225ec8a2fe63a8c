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


def slow_view(logits, views, smoothing=0.0, smoothed_over=1) -> float:
    """Eq. 16 with smoothed targets over the images of known view."""
    losses = []
    for row, view in zip(logits.tolist(), views.tolist(), strict=True):
        if view != UNKNOWN:
            logs = [math.log(math.exp(logit) / sum(math.exp(other) for other in row)) for logit in row]
            targets = [(1 - smoothing) * (c == view) + smoothing / smoothed_over for c in range(len(row))]
            losses.append(-sum(t * log for t, log in zip(targets, logs, strict=True)))
    return sum(losses) / max(len(losses), 1)


@pytest.mark.parametrize("weight", [1.0, 0.001])
def test_a_batch_by_hand(weight):  # Eq. 16: -log 0.8 = 0.223144 and -log 0.6 = 0.510826, the unknown view left out
    assert ViewLoss(weight)(LOGITS, VIEWS).item() == pytest.approx(weight * 0.733970 / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("smoothed_over", "loss"),
    [
        # 0.9 * 0.223144 + 0.05 * (0.223144 + 1.609438) = 0.292459 and
        # 0.9 * 0.510826 + 0.05 * (0.510826 + 0.916291) = 0.531099.
        (None, 0.411779),
        (2, 0.411779),
        # SVPR-ReID's code with 20 identities: 0.1 / 20 = 0.005 of each -log p, 0.209993 and 0.466879.
        (20, 0.338436),
    ],
)
def test_smoothing_by_hand(smoothed_over, loss):
    found = ViewLoss(smoothing=0.1, smoothed_over=smoothed_over)(LOGITS, VIEWS)
    assert found.item() == pytest.approx(loss, rel=1e-5)


def test_three_views_by_hand():  # -log 0.5 and -log 0.7, the unknown one left out
    logits = torch.tensor([[0.2, 0.3, 0.5], [0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]).log()
    loss = ViewLoss(classes=3)(logits, torch.tensor([2, 0, UNKNOWN]))
    assert loss.item() == pytest.approx((0.693147 + 0.356675) / 2, rel=1e-5)


def test_columns_are_in_the_order_of_the_views():
    logits = torch.tensor([[9.0, 0.0]])
    assert ViewLoss()(logits, torch.tensor([View.AERIAL])) < 0.001
    assert ViewLoss()(logits, torch.tensor([View.GROUND])) > 8


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_slow_loop(seed):
    batch = random_batch(seed)
    assert ViewLoss()(*batch).item() == pytest.approx(slow_view(*batch), rel=1e-5)
    smoothed = ViewLoss(smoothing=0.1, smoothed_over=7)(*batch)
    assert smoothed.item() == pytest.approx(slow_view(*batch, 0.1, 7), rel=1e-5)


@pytest.mark.parametrize("arguments", [{}, {"smoothing": 0.1}, {"smoothing": 0.1, "smoothed_over": 20}])
def test_gradient(arguments):
    logits, views = random_batch(0, torch.float64)
    assert torch.autograd.gradcheck(lambda x: ViewLoss(**arguments)(x, views), logits.requires_grad_())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("images", [0, 3])
def test_no_known_view_is_a_zero_that_keeps_the_graph(images, smoothing):
    logits = torch.rand(images, 2, requires_grad=True)
    loss = ViewLoss(smoothing=smoothing)(logits, torch.full((images,), UNKNOWN))
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
        loss = ViewLoss(smoothing=0.1)(torch.rand(6, 2), torch.randint(UNKNOWN, 2, (6,)))
    assert loss.shape == ()


@pytest.mark.parametrize("weight", [-1, math.inf, "much"])
def test_a_bad_weight_is_named(weight):
    with pytest.raises(InputError, match=rf"^weight={weight!r} [^\n]*$"):
        ViewLoss(weight)


@pytest.mark.parametrize(("name", "value"), [("classes", 0), ("smoothing", 1.5), ("smoothed_over", 0)])
def test_other_bad_arguments_are_named(name, value):
    with pytest.raises(InputError, match=rf"^{name}={value!r} [^\n]*$"):
        ViewLoss(**{name: value})


def test_bad_batches_are_named():
    for batch, words in [
        ((torch.rand(3), VIEWS), r"^logits=\(3,\) [^\n]*$"),
        ((torch.rand(3, 4), VIEWS), r"^logits=\(3, 4\) [^\n]* 2 views$"),
        ((LOGITS, VIEWS[:1]), r"^views=\(1,\) [^\n]*: 3$"),
    ]:
        with pytest.raises(InputError, match=words):
            ViewLoss()(*batch)
