"""Viewpoint decoupling of TAG-CLIP: CLS and view token apart, and routers that tell the views."""

import pytest
import torch
import torch.nn.functional as F
from small_tag_clip import VIEWS, batch, small, small_clip

from agreid_plugin.methods.tag_clip import BlockRouting, Decoupling, ImageFeatures, OrthogonalHinge, TAGCLIPOutputs
from agreid_plugin.nn.clip import CLIP
from agreid_plugin.types import UNKNOWN, Batch, View


@pytest.fixture(scope="module")
def clip() -> CLIP:
    return small_clip()


def routed(logits: list[list[float]]) -> BlockRouting:
    return BlockRouting(torch.zeros(0), torch.zeros(0), torch.zeros(0), torch.tensor(logits))


@pytest.mark.parametrize(
    ("cls", "view", "expected"),
    [
        ([[3.0, 4.0]], [[4.0, 3.0]], 100 * (0.96 - 0.1)),  # cos = 24 / 25
        ([[3.0, 4.0]], [[-4.0, -3.0]], 100 * (0.96 - 0.1)),
        ([[1.0, 0.0]], [[0.05, 1.0]], 0.0),  # within the margin
        ([[1.0, 0.0], [3.0, 4.0]], [[0.0, 1.0], [4.0, 3.0]], 50 * (0.96 - 0.1)),
    ],
)
def test_orthogonality_by_hand(cls, view, expected):
    found = OrthogonalHinge(margin=0.1)(torch.tensor(cls), torch.tensor(view))
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_the_slope_leads_to_orthogonality_from_both_sides():
    cls = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    view = torch.tensor([[0.6, 0.8], [-0.6, 0.8], [0.01, 1.0]], requires_grad=True)
    OrthogonalHinge(margin=0.1)(cls, view).backward()
    assert view.grad[0, 0] > 0
    assert view.grad[1, 0] < 0
    assert (view.grad[2] == 0).all()


def test_gradients_of_orthogonality():
    cls, view = (torch.randn(4, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(OrthogonalHinge(), (cls, view))


def test_an_empty_batch_is_a_zero_that_keeps_the_graph():
    cls, view = (torch.zeros(0, 4, requires_grad=True) for _ in range(2))
    loss = OrthogonalHinge()(cls, view)
    loss.backward()
    assert loss.item() == 0


@torch.no_grad()
def test_view_loss_is_the_mean_over_blocks_of_known_views(clip):
    model, data = small(clip, ortho_loss=False), batch()
    outputs = model(data)
    known = VIEWS != UNKNOWN
    expected = [F.cross_entropy(one.logits[known], VIEWS[known]) for one in outputs.images.routed]
    assert len(expected) == 2
    torch.testing.assert_close(model.losses(outputs, data)["loss_view"], torch.stack(expected).mean())


@torch.no_grad()
def test_orthogonality_is_that_of_what_enters_the_experts(clip):
    model, data = small(clip), batch()
    outputs = model(data)
    cosines = [F.cosine_similarity(one.cls, one.view).abs() for one in outputs.images.routed]
    expected = 100 * (torch.stack(cosines) - 0.001).relu().mean()
    torch.testing.assert_close(model.losses(outputs, data)["loss_orthogonal"], expected)


def test_no_view_known_is_a_zero_that_keeps_the_graph(clip):
    model, data = small(clip), batch(views=torch.full((6,), UNKNOWN))
    loss = model.losses(model(data), data)["loss_view"]
    loss.backward()
    assert loss.item() == 0


@torch.no_grad()
def test_nobody_tells_the_views_of_sentences(clip):
    model, data = small(clip).eval(), batch()
    assert model.predicted_views(model(Batch(tokens=data.tokens))) is None


def test_views_are_predicted_by_the_mean_probability_of_the_blocks(clip):
    # Aerial by 1.00, 0.05 and 0.05, mean 0.37, though its logits add up to more; then by 0.98, 0.73 and 0.27.
    logits = ([[10.0, 0.0], [4.0, 0.0]], [[0.0, 3.0], [1.0, 0.0]], [[0.0, 3.0], [0.0, 1.0]])
    outputs = TAGCLIPOutputs(ImageFeatures(torch.zeros(2, 1), routed=tuple(map(routed, logits))))
    assert small(clip).predicted_views(outputs).tolist() == [View.GROUND, View.AERIAL]
    assert small(clip, view_loss=False).predicted_views(outputs) is None


def test_view_accuracy():
    views = torch.tensor([View.AERIAL, View.GROUND, UNKNOWN])
    first, second = routed([[2.0, 1.0], [2.0, 1.0], [0.0, 1.0]]), routed([[2.0, 1.0], [1.0, 2.0], [0.0, 1.0]])
    outputs = TAGCLIPOutputs(ImageFeatures(torch.zeros(3, 1), routed=(first, second)))
    assert outputs.view_accuracy(views).item() == pytest.approx(3 / 4)
    assert outputs.view_accuracy(torch.full((3,), UNKNOWN)).isnan()
    assert TAGCLIPOutputs(ImageFeatures(torch.zeros(3, 1))).view_accuracy(views).isnan()
    assert TAGCLIPOutputs().view_accuracy(views).isnan()  # of sentences


def test_decoupling_without_losses_is_nothing():
    assert Decoupling(None, None)([], None) == {}
