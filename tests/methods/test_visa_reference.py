"""ViSA's fast form against its equations as printed: features, a training step, and with modules left out."""

import itertools

import pytest
import torch
from small_visa import VARIANTS, batch, small_backbone
from torch import nn

from agreid_plugin.methods.visa import ViSA
from agreid_plugin.methods.visa.reference import ReferenceBackbone, encode_features


def assert_same_features(features, expected, tolerance: float) -> None:
    pairs = [
        (features.encoded.identity, expected.encoded.identity),
        (features.encoded.view, expected.encoded.view),
        (features.local, expected.local),
    ]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_features_equal_the_reference_form(variant, dtype, tolerance):
    backbone, data = small_backbone(variant).to(dtype), batch()
    features = backbone(data.images.to(dtype), data.views)
    assert_same_features(features, encode_features(backbone, data.images.to(dtype), data.views), tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_training_step_equals_the_reference_form(variant):
    gradients = []
    for make in (lambda backbone: backbone, ReferenceBackbone):
        backbone, data = small_backbone(variant).double(), batch()
        method = ViSA(make(backbone), 3, variant=variant).double()
        torch.manual_seed(1)
        for head in (method.head, method.local_head, method.view_head):
            nn.init.normal_(head.classifier.weight)
        for parameter in method.view_predictor.parameters():
            nn.init.normal_(parameter)
        data = data.with_(images=data.images.double())
        sum(method.losses(method(data), data).values()).backward()
        gradients.append({name: parameter.grad for name, parameter in method.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("vab", "etgm"), itertools.product([False, True], repeat=2))
@torch.no_grad()
def test_features_of_ablations_equal_the_reference_form(variant, vab, etgm):
    backbone, data = small_backbone(variant, vab, etgm=etgm).double(), batch()
    images = data.images.double()
    assert_same_features(backbone(images, data.views), encode_features(backbone, images, data.views), 1e-12)
