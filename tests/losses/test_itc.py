import math

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from agreid_plugin.errors import InputError
from agreid_plugin.losses import NITC, RITC
from agreid_plugin.losses.itc import same_person

BOTH = pytest.mark.parametrize("loss", [NITC, RITC])
PIDS = torch.tensor([3, 8])
# Cosines of images (rows) and texts 0.6, 0.8 and 0, -1; lengths that should not matter.
IMAGES = torch.tensor([[3.0, 4.0], [0.0, -0.5]])
TEXTS = torch.tensor([[2.0, 0.0], [0.0, 7.0]])

# What the released TAG-PR (commit b57f6b0) computes from these cosines of eight images and eight texts of four people.
RECORDED_COSINES = [
    [-0.0074912, -0.0203171, 0.001356, -0.0228829, -0.0286795, -0.0273986, -0.0465554, -0.0056469],
    [-0.0035511, -0.0055978, 0.006263, 0.0147698, 0.0156615, -0.0410298, -0.0249777, 0.0252039],
    [-0.0166235, -0.0145088, 0.0108618, -0.0032247, -0.0007168, -0.0353282, -0.0339114, 0.0153696],
    [0.0005769, -0.0026217, 0.0110416, 0.0126451, 0.013641, -0.0304152, -0.0199245, 0.0286741],
    [0.0125848, -0.0036466, 0.0190462, -0.0030094, 0.0082193, -0.0060286, -0.0140463, 0.0209735],
    [-0.0035414, -0.0339333, -0.0069114, -0.0159477, -0.0177581, -0.0348966, -0.0339417, 0.0006773],
    [-0.0207132, -0.0362879, -0.0151897, -0.0341926, -0.0279716, -0.0219276, -0.0423782, -0.0259831],
    [-0.0217202, -0.0271728, -0.0401156, -0.0150948, -0.0128623, -0.0268256, -0.0200334, -0.0191279],
]
RECORDED_PIDS = torch.tensor([2, 2, 5, 5, 11, 11, 17, 17])


def random_batch(seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Six pairs of about three people."""
    generator = torch.Generator().manual_seed(seed)
    images, texts = (torch.randn(6, 4, generator=generator, dtype=dtype) for _ in range(2))
    return images, texts, torch.randint(0, 3, (6,), generator=generator)


def softmax(row: list[float]) -> list[float]:
    total = sum(math.exp(value) for value in row)
    return [math.exp(value) / total for value in row]


def slow_directions(images, texts, pids, scale):
    """Yield (probabilities, Q) of every image, then of every text, one by one."""
    cos = (images / images.norm(dim=1, keepdim=True)) @ (texts / texts.norm(dim=1, keepdim=True)).T
    for logits in (scale * cos, scale * cos.T):
        for row, pid in zip(logits.tolist(), pids.tolist(), strict=True):
            same = [float(other == pid) for other in pids.tolist()]
            yield softmax(row), [value / sum(same) for value in same]


def slow_nitc(images, texts, pids, scale=100.0, soft_label=0.5) -> float:
    total = 0.0
    for p, q in slow_directions(images, texts, pids, scale):
        total -= sum((soft_label * a + (1 - soft_label) * b) * math.log(a) for a, b in zip(p, q, strict=True))
    return total / (2 * len(pids))


def slow_ritc(images, texts, pids, scale=100.0, eps=0.01) -> float:
    total = 0.0
    for p, q in slow_directions(images, texts, pids, scale):
        total += sum(a * (math.log(a) - math.log(b + eps)) for a, b in zip(p, q, strict=True))
    return total / (2 * len(pids))


def test_shares_of_one_person_by_hand():
    shares = same_person(torch.tensor([4, 9, 4]))
    assert shares.tolist() == [[0.5, 0, 0.5], [0, 1, 0], [0.5, 0, 0.5]]


@pytest.mark.parametrize(
    ("soft_label", "loss"),
    [
        # Scale 2: logits 1.2, 1.6 and 0, -2. Images: p = 0.401312, 0.598688 and 0.880797, 0.119203, whose right texts
        # cost 0.913015 and 2.126928. Texts: p = 0.768525, 0.231475 and 0.973403, 0.026597, the right ones cost
        # 0.263283 and 3.626957. The mean of images 1.519972, of texts 1.945119.
        (0.0, 1.732546),
        # The entropies of p: 0.673518 and 0.365335, 0.541083 and 0.122705; mean 0.425661.
        (1.0, 0.425661),
        (0.5, (1.732546 + 0.425661) / 2),
    ],
)
def test_normalized_contrast_by_hand(soft_label, loss):
    found = NITC(soft_label=soft_label, temperature=0.5)(IMAGES, TEXTS, PIDS)
    assert found.item() == pytest.approx(loss, rel=1e-5)
    assert NITC(weight=3.0)(IMAGES, TEXTS, PIDS, 2.0, soft_label).item() == pytest.approx(3 * loss, rel=1e-5)


def test_reversed_contrast_by_hand():
    # The same p. log(Q + 0.01): right 0.009950, wrong -4.605170. Each row is -entropy minus the mean of those by p:
    # images -0.673518 + 0.598688 * 4.605170 - 0.401312 * 0.009950 = 2.079553,
    # -0.365335 + 0.880797 * 4.605170 - 0.119203 * 0.009950 = 3.689699; texts -0.541083 + 0.231475 * 4.605170
    # - 0.768525 * 0.009950 = 0.517252, -0.122705 + 0.973403 * 4.605170 - 0.026597 * 0.009950 = 4.359716.
    mean = (2.079553 + 3.689699 + 0.517252 + 4.359716) / 4
    assert RITC(temperature=0.5)(IMAGES, TEXTS, PIDS).item() == pytest.approx(mean, rel=1e-5)
    assert RITC(weight=0.5)(IMAGES, TEXTS, PIDS, 2.0).item() == pytest.approx(mean / 2, rel=1e-5)


def test_without_soft_labels_and_with_everyone_once_it_is_the_loss_of_clip():
    images, texts, _ = random_batch(0)
    logits = 20 * F.normalize(images) @ F.normalize(texts).T
    right = torch.arange(6)
    expected = (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)) / 2
    torch.testing.assert_close(NITC(soft_label=0.0, temperature=0.05)(images, texts, right), expected)


@pytest.mark.parametrize("seed", range(3))
def test_equal_the_slow_loops(seed):
    batch = random_batch(seed)
    assert NITC(soft_label=0.3)(*batch, 5.0).item() == pytest.approx(slow_nitc(*batch, 5.0, 0.3), rel=1e-5)
    assert RITC(smoothing=0.2)(*batch, 5.0).item() == pytest.approx(slow_ritc(*batch, 5.0, 0.2), rel=1e-5)


def test_equal_what_the_released_code_recorded():
    cosines = torch.tensor(RECORDED_COSINES, dtype=torch.float64)
    texts = torch.eye(9, dtype=torch.float64)[:8]
    images = torch.cat([cosines, (1 - cosines.square().sum(dim=1, keepdim=True)).sqrt()], dim=1)  # of length 1
    for soft_label, recorded in [(0.0, 2.7367268), (0.25, 2.4335561), (0.5, 2.1303854)]:
        assert NITC(soft_label=soft_label)(images, texts, RECORDED_PIDS).item() == pytest.approx(recorded, rel=1e-5)
    assert RITC()(images, texts, RECORDED_PIDS).item() == pytest.approx(2.1539721, rel=1e-5)


def test_gradient_reaches_images_texts_and_scale():
    images, texts, pids = random_batch(1, torch.float64)
    inputs = (images.requires_grad_(), texts.requires_grad_(), torch.tensor(4.0, dtype=torch.float64).requires_grad_())
    for loss in (NITC(soft_label=0.0), RITC()):
        assert torch.autograd.gradcheck(lambda i, t, s, loss=loss: loss(i, t, pids, s), inputs)


def test_soft_labels_are_held_fixed():  # the gradient of the cross-entropy by its logits is softmax - target
    images, texts, pids = random_batch(2)
    gradients = []
    for soft_label in (0.0, 0.5):
        given = images.clone().requires_grad_()
        NITC(soft_label=soft_label)(given, texts, pids, 4.0).backward()
        gradients.append(given.grad)
    torch.testing.assert_close(gradients[1], 0.5 * gradients[0])


@BOTH
def test_a_scale_above_100_is_held_at_it(loss):
    batch = random_batch(3)
    assert loss()(*batch, 250.0) == loss()(*batch, 100.0) == loss()(*batch)


@BOTH
def test_an_empty_batch_is_a_zero_that_keeps_the_graph(loss):
    images, texts = (torch.zeros(0, 4, requires_grad=True) for _ in range(2))
    value = loss()(images, texts, torch.zeros(0, dtype=torch.long))
    value.backward()
    assert value.item() == 0


@BOTH
def test_a_sure_pair_has_a_finite_gradient(loss):  # probabilities of e^-200
    images = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    value = loss()(images, images.detach().flip(0), PIDS)
    value.backward()
    assert value.isfinite()
    assert images.grad.isfinite().all()


@pytest.mark.parametrize(("loss", "slow"), [(NITC, slow_nitc), (RITC, slow_ritc)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float32_inside_autocast(dtype, loss, slow):
    images, texts, pids = random_batch(4)
    images, texts = images.to(dtype).requires_grad_(), texts.to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss()(images, texts, pids, 8.0)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(slow(images.detach().float(), texts.float(), pids, 8.0), rel=1e-4)
    value.backward()
    assert images.grad.dtype == dtype


@BOTH
def test_no_value_is_read_back_from_the_device(loss):
    with FakeTensorMode():  # tensors without values: reading one raises
        value = loss()(torch.rand(6, 4), torch.rand(6, 4), torch.randint(0, 3, (6,)))
    assert value.shape == ()


@pytest.mark.parametrize(
    ("loss", "name", "value"),
    [(NITC, "soft_label", 1.5), (NITC, "weight", -1), (RITC, "smoothing", 0), (RITC, "temperature", 0.001)],
)
def test_bad_arguments_are_named(loss, name, value):
    with pytest.raises(InputError, match=rf"^{name}={value!r} [^\n]*$"):
        loss(**{name: value})


@BOTH
def test_bad_batches_are_named(loss):
    for batch, words in [
        ((IMAGES[0], TEXTS, PIDS), r"^images=\(2,\) [^\n]*$"),
        ((IMAGES, TEXTS[:1], PIDS), r"^texts=\(1, 2\) [^\n]*: \(2, 2\)$"),
        ((IMAGES, TEXTS, PIDS[:1]), r"^pids=\(1,\) [^\n]*: 2$"),
    ]:
        with pytest.raises(InputError, match=words):
            loss()(*batch)
