import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from agreid_plugin.errors import InputError
from agreid_plugin.losses import LoadBalanceLoss, load_balance

PROBABILITIES = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
MEMBERS = torch.tensor([True, True, False])


def random_router(seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.randn(10, 4, generator=generator, dtype=dtype).softmax(dim=1)
    return probabilities, torch.rand(10, generator=generator) < 0.6


def slow_balance(probabilities, members) -> float:
    """Eqs. 18 and 19, expert by expert."""
    rows = [row for row, member in zip(probabilities.tolist(), members.tolist(), strict=True) if member]
    experts = probabilities.shape[1]
    return experts * sum((sum(row[j] for row in rows) / len(rows)) ** 2 for j in range(experts))


def slow_released_total(probabilities, sky) -> float:
    """The released LB_share + LB_sky n_sky / B + LB_ground n_ground / B, with its division by the sum plus 1e-6."""

    def balance(rows):
        mean = rows.mean(dim=0)
        mean = mean / (mean.sum() + 1e-6)
        return rows.shape[1] * (mean * mean).sum().item()

    total = balance(probabilities)
    for rows in (probabilities[sky], probabilities[~sky]):
        total += balance(rows) * len(rows) / len(probabilities) if len(rows) else 0
    return total


@pytest.mark.parametrize(
    ("members", "balance"),
    [  # Eqs. 18 and 19
        (None, 1.0),  # means 1.5 / 3 and 1.5 / 3: 2 (0.25 + 0.25)
        ([True, True, True], 1.0),
        ([True, True, False], 1.25),  # means 0.75 and 0.25: 2 (0.5625 + 0.0625)
        ([False, False, True], 2.0),  # one expert takes all: 2 (0 + 1)
        ([False, False, False], 0.0),
    ],
)
def test_a_router_by_hand(members, balance):
    members = None if members is None else torch.tensor(members)
    assert load_balance(PROBABILITIES, members).item() == pytest.approx(balance)


def test_routers_by_hand():
    # Shares 1, 2/3 and 1/3 of balances 1, 1.25 and 2: 1 + 0.8333 + 0.6667.
    routers = [(PROBABILITIES, None), (PROBABILITIES, MEMBERS), (PROBABILITIES, ~MEMBERS)]
    assert LoadBalanceLoss()(iter(routers)).item() == pytest.approx(0.0025)
    assert LoadBalanceLoss(weight=2.0)(routers).item() == pytest.approx(5.0)


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_slow_loop(seed):
    probabilities, members = random_router(seed)
    everyone = torch.ones_like(members)
    assert load_balance(probabilities, members).item() == pytest.approx(slow_balance(probabilities, members), rel=1e-5)
    assert load_balance(probabilities).item() == pytest.approx(slow_balance(probabilities, everyone), rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_released_total(seed):
    probabilities, sky = random_router(seed)
    loss = LoadBalanceLoss(weight=1.0)([(probabilities, None), (probabilities, sky), (probabilities, ~sky)])
    assert loss.item() == pytest.approx(slow_released_total(probabilities, sky), rel=1e-5)


def test_a_batch_of_one_view_equals_the_released_total():
    probabilities, sky = random_router(0)
    sky = torch.ones_like(sky)
    loss = LoadBalanceLoss(weight=1.0)([(probabilities, None), (probabilities, sky), (probabilities, ~sky)])
    assert loss.item() == pytest.approx(slow_released_total(probabilities, sky), rel=1e-5)


def test_gradient():
    probabilities, members = random_router(0, torch.float64)
    probabilities.requires_grad_()
    assert torch.autograd.gradcheck(lambda p: load_balance(p, members), probabilities)
    assert torch.autograd.gradcheck(lambda p: LoadBalanceLoss(1.0)([(p, None), (p, members)]), probabilities)


@pytest.mark.parametrize("images", [0, 3])
def test_no_member_is_a_zero_that_keeps_the_graph(images):
    probabilities = torch.rand(images, 4, requires_grad=True)
    members = torch.zeros(images, dtype=torch.bool)
    loss = load_balance(probabilities, members) + LoadBalanceLoss()([(probabilities, members)])
    assert loss.item() == 0
    loss.backward()
    assert torch.equal(probabilities.grad, torch.zeros(images, 4))


def test_an_empty_batch_is_a_zero_that_keeps_the_graph():
    probabilities = torch.zeros(0, 4, requires_grad=True)
    loss = LoadBalanceLoss()([(probabilities, None)])
    loss.backward()
    assert loss.item() == 0


def test_images_of_other_routers_may_hold_any_numbers():
    probabilities = PROBABILITIES.clone()
    probabilities[2] = math.nan
    probabilities.requires_grad_()
    loss = load_balance(probabilities, MEMBERS)
    loss.backward()
    assert loss.item() == pytest.approx(1.25)
    assert probabilities.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float32_inside_autocast(dtype):
    probabilities, members = random_router(1)
    half = probabilities.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = LoadBalanceLoss(weight=1.0)([(half, members)])
    assert loss.dtype == torch.float32
    expected = members.float().mean().item() * slow_balance(half.detach(), members)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert half.grad.isfinite().all()


def test_no_value_is_read_back_from_the_device():
    with FakeTensorMode():  # tensors without values: reading one raises
        probabilities = torch.rand(6, 4)
        loss = LoadBalanceLoss()([(probabilities, None), (probabilities, torch.rand(6) < 0.5)])
    assert loss.shape == ()


@pytest.mark.parametrize("weight", [-1, math.inf, "much"])
def test_a_bad_weight_is_named(weight):
    with pytest.raises(InputError, match=rf"^weight={weight!r} [^\n]*$"):
        LoadBalanceLoss(weight)


def test_bad_routers_are_named():
    for router, words in [
        ((torch.rand(3), None), r"^probabilities=\(3,\) [^\n]*$"),
        ((PROBABILITIES, MEMBERS[:2]), r"^members=\(2,\) [^\n]*: 3$"),
        ((PROBABILITIES, MEMBERS.long()), r"^members=torch.int64 [^\n]*torch.bool$"),
    ]:
        with pytest.raises(InputError, match=words):
            LoadBalanceLoss()([router])
    with pytest.raises(InputError, match=r"^routers=\[\] [^\n]*$"):
        LoadBalanceLoss()([])


def test_choices_by_hand():
    # Means 0.75 and 0.25 of the members' probabilities, shares 0.5 and 0.5, then 1 and 0, of their choices.
    evenly = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert load_balance(PROBABILITIES, MEMBERS, evenly).item() == pytest.approx(1.0)
    assert load_balance(PROBABILITIES, MEMBERS, torch.tensor([[1.0, 0.0]] * 3)).item() == pytest.approx(1.5)


def test_two_experts_that_take_all_are_a_fixed_point_only_without_choices():
    logits = torch.tensor([[0.0, 0.0, -30.0, -30.0]] * 6, requires_grad=True)
    load_balance(logits.softmax(dim=1)).backward()
    assert logits.grad.abs().max() < 1e-9
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]] * 6, requires_grad=True)
    load_balance(logits.softmax(dim=1), None, torch.tensor([[0.5, 0.5, 0.0, 0.0]] * 6)).backward()
    assert (logits.grad[:, :2] > 1e-3).all()
    assert (logits.grad[:, 2:] < -1e-3).all()


def test_the_loss_passes_choices_on():
    choices = torch.tensor([[1.0, 0.0]] * 3)
    # Shares 1 and 2/3 of balances 2 (0.5 x 1) and 1.5.
    routers = [(PROBABILITIES, None, choices), (PROBABILITIES, MEMBERS, choices)]
    assert LoadBalanceLoss(weight=1.0)(routers).item() == pytest.approx(1.0 + 2 / 3 * 1.5)
