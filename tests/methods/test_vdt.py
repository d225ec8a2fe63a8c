import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from agreid_plugin.losses import FeatureLoss, IdentityLoss, OrthogonalLoss, TripletLoss, ViewLoss
from agreid_plugin.methods.vdt import VDT
from agreid_plugin.nn.view_token_vit import DecoupledEncoder
from agreid_plugin.nn.vit import VisionTransformer
from agreid_plugin.types import UNKNOWN, Batch, View


def small_vdt(**arguments) -> VDT:
    """Of three identities; the view token does not start at zero here."""
    torch.manual_seed(0)
    vit = VisionTransformer((32, 16), 8, width=16, depth=3, heads=2, drop_path=0.0, extra_tokens=1)
    method = VDT(DecoupledEncoder(vit), 3, **arguments)
    nn.init.normal_(method.backbone.view_tokens, std=0.5)
    return method


def batch() -> Batch:
    images = torch.randn(6, 3, 32, 16, generator=torch.Generator().manual_seed(1))
    views = torch.tensor([View.AERIAL, View.GROUND] * 3)
    return Batch(images=images, pids=torch.tensor([0, 0, 1, 1, 2, 2]), views=views)


def test_each_term_equals_its_loss():
    method, data = small_vdt(), batch()
    outputs = method(data)
    terms, encoded = method.losses(outputs, data), outputs.encoded
    expected = {
        "loss_cls_id": IdentityLoss(over_nonzero=True)(outputs.identity.logits, data.pids),
        "loss_triplet_id": TripletLoss()(encoded.identity, data.pids),
        "loss_view": 0.001 * ViewLoss()(outputs.view.logits, data.views),
        "loss_orthogonal": 0.001 * OrthogonalLoss()(encoded.identity, encoded.view),
    }
    assert list(terms) == list(expected)
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name], msg=name)


def test_the_released_losses():
    method, data = small_vdt(), batch()
    outputs = method(data)
    certain = torch.nn.functional.one_hot(data.pids, 3) * 200.0
    certain[0] = torch.tensor([0.0, 0.0, -200.0])  # the one image in doubt, between two: ln 2
    outputs = replace(outputs, identity=replace(outputs.identity, logits=certain))
    assert method.losses(outputs, data)["loss_cls_id"].item() == pytest.approx(math.log(2))


def test_losses_of_ones_own():
    method, data = small_vdt(objectives=nn.ModuleDict({"far": FeatureLoss(TripletLoss(margin=2.0))})), batch()
    terms = method.losses(method(data), data)
    assert list(terms) == ["loss_far_id", "loss_view", "loss_orthogonal"]


def test_one_step_reaches_every_parameter():
    method, data = small_vdt(), batch()
    sum(method.losses(method(data), data).values()).backward()
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


def test_the_heads_see_identity_and_view():
    method, data = small_vdt(), batch()
    outputs = method(data)
    assert torch.equal(outputs.encoded.identity, outputs.encoded.cls - outputs.encoded.view)
    assert outputs.identity.features is outputs.encoded.identity
    assert outputs.view.features is outputs.encoded.view
    assert outputs.identity.logits.shape == (6, 3)
    assert outputs.view.logits.shape == (6, 2)


@torch.no_grad()
def test_features_depend_on_images_alone():
    method, data = small_vdt().eval(), batch()
    features = method.embed(method(data))
    assert features.shape == (6, 16)
    assert method.inference_inputs == {"images"}
    assert method.view_source == ""
    others = [
        data.only(method.inference_inputs),
        data.with_(pids=data.pids.flip(0)),
        data.with_(views=torch.full((6,), UNKNOWN)),
    ]
    for other in others:
        assert torch.equal(method.embed(method(other)), features)


@torch.no_grad()
def test_features_are_normalized_identity_features():
    method, data = small_vdt().eval(), batch()
    encoded = method.backbone(data.images)
    torch.testing.assert_close(method.embed(method(data)), method.head.norm(encoded.cls - encoded.view))


@pytest.mark.parametrize(("neck_sees_cls", "tracked"), [(True, 2), (False, 1)])
@torch.no_grad()
def test_what_the_norm_keeps_by_hand(neck_sees_cls, tracked):
    method, data = small_vdt(neck_sees_cls=neck_sees_cls), batch()
    encoded = method(data).encoded
    # From 0, a tenth of the way to the mean of the identity features, then a tenth to that of the class tokens.
    mean = 0.1 * encoded.identity.mean(dim=0)
    mean = 0.9 * mean + 0.1 * encoded.cls.mean(dim=0) if neck_sees_cls else mean
    assert method.head.norm.num_batches_tracked == tracked
    assert method.view_head.norm.num_batches_tracked == 1
    torch.testing.assert_close(method.head.norm.running_mean, mean)
    method.eval()(data)
    assert method.head.norm.num_batches_tracked == tracked


def test_a_batch_of_one_view():
    method, data = small_vdt(), batch().with_(views=torch.full((6,), View.GROUND))
    sum(method.losses(method(data), data).values()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in method.parameters() if parameter.requires_grad)
