"""The views and platforms that SVPR-ReID goes by: given, predicted, unknown, or all the same."""

import pytest
import torch
import torch.nn.functional as F
from small_svpr import THREE_WORDS, VARIANTS, batch, features, small_svpr, step, without_dropout

from agreid_plugin.errors import InputError
from agreid_plugin.methods.svpr.text import ViewWords
from agreid_plugin.types import PLATFORMS, UNKNOWN, View


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_predicted_views_ignore_those_given(variant):
    method, data = small_svpr(variant, view="predicted").eval(), batch()
    assert (method.inference_inputs, method.view_source) == ({"images"}, "predicted")
    assert method.training_inputs == {"images", "pids", "views", "attributes"}
    outputs = method(data)
    words = outputs.predicted.argmax(dim=1)
    expected = method.backbone(data.images, words).identity
    torch.testing.assert_close(outputs.features.identity, expected)
    for views in (1 - data.views, None, torch.full((6,), UNKNOWN)):
        torch.testing.assert_close(method(data.with_(views=views)).features.identity, expected)


def test_unknown_views_are_those_of_the_predictor():
    given, guessing = small_svpr().eval(), small_svpr(view="predicted").eval()
    data = batch()
    nobody = data.with_(views=torch.full_like(data.views, UNKNOWN), platforms=torch.full_like(data.views, UNKNOWN))
    with torch.no_grad():
        predicted = guessing.predicted_views(guessing(data.only({"images"})))
        assert given.predicted_views(given(data.only({"images", "views"}))) is None
        assert given.fill_views(nobody).views.tolist() == predicted.tolist()
        half = nobody.with_(views=torch.tensor([1 - predicted[0], *[UNKNOWN] * 5]))
        assert given.fill_views(half).views.tolist() == [1 - predicted[0], *predicted[1:]]
        filled = given.fill_views(nobody).only({"images", "views"})
        torch.testing.assert_close(features(given, filled), features(guessing, data))
    assert not small_svpr(vdfe=False).predicts_views
    assert small_svpr(vdfe=False).fill_views(nobody) is nobody


def test_a_predicted_platform_fits_the_known_view():
    method, data = small_svpr(words=THREE_WORDS).eval(), batch()
    ground = data.with_(views=torch.ones_like(data.views), platforms=torch.full_like(data.views, UNKNOWN))
    with torch.no_grad():
        method.view_predictor.classifier.bias[2] += 100  # which takes everything for a drone's
        filled = method.fill_views(ground)
        assert method.fill_views(ground.with_(views=None)).views.tolist() == [View.AERIAL] * 6
    assert filled.views.tolist() == [View.GROUND] * 6
    assert PLATFORMS.index("uav") not in filled.platforms.tolist()


def test_training_goes_by_the_true_views_whatever_the_source():
    data = batch()
    given, predicted = (without_dropout(small_svpr(view=source)) for source in ("given", "predicted"))
    assert torch.equal(given(data).features.identity, predicted(data).features.identity)


def test_the_view_predictor_gives_the_towers_no_gradient():
    method, data = small_svpr(), batch()
    method.losses(method(data), data)["loss_view_predictor"].backward()
    reached = {name.split(".")[0] for name, parameter in method.named_parameters() if parameter.grad is not None}
    assert reached == {"view_predictor"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_worn_camera_with_a_word_of_its_own(variant):
    method, data = small_svpr(variant, words=THREE_WORDS), batch()
    assert method.inference_inputs == {"images", "views", "platforms"}
    assert method.training_inputs == {"images", "pids", "views", "platforms", "attributes"}
    outputs = method(data)
    assert outputs.predicted.shape == (6, 3)
    assert outputs.view.logits.shape == (6, 3)
    words = torch.tensor([2, 0, 1, 2, 0, 1])  # drone, fixed, worn
    terms = method.losses(outputs, data)
    torch.testing.assert_close(terms["loss_view_predictor"], F.cross_entropy(outputs.predicted, words))
    if variant == "paper":
        torch.testing.assert_close(terms["loss_view"], F.cross_entropy(outputs.view.logits, words))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("views", [None, torch.tensor([0, 1, UNKNOWN, 0, 1, 0])])
def test_a_view_that_is_not_there_is_asked_for(training, views):
    way_out = "training has no way around it" if training else "view='predicted' needs none"
    with pytest.raises(InputError, match=rf"^views.* SVPR-ReID needs .* of every image; {way_out}$"):
        small_svpr().train(training)(batch().with_(views=views))


@pytest.mark.parametrize("platforms", [None, torch.tensor([0, UNKNOWN, 2, 0, 1, 2])])
def test_a_platform_that_is_not_there_is_asked_for(platforms):
    with pytest.raises(InputError, match=r"^platforms.* SVPR-ReID needs .* of every image; "):
        small_svpr(words=THREE_WORDS)(batch().with_(platforms=platforms))


def test_where_platforms_do_not_count_none_is_asked_for():
    method, data = without_dropout(small_svpr()), batch()
    torch.testing.assert_close(step(method, data.with_(platforms=None)), step(method, data))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("view", list(View))
def test_everything_learns_in_a_batch_of_one_view(variant, view):
    """Every parameter has a gradient in every batch, which training in several processes asks for."""
    method = small_svpr(variant)
    step(method, batch().with_(views=torch.full((6,), view)))
    for name, parameter in method.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name


@pytest.mark.parametrize("platforms", [None, torch.tensor([0, 1, 2, UNKNOWN])])
def test_words_of_views_are_the_same_when_compiled(platforms):
    """Inside Dynamo a tensor compared with a member of `View` became the bool False."""
    words = ViewWords(THREE_WORDS) if platforms is not None else ViewWords()
    views = torch.tensor([View.AERIAL, View.GROUND, View.GROUND, UNKNOWN])
    compiled = torch.compile(words.encode, backend="eager", fullgraph=True)
    assert compiled(views, platforms).tolist() == words.encode(views, platforms).tolist()
