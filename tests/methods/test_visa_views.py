"""The views that ViSA goes by: given, predicted, unknown, or all the same."""

import pytest
import torch
from small_visa import batch, small_visa

from agreid_plugin.errors import InputError
from agreid_plugin.types import UNKNOWN, View


@torch.no_grad()
def test_predicted_views_ignore_those_given():
    method, data = small_visa(view="predicted").eval(), batch()
    assert (method.inference_inputs, method.view_source) == ({"images"}, "predicted")
    assert method.training_inputs == {"images", "pids", "views"}
    outputs = method(data)
    views = outputs.predicted.argmax(dim=1)
    expected = method.backbone(data.images, views).local
    assert torch.equal(outputs.features.local, expected)
    for other in (
        data.with_(views=1 - data.views),
        data.with_(views=None),
        data.with_(views=torch.full((6,), UNKNOWN)),
    ):
        assert torch.equal(method(other).features.local, expected)


def test_training_goes_by_the_true_views_whatever_the_source():
    data = batch()
    given, predicted = small_visa(view="given"), small_visa(view="predicted")
    assert torch.equal(given(data).features.local, predicted(data).features.local)


@torch.no_grad()
def test_views_may_be_words():
    method, data = small_visa().eval(), batch()
    words = [View(view).word for view in data.views.tolist()]
    assert torch.equal(method.embed(method(data.with_(views=words))), method.embed(method(data)))


def test_given_views_matter():
    method, data = small_visa().eval(), batch()
    features, swapped = method(data).features, method(data.with_(views=1 - data.views)).features
    assert not torch.isclose(features.encoded.identity, swapped.encoded.identity).all(dim=1).any()
    assert not torch.isclose(features.queries.specific, swapped.queries.specific).flatten(1).all(dim=1).any()


def test_the_view_predictor_gives_the_encoder_no_gradient():
    method, data = small_visa(), batch()
    method.losses(method(data), data)["loss_view_predictor"].backward()
    reached = {name.split(".")[0] for name, parameter in method.named_parameters() if parameter.grad is not None}
    assert reached == {"view_predictor"}


@pytest.mark.parametrize("view", list(View))
def test_a_batch_of_one_view(view):
    method, data = small_visa(), batch().with_(views=torch.full((6,), view))
    sum(method.losses(method(data), data).values()).backward()
    for name, parameter in method.named_parameters():
        assert not parameter.requires_grad or parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("views", [None, torch.tensor([0, 1, UNKNOWN, 0, 1, 0])])
def test_a_view_that_is_not_there_is_asked_for(training, views):
    way_out = "training has no way around it" if training else "view='predicted' needs none"
    with pytest.raises(InputError, match=rf"^views.* ViSA needs the view of every image; {way_out}$"):
        small_visa().train(training)(batch().with_(views=views))


def test_unknown_views_are_those_of_the_predictor():
    given, guessing = small_visa().eval(), small_visa(view="predicted").eval()
    data = batch()
    nobody = data.with_(views=torch.full_like(data.views, UNKNOWN))
    with torch.no_grad():
        predicted = guessing.predicted_views(guessing(data.only({"images"})))
        assert given.predicted_views(given(data.only({"images", "views"}))) is None
        assert given.fill_views(nobody).views.tolist() == predicted.tolist()
        mixed = torch.where(torch.arange(len(predicted)) == 0, 1 - predicted, UNKNOWN)
        assert given.fill_views(data.with_(views=mixed)).views.tolist() == [1 - predicted[0], *predicted[1:]]
    plain = small_visa(modules={"vab": False, "etgm": False})
    assert not plain.predicts_views
    assert plain.fill_views(nobody) is nobody


@torch.no_grad()
def test_patches_come_with_their_positions():
    method, data = small_visa().eval(), batch()
    vit = method.backbone.encoder.vit
    expected = vit.patches(data.images) + vit.pos_embed[:, 2:]  # behind those of CLS and the view token
    torch.testing.assert_close(method.embed_patches(data.images), expected)
    torch.testing.assert_close(
        method.fill_views(data.with_(views=None)).views, method.view_predictor(expected).argmax(1)
    )
