import math

import pytest
import torch

from agreid_plugin.errors import InputError
from agreid_plugin.losses import OrthogonalLoss

IDENTITY = torch.tensor([[1.0, 0.0], [3.0, 4.0], [2.0, 0.0]])
VIEW = torch.tensor([[0.0, 2.0], [4.0, 3.0], [-1.0, 0.0]])


def random_batch(seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(8, 5, generator=generator, dtype=dtype) for _ in range(2))


def slow_orthogonal(identity, view) -> float:
    """Eq. 17, image by image."""
    total = 0.0
    for a, b in zip(identity.tolist(), view.tolist(), strict=True):
        total += abs(sum(x * y for x, y in zip(a, b, strict=True))) / (math.hypot(*a) * math.hypot(*b))
    return total / len(identity)


@pytest.mark.parametrize("weight", [1.0, 0.001])
def test_a_batch_by_hand(weight):  # Eq. 17: cosines 0, (3 * 4 + 4 * 3) / (5 * 5) = 0.96 and -1
    assert OrthogonalLoss(weight)(IDENTITY, VIEW).item() == pytest.approx(weight * 1.96 / 3)


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_slow_loop(seed):
    batch = random_batch(seed)
    assert OrthogonalLoss()(*batch).item() == pytest.approx(slow_orthogonal(*batch), rel=1e-5)


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_the_printed_dot_product_by_hand(weight):  # SVPR-ReID, Eq. 10: |0| + |3 * 4 + 4 * 3| + |-2|, summed
    assert OrthogonalLoss(weight, kind="dot")(IDENTITY, VIEW).item() == pytest.approx(weight * 26)


@pytest.mark.parametrize("kind", ["cosine", "dot"])
def test_gradient_reaches_both(kind):
    identity, view = random_batch(0, torch.float64)
    assert torch.autograd.gradcheck(OrthogonalLoss(kind=kind), (identity.requires_grad_(), view.requires_grad_()))


@pytest.mark.parametrize("kind", ["cosine", "dot"])
def test_an_empty_batch_is_a_zero_that_keeps_the_graph(kind):
    identity, view = (torch.zeros(0, 4, requires_grad=True) for _ in range(2))
    loss = OrthogonalLoss(kind=kind)(identity, view)
    loss.backward()
    assert loss.item() == 0


def test_a_feature_of_zeros_has_a_finite_gradient():
    identity, view = torch.zeros(2, 4, requires_grad=True), torch.tensor([[1.0] * 4, [0.0] * 4], requires_grad=True)
    loss = OrthogonalLoss()(identity, view)
    loss.backward()
    assert loss.item() == 0
    assert identity.grad.isfinite().all()
    assert view.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float32_inside_autocast(dtype):
    identity, view = (100 * values.to(dtype) for values in random_batch(1))  # squares beyond float16
    identity.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = OrthogonalLoss()(identity, view)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(slow_orthogonal(identity.detach(), view), rel=1e-5)
    loss.backward()
    assert identity.grad.isfinite().all()


@pytest.mark.parametrize("weight", [-1, math.inf, "much"])
def test_a_bad_weight_is_named(weight):
    with pytest.raises(InputError, match=rf"^weight={weight!r} [^\n]*$"):
        OrthogonalLoss(weight)


def test_bad_batches_are_named():
    for batch, words in [
        ((torch.rand(3), VIEW), r"^identity=\(3,\) [^\n]*$"),
        ((IDENTITY, VIEW[:1]), r"^view=\(1, 2\) [^\n]*\(3, 2\)$"),
    ]:
        with pytest.raises(InputError, match=words):
            OrthogonalLoss()(*batch)


def test_an_unknown_kind_is_named():
    with pytest.raises(InputError, match=r"^kind of orthogonality 'cosin' unknown \(did you mean cosine\?\)[^\n]*$"):
        OrthogonalLoss(kind="cosin")
