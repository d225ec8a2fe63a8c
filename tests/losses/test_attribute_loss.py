import math

import pytest
import torch

from agreid_plugin.errors import InputError
from agreid_plugin.losses import AttributeLoss
from agreid_plugin.types import UNKNOWN

# Two attributes of two and three values; the third image's first attribute is unknown.
LOGITS = [
    torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.9, 0.1]]).log(),
    torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]).log(),
]
LABELS = torch.tensor([[0, 0], [1, 2], [UNKNOWN, 1]])


def random_batch(seed: int, dtype: torch.dtype = torch.float32) -> tuple[list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = [2 * torch.randn(7, values, generator=generator, dtype=dtype) for values in (2, 5, 3)]
    labels = [torch.randint(UNKNOWN, values, (7,), generator=generator) for values in (2, 5, 3)]
    return logits, torch.stack(labels, dim=1)


def slow_attributes(logits, labels) -> float:
    """Eq. 11, attribute by attribute and image by image, unknown labels left out."""
    total = 0.0
    for m, of_one in enumerate(logits):
        losses = []
        for row, label in zip(of_one.tolist(), labels[:, m].tolist(), strict=True):
            if label != UNKNOWN:
                losses.append(-math.log(math.exp(row[label]) / sum(math.exp(logit) for logit in row)))
        total += sum(losses) / max(len(losses), 1)
    return total


@pytest.mark.parametrize("weight", [1.0, 0.05])
def test_a_batch_by_hand(weight):  # Eq. 11
    first = (0.223144 + 0.510826) / 2  # -log 0.8 and -log 0.6
    second = (0.693147 + 0.693147 + 2.302585) / 3  # -log 0.5 twice and -log 0.1
    assert AttributeLoss(weight)(LOGITS, LABELS).item() == pytest.approx(weight * (first + second), rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_slow_loop(seed):
    batch = random_batch(seed)
    assert AttributeLoss()(*batch).item() == pytest.approx(slow_attributes(*batch), rel=1e-5)


def test_gradient():
    logits, labels = random_batch(0, torch.float64)
    inputs = tuple(of_one.requires_grad_() for of_one in logits)
    assert torch.autograd.gradcheck(lambda *given: AttributeLoss()(given, labels), inputs)


@pytest.mark.parametrize("images", [0, 3])
def test_nothing_known_is_a_zero_that_keeps_the_graph(images):
    logits = [torch.rand(images, values, requires_grad=True) for values in (2, 3)]
    loss = AttributeLoss()(logits, torch.full((images, 2), UNKNOWN))
    assert loss.item() == 0
    loss.backward()
    assert all(torch.equal(of_one.grad, torch.zeros_like(of_one)) for of_one in logits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float32_inside_autocast(dtype):
    logits, labels = random_batch(1)
    half = [of_one.to(dtype).requires_grad_() for of_one in logits]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = AttributeLoss()(half, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(slow_attributes(half, labels), rel=1e-5)
    loss.backward()
    assert half[0].grad.isfinite().all()


@pytest.mark.parametrize("weight", [-1, math.inf, "much"])
def test_a_bad_weight_is_named(weight):
    with pytest.raises(InputError, match=rf"^weight={weight!r} [^\n]*$"):
        AttributeLoss(weight)


@pytest.mark.parametrize(
    ("logits", "labels", "words"),
    [
        ([], LABELS, r"^logits=\[\] [^\n]*$"),
        ([LOGITS[0], LOGITS[1][:2]], LABELS, r"^logits\[1\]=\(2, 3\) should be 3 images [^\n]*$"),
        ([LOGITS[0], LOGITS[1][0]], LABELS, r"^logits\[1\]=\(3,\) [^\n]*$"),
        (LOGITS, LABELS[:, :1], r"^attributes=\(3, 1\) should be 3 images by 2 attributes$"),
        (LOGITS, LABELS[:, 0], r"^attributes=\(3,\) [^\n]*$"),
        (
            LOGITS,
            LABELS + torch.tensor([1, 0]),
            r"^attributes\[1, 0\]=2 should be below 2, [^\n]* attribute 0, [^\n]*$",
        ),
        (LOGITS, LABELS - torch.tensor([0, 2]), r"^attributes\[0, 1\]=-2 [^\n]*$"),
    ],
)
def test_bad_batches_are_named(logits, labels, words):
    with pytest.raises(InputError, match=words):
        AttributeLoss()(logits, labels)
