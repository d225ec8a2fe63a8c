import math

import pytest
import torch

from agreid_plugin.errors import InputError
from agreid_plugin.losses import VIAL
from agreid_plugin.losses.vial import compute_cosines, mark_pairs
from agreid_plugin.types import UNKNOWN, View

# One person at a right angle, another between them: cosines 0 (positive), 0.8 and 0.6 (negatives).
FEATURES = torch.tensor([[1.0, 0.0], [0.0, 2.0], [4.0, 3.0]])
PIDS = torch.tensor([7, 7, 9])
VIEWS = torch.tensor([View.AERIAL, View.GROUND, View.AERIAL])


def random_batch(seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Twelve images of about four people, most of whose cosines are large; some views are unknown."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(12, 5, generator=generator, dtype=dtype) + 0.8
    pids = torch.randint(0, 4, (12,), generator=generator)
    return features, pids, torch.randint(UNKNOWN, 2, (12,), generator=generator)


def slow_vial(features, pids, views, lambda_=0.5, beta=5.0, margin=0.5, hard_mining=True) -> float:
    """Eqs. 6 to 10, unordered pair by unordered pair."""
    total, count = 0.0, 0
    for i in range(len(pids)):
        for j in range(i):
            if UNKNOWN in (views[i], views[j]):
                continue
            cos = (features[i] @ features[j] / (features[i].norm() * features[j].norm())).item()
            if pids[i] == pids[j]:
                total, count = total + (1 - cos) * (1 + lambda_ * math.exp(-beta * cos)), count + 1
            elif hard_mining and cos > 1 - margin:
                total, count = total + cos - (1 - margin), count + 1
    return total / max(count, 1)


def test_cosines_by_hand():  # Eq. 6
    expected = torch.tensor([[1.0, 0.0, 0.8], [0.0, 1.0, 0.6], [0.8, 0.6, 1.0]])
    torch.testing.assert_close(compute_cosines(FEATURES), expected)


@pytest.mark.parametrize(
    ("cos", "cost"),
    [  # Eqs. 7 to 9
        (1.0, 0.0),
        (0.5, 0.520521),  # 0.5 (1 + 0.5 * 0.082085)
        (0.0, 1.5),
        (-0.5, 10.636870),  # 1.5 (1 + 0.5 * 12.182494)
        (-1.0, 150.413159),  # 2 (1 + 0.5 * 148.413159)
    ],
)
def test_a_positive_costs_by_hand(cos, cost):
    assert VIAL().positive_cost(torch.tensor(cos)).item() == pytest.approx(cost, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "loss"),
    [
        # Eq. 10: the positive costs 1.5, the negatives 0.8 - 0.5 and 0.6 - 0.5, divided by three pairs.
        ({}, 1.9 / 3),
        # The threshold 0.7 leaves one hard negative of 0.1.
        ({"margin": 0.3}, 1.6 / 2),
        # Eq. 9 by its one pair; without a penalty 1 - cos is left.
        ({"hard_mining": False}, 1.5),
        ({"hard_mining": False, "lambda_": 0.0}, 1.0),
        ({"hard_mining": False, "lambda_": 2.0, "beta": 9.0}, 3.0),
        ({"weight": 0.5}, 1.9 / 6),
    ],
)
def test_a_batch_by_hand(arguments, loss):
    assert VIAL(**arguments)(FEATURES, PIDS, VIEWS).item() == pytest.approx(loss, rel=1e-6)


def test_positives_are_alike_whatever_their_views():
    loss = VIAL()(FEATURES, PIDS, VIEWS)
    assert VIAL()(FEATURES, PIDS) == loss
    assert VIAL()(FEATURES, PIDS, torch.zeros(3, dtype=torch.long)) == loss


def test_images_of_unknown_view_take_no_part():
    views = torch.tensor([View.AERIAL, View.GROUND, UNKNOWN])
    assert VIAL()(FEATURES, PIDS, views).item() == pytest.approx(1.5)


@pytest.mark.parametrize("hard_mining", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_equals_the_slow_loop_over_unordered_pairs(seed, hard_mining):
    arguments = {"lambda_": 0.3, "beta": 4.0, "margin": 0.4, "hard_mining": hard_mining}
    batch = random_batch(seed)
    assert VIAL(**arguments)(*batch).item() == pytest.approx(slow_vial(*batch, **arguments), rel=1e-4)


def test_ordered_and_unordered_pairs_have_the_same_mean():
    features, pids, views = random_batch(3, torch.float64)
    positive, negative = mark_pairs(pids, views != UNKNOWN)
    assert torch.equal(positive, positive.T)
    unordered = VIAL()._mean_over_pairs(compute_cosines(features), positive.triu(), negative.triu())
    torch.testing.assert_close(VIAL()(features, pids, views), unordered)


@pytest.mark.parametrize("hard_mining", [True, False])
def test_gradient(hard_mining):
    features, pids, views = random_batch(0, torch.float64)
    vial = VIAL(hard_mining=hard_mining)
    assert torch.autograd.gradcheck(lambda f: vial(f, pids, views), features.requires_grad_())


def test_identical_positives_and_far_negatives_cost_nothing():
    features = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    assert VIAL()(features, torch.tensor([0, 0, 1, 1])).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("pids", "views"),
    [
        ([0, 1, 2], [0, 1, 0]),  # nobody twice, and nobody alike
        ([0, 0, 0], [UNKNOWN] * 3),
        ([0, 0, 1], [0, UNKNOWN, 1]),
    ],
)
def test_no_pair_is_a_zero_that_keeps_the_graph(pids, views):
    features = torch.eye(3, requires_grad=True)
    loss = VIAL()(features, torch.tensor(pids), torch.tensor(views))
    assert loss.item() == 0
    loss.backward()
    assert torch.equal(features.grad, torch.zeros(3, 3))


def test_an_empty_batch_is_a_zero_that_keeps_the_graph():
    features = torch.zeros(0, 4, requires_grad=True)
    loss = VIAL()(features, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0


def test_float32_inside_autocast():
    features, pids, views = random_batch(1)
    half = features.bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = VIAL()(half, pids, views)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(slow_vial(half.detach().float(), pids, views), rel=1e-4)
    loss.backward()
    assert half.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_finite_at_opposite_positives(dtype):
    features = torch.tensor([[1.0, 0.01], [-1.0, 0.0]], dtype=dtype, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = VIAL()(features, torch.tensor([0, 0]))
    loss.backward()
    assert loss.item() == pytest.approx(150.4, rel=1e-2)
    assert features.grad.isfinite().all()


def test_a_pair_left_out_never_spoils_the_gradient():
    features = torch.tensor([[1.0, 0.1], [1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    VIAL(beta=200.0)(features, torch.tensor([0, 0, 1])).backward()  # e^200 of the negatives overflows
    assert features.grad.isfinite().all()


@pytest.mark.parametrize(
    ("name", "value"), [("weight", -1), ("lambda_", -0.5), ("beta", math.inf), ("margin", 2.5), ("margin", "wide")]
)
def test_bad_arguments_are_named(name, value):
    with pytest.raises(InputError, match=f"{name}={value!r}"):
        VIAL(**{name: value})


def test_bad_batches_are_named():
    for batch, words in [
        ((torch.rand(3), PIDS), r"features=\(3,\)"),
        ((FEATURES, PIDS[:2]), r"pids=\(2,\) .* 3"),
        ((FEATURES, PIDS, VIEWS[None]), r"views=\(1, 3\)"),
    ]:
        with pytest.raises(InputError, match=words):
            VIAL()(*batch)


def test_one_process_has_nothing_to_gather():
    batch = random_batch(2)
    assert VIAL(gather=False)(*batch) == VIAL()(*batch)
