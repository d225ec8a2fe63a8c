import math

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import agreid_plugin  # noqa: F401  makes the host import on today's torch
from agreid_plugin.errors import InputError
from agreid_plugin.losses import IdentityLoss

LOGITS = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]]).log()
PIDS = torch.tensor([0, 1])
SURE = torch.tensor([[0.0, 0.0], [200.0, 0.0], [0.0, 300.0]])  # of the second and third to the last bit
SURE_PIDS = torch.tensor([0, 0, 1])


def random_batch(seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(9, 5, generator=generator, dtype=dtype), torch.randint(0, 5, (9,), generator=generator)


def slow_identity(logits, pids, smoothing=0.0, over_nonzero=False, over_all=False) -> float:
    """Eq. 14 with smoothed targets, image by image and class by class."""
    losses = []
    for row, pid in zip(logits.tolist(), pids.tolist(), strict=True):
        total = sum(math.exp(logit) for logit in row)
        if over_all:
            targets = [(1 - smoothing) * (c == pid) + smoothing / len(row) for c in range(len(row))]
        else:
            targets = [1 - smoothing if c == pid else smoothing / (len(row) - 1) for c in range(len(row))]
        losses.append(-sum(t * math.log(math.exp(logit) / total) for t, logit in zip(targets, row, strict=True)))
    return sum(losses) / (max(sum(loss != 0 for loss in losses), 1) if over_nonzero else len(losses))


@pytest.mark.parametrize(
    ("arguments", "loss"),
    [
        # Eq. 14: -log 0.5 = 0.693147 and -log 0.75 = 0.287682, mean 0.490415.
        ({}, 0.490415),
        ({"weight": 2.0}, 0.980829),
        # 0.9 * 0.693147 + 0.05 * 2 * 1.386294 = 0.762462, 0.9 * 0.287682 + 0.05 * 2 * 2.079442 = 0.466858.
        ({"smoothing": 0.1}, 0.614660),
        # Means of all three -log p: (0.693147 + 2 * 1.386294) / 3 = 1.155245, (0.287682 + 2 * 2.079442) / 3 = 1.482189:
        # 0.9 * 0.693147 + 0.1 * 1.155245 = 0.739357 and 0.9 * 0.287682 + 0.1 * 1.482189 = 0.407133.
        ({"smoothing": 0.1, "over_all": True}, 0.573245),
        # Neither loss is zero.
        ({"over_nonzero": True}, 0.490415),
    ],
)
def test_a_batch_by_hand(arguments, loss):
    assert IdentityLoss(**arguments)(LOGITS, PIDS).item() == pytest.approx(loss, rel=1e-5)


def test_dividing_by_losses_that_are_not_zero_by_hand():  # losses log 2, 0, 0
    assert IdentityLoss()(SURE, SURE_PIDS).item() == pytest.approx(math.log(2) / 3)
    assert IdentityLoss(over_nonzero=True)(SURE, SURE_PIDS).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("over_all", [True, False])
@pytest.mark.parametrize("over_nonzero", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_equals_the_slow_loop(seed, smoothing, over_nonzero, over_all):
    batch, arguments = random_batch(seed), (smoothing, over_nonzero, over_all)
    loss = IdentityLoss(1.0, *arguments)(*batch)
    assert loss.item() == pytest.approx(slow_identity(*batch, *arguments), rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_smoothing_over_all_is_that_of_torch(smoothing):
    logits, pids = random_batch(3)
    expected = nn.functional.cross_entropy(logits, pids, label_smoothing=smoothing)
    torch.testing.assert_close(IdentityLoss(smoothing=smoothing, over_all=True)(logits, pids), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("batch", [random_batch(4), (LOGITS, PIDS), (SURE, SURE_PIDS), (SURE[1:], SURE_PIDS[1:])])
def test_equals_the_host_in_value_and_gradient(batch, smoothing):
    from fastreid.modeling.losses.cross_entroy_loss import cross_entropy_loss

    ours, theirs = (batch[0].clone().requires_grad_() for _ in range(2))
    loss = IdentityLoss(smoothing=smoothing, over_nonzero=True)(ours, batch[1])
    expected = cross_entropy_loss(theirs, batch[1], smoothing)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize(
    "arguments", [{}, {"smoothing": 0.2}, {"over_nonzero": True}, {"smoothing": 0.2, "over_all": True}]
)
def test_gradient(arguments):
    logits, pids = random_batch(0, torch.float64)
    assert torch.autograd.gradcheck(lambda x: IdentityLoss(**arguments)(x, pids), logits.requires_grad_())


@pytest.mark.parametrize("over_nonzero", [True, False])
def test_an_empty_batch_is_a_zero_that_keeps_the_graph(over_nonzero):
    logits = torch.zeros(0, 4, requires_grad=True)
    loss = IdentityLoss(smoothing=0.1, over_nonzero=over_nonzero)(logits, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0


@pytest.mark.parametrize("arguments", [{"over_nonzero": True}, {"smoothing": 0.1, "over_all": True}])
def test_one_identity_costs_nothing(arguments):
    logits = torch.rand(3, 1, requires_grad=True)
    loss = IdentityLoss(**arguments)(logits, torch.zeros(3, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float32_inside_autocast(dtype):
    logits, pids = random_batch(1)
    half = logits.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = IdentityLoss(smoothing=0.1)(half, pids)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(slow_identity(half.detach().float(), pids, 0.1), rel=1e-5)
    loss.backward()
    assert half.grad.isfinite().all()


def test_no_value_is_read_back_from_the_device():
    with FakeTensorMode():  # tensors without values: reading one raises
        loss = IdentityLoss(smoothing=0.1, over_nonzero=True)(torch.rand(6, 4), torch.randint(0, 4, (6,)))
    assert loss.shape == ()


@pytest.mark.parametrize(("name", "value"), [("weight", -1), ("weight", math.nan), ("smoothing", 1.5)])
def test_bad_arguments_are_named(name, value):
    with pytest.raises(InputError, match=rf"^{name}={value!r} [^\n]*$"):
        IdentityLoss(**{name: value})


def test_bad_batches_are_named():
    for batch, words in [
        ((torch.rand(3), PIDS), r"^logits=\(3,\) [^\n]*$"),
        ((torch.rand(2, 1), PIDS), r"^logits=\(2, 1\) [^\n]*smoothing$"),
        ((LOGITS, PIDS[:1]), r"^pids=\(1,\) [^\n]*: 2$"),
    ]:
        with pytest.raises(InputError, match=words):
            IdentityLoss(smoothing=0.1)(*batch)
