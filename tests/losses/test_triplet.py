import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import agreid_plugin  # noqa: F401  makes the host import on today's torch
from agreid_plugin.errors import InputError
from agreid_plugin.losses import TripletLoss
from agreid_plugin.losses.triplet import compute_distances, mine_hardest, mine_weighted

# Two people on a line, at 0 and 1, at 3 and 7.
FEATURES = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
PIDS = torch.tensor([5, 5, 8, 8])
# One person at a right angle, another between them, seen once: cosines 0, 0.6 and 0.8.
DIRECTIONS = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
DIRECTION_PIDS = torch.tensor([0, 0, 1])

KINDS = [
    {},
    {"margin": 0.3},
    {"squared": True, "margin": 0.3},
    {"normalize": True},
    {"normalize": True, "margin": 0.3},
]


def random_batch(seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Twelve images of five people, the last of them seen once; distances are about 2."""
    generator = torch.Generator().manual_seed(seed)
    pids = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 4])
    return 0.6 * torch.randn(12, 6, generator=generator, dtype=dtype), pids


def slow_triplet(features, pids, margin=0.0, squared=False, normalize=False, hard_mining=True) -> float:
    """Eq. 15 image by image."""

    def distance(a, b):
        if normalize:
            return 2 - 2 * (a @ b / (a.norm() * b.norm())).item()
        return (a - b).square().sum().item() ** (1 if squared else 0.5)

    def average(values, sign):
        weights = [math.exp(sign * value) for value in values]
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    losses = []
    for anchor, pid in zip(features, pids, strict=True):
        near = [distance(anchor, other) for other, of in zip(features, pids, strict=True) if of == pid]
        far = [distance(anchor, other) for other, of in zip(features, pids, strict=True) if of != pid]
        gap = max(near) - min(far) if hard_mining else average(near, 1) - average(far, -1)
        losses.append(max(gap + margin, 0) if margin else math.log(1 + math.exp(gap)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize(
    ("arguments", "loss"),
    [
        # Farthest positives 1, 1, 4, 4 and nearest negatives 3, 2, 2, 6: 0, 0, 4 - 2 + 0.5, 0.
        ({"margin": 0.5}, 2.5 / 4),
        ({"margin": 0.5, "weight": 2.0}, 2.5 / 2),
        # log(1 + e^x) of -2, -1, 2, -2: 0.126928 + 0.313262 + 2.126928 + 0.126928 = 2.694046.
        ({}, 2.694046 / 4),
        # Squares 1, 1, 16, 16 and 9, 4, 4, 36: 0, 0, 16 - 4 + 0.5, 0.
        ({"margin": 0.5, "squared": True}, 12.5 / 4),
        # The third image alone costs: its positives 0 and 4 average 4 e^4 / (1 + e^4) = 3.928055, its negatives 3 and
        # 2 average 2 + e^-1 / (1 + e^-1) = 2.268941, and 3.928055 - 2.268941 + 0.5 = 2.159114.
        ({"margin": 0.5, "hard_mining": False}, 2.159114 / 4),
    ],
)
def test_a_batch_by_hand(arguments, loss):
    assert TripletLoss(**arguments)(FEATURES, PIDS).item() == pytest.approx(loss, rel=1e-5)


def test_directions_by_hand():
    # 2 - 2 cos: positives 2, 2 and 0 (itself), negatives 0.8, 0.4 and 0.4: 1.7 + 2.1 + 0.1.
    loss = TripletLoss(margin=0.5, normalize=True)(DIRECTIONS, DIRECTION_PIDS)
    assert loss.item() == pytest.approx(3.9 / 3, rel=1e-5)


def test_distances_by_hand():
    apart = torch.tensor([[0.0, 1.0, 3.0, 7.0], [1.0, 0.0, 2.0, 6.0], [3.0, 2.0, 0.0, 4.0], [7.0, 6.0, 4.0, 0.0]])
    torch.testing.assert_close(compute_distances(FEATURES), apart, atol=1e-5, rtol=0)
    torch.testing.assert_close(compute_distances(FEATURES, squared=True), apart.square(), atol=1e-5, rtol=0)
    cosines = torch.tensor([[1.0, 0.0, 0.6], [0.0, 1.0, 0.8], [0.6, 0.8, 1.0]])
    torch.testing.assert_close(compute_distances(DIRECTIONS, normalize=True), 2 - 2 * cosines, atol=1e-5, rtol=0)


@pytest.mark.parametrize("hard_mining", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_slow_loop(seed, kind, hard_mining):
    batch = random_batch(seed)
    loss = TripletLoss(**kind, hard_mining=hard_mining)(*batch)
    assert loss.item() == pytest.approx(slow_triplet(*batch, **kind, hard_mining=hard_mining), rel=1e-4)


@pytest.mark.parametrize("hard_mining", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("margin", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_host_in_value_and_gradient(seed, margin, normalize, hard_mining):
    from fastreid.modeling.losses.triplet_loss import triplet_loss

    features, pids = random_batch(seed, torch.float64)
    features, pids = features[:-1], pids[:-1]  # the host's gradient of an image's distance to itself is noise
    ours, theirs = (features.clone().requires_grad_() for _ in range(2))
    loss = TripletLoss(margin=margin, normalize=normalize, hard_mining=hard_mining)(ours, pids)
    expected = triplet_loss(theirs, pids, margin, normalize, hard_mining)
    tolerance = {"rtol": 1e-6, "atol": 1e-8} if hard_mining else {"rtol": 1e-3, "atol": 1e-5}  # the host's 1e-6
    torch.testing.assert_close(loss, expected, **tolerance)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, **tolerance)


def test_weighted_negatives_stay_where_the_host_loses_them():
    from fastreid.modeling.losses.triplet_loss import weighted_example_mining

    same = PIDS[:, None] == PIDS
    apart = compute_distances(20 * FEATURES)
    # The first image's negatives are at 60 and 140, so their average is 60; e^-60 is nothing beside the host's 1e-6.
    assert mine_weighted(apart, same)[1][0].item() == pytest.approx(60)
    assert weighted_example_mining(apart, same.float(), 1 - same.float())[1][0].item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("hard_mining", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_gradient(kind, hard_mining):
    features, pids = random_batch(0, torch.float64)
    loss = TripletLoss(**kind, hard_mining=hard_mining)
    assert torch.autograd.gradcheck(lambda f: loss(f, pids), features.requires_grad_())


@pytest.mark.parametrize("hard_mining", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("images", [0, 1, 3])
def test_no_triplet_is_a_zero_that_keeps_the_graph(images, kind, hard_mining):
    features = torch.rand(images, 4, requires_grad=True)
    loss = TripletLoss(**kind, hard_mining=hard_mining)(features, torch.full((images,), 7))
    assert loss.item() == 0
    loss.backward()
    assert torch.equal(features.grad, torch.zeros(images, 4))


@pytest.mark.parametrize("hard_mining", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("features", [torch.zeros(4, 3), torch.ones(4, 3), torch.full((4, 768), 33.3)])
def test_identical_images_have_a_finite_gradient(features, kind, hard_mining):
    features = features.clone().requires_grad_()
    loss = TripletLoss(**kind, hard_mining=hard_mining)(features, PIDS)
    loss.backward()
    assert loss.isfinite()
    assert features.grad.isfinite().all()


def test_a_person_seen_once_is_its_own_positive():
    # Nobody twice: log(1 + e^(0 - d)) with d = 1, 1, 2, 4.
    loss = TripletLoss()(FEATURES, torch.arange(4))
    expected = sum(math.log(1 + math.exp(-d)) for d in (1, 1, 2, 4)) / 4
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_an_image_is_no_distance_from_itself_however_large_its_features():
    features = 100 + torch.rand(5, 768, generator=torch.Generator().manual_seed(0))  # squares round by about 1
    positive, _ = mine_hardest(compute_distances(features), torch.eye(5, dtype=torch.bool))
    torch.testing.assert_close(positive, torch.full((5,), 1e-6))


def test_the_soft_margin_is_never_infinite():
    features = (1000 * FEATURES).requires_grad_()
    loss = TripletLoss(squared=True)(features, PIDS)  # gap of the third image: 16e6 - 4e6
    loss.backward()
    assert loss.item() == pytest.approx(12e6 / 4)
    assert features.grad.isfinite().all()


@pytest.mark.parametrize("hard_mining", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float32_inside_autocast(dtype, hard_mining):
    features, pids = random_batch(1)
    half = features.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = TripletLoss(hard_mining=hard_mining)(half, pids)
    assert loss.dtype == torch.float32
    expected = slow_triplet(half.detach().float(), pids, hard_mining=hard_mining)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    loss.backward()
    assert half.grad.isfinite().all()


@pytest.mark.parametrize("hard_mining", [True, False])
def test_no_value_is_read_back_from_the_device(hard_mining):
    with FakeTensorMode():  # tensors without values: reading one raises
        loss = TripletLoss(hard_mining=hard_mining)(torch.rand(6, 4), torch.randint(0, 3, (6,)))
    assert loss.shape == ()


@pytest.mark.parametrize(("name", "value"), [("weight", -1), ("margin", -0.3), ("margin", "wide")])
def test_bad_arguments_are_named(name, value):
    with pytest.raises(InputError, match=rf"^{name}={value!r} [^\n]*$"):
        TripletLoss(**{name: value})


def test_squared_directions_are_refused():
    with pytest.raises(InputError, match=r"^squared=True [^\n]*normalize=True[^\n]*$"):
        TripletLoss(squared=True, normalize=True)


def test_bad_batches_are_named():
    for batch, words in [
        ((torch.rand(4), PIDS), r"^features=\(4,\) [^\n]*$"),
        ((FEATURES, PIDS[:3]), r"^pids=\(3,\) [^\n]*: 4$"),
    ]:
        with pytest.raises(InputError, match=words):
            TripletLoss()(*batch)
