"""VIF-AGReID: Eqs. 11-13 by hand, in float32 under autocast, and any backbone."""

import math

import pytest
import torch
from torch import nn

from agreid_plugin.errors import InputError
from agreid_plugin.losses import FeatureLoss, IdentityLoss, LogitLoss, TripletLoss
from agreid_plugin.methods.vif import VIF, VIFOutputs
from agreid_plugin.nn.view_token_vit import DecoupledEncoder, PlainEncoder
from agreid_plugin.nn.vit import VisionTransformer
from agreid_plugin.types import Batch, HeadOutputs

PIDS = torch.tensor([0, 0, 1, 1])
FEATURES = torch.tensor([[4.0, 0.0], [0.0, 3.0], [4.0, 3.0], [8.0, 6.0]])
LOGITS = torch.tensor([[3.0, 1.0], [1.0, 1.0], [1.0, 3.0], [1.0, 1.0]]).log()
L_ID = math.log(8 / 3) / 2  # the right person has 3/4, 1/2, 3/4, 1/2: (ln 4/3 + ln 2) / 2
# distances to the own person 5 each, to the other 3, 4, 3 and sqrt 52
L_TRI = (2 * math.log(1 + math.exp(2)) + math.log(1 + math.e) + math.log(1 + math.exp(5 - math.sqrt(52)))) / 4
L_VIAL = 2.3 / 6  # cosines 0 and 1 of one person: 1.5 + 0; 0.8, 0.8, 0.6, 0.6 of two: 0.3 + 0.3 + 0.1 + 0.1; 6 pairs


def small_vif(**arguments) -> VIF:
    """Of two identities."""
    torch.manual_seed(0)
    return VIF(PlainEncoder(VisionTransformer((32, 16), 8, width=16, depth=2, heads=2, drop_path=0.0)), 2, **arguments)


def batch() -> Batch:
    return Batch(images=torch.randn(4, 3, 32, 16, generator=torch.Generator().manual_seed(1)), pids=PIDS)


def outputs(features: torch.Tensor = FEATURES, logits: torch.Tensor = LOGITS) -> VIFOutputs:
    return VIFOutputs(HeadOutputs(features, features, logits))


def values(method: VIF) -> dict[str, float]:
    return {name: term.item() for name, term in method.losses(outputs(), batch()).items()}


def test_the_terms_by_hand():
    expected = {"loss_cls": L_ID, "loss_triplet": L_TRI, "loss_vial": L_VIAL}
    assert values(small_vif()) == pytest.approx(expected)


def test_the_total_by_hand_with_gamma_and_delta():
    triplets = TripletLoss(weight=2.0, margin=0.5)  # gamma = 2; 2.5, 1.5, 2.5 and 0 to pay: 6.5 / 4
    objectives = nn.ModuleDict({"cls": LogitLoss(IdentityLoss()), "triplet": FeatureLoss(triplets)})
    method = small_vif(objectives=objectives, vial_weight=3.0)
    assert sum(values(method).values()) == pytest.approx(L_ID + 2 * 6.5 / 4 + 3 * L_VIAL)


def test_without_vial_it_is_the_vit_baseline():
    assert values(small_vif(vial_weight=0.0)) == pytest.approx({"loss_cls": L_ID, "loss_triplet": L_TRI})


def test_table_5_of_the_paper():
    # without hard negatives the two pairs of one person are averaged; without the penalty they cost 1 - cos
    assert values(small_vif(hard_mining=False))["loss_vial"] == pytest.approx(1.5 / 2)
    assert values(small_vif(hard_mining=False, lambda_=0.0))["loss_vial"] == pytest.approx(1 / 2)
    assert values(small_vif(beta=0.0, margin=0.3))["loss_vial"] == pytest.approx((1.5 + 0.1 + 0.1) / 4)


def test_losses_are_computed_in_float32_under_autocast():
    features, logits = (100 * FEATURES + 0.1).bfloat16(), LOGITS.bfloat16()
    method = small_vif()
    exact = method.losses(outputs(features.double(), logits.double()), batch())
    with torch.autocast("cpu", torch.bfloat16):
        found = method.losses(outputs(features, logits), batch())
    for name, term in found.items():
        assert term.dtype == torch.float32, name
        torch.testing.assert_close(term.double(), exact[name], rtol=1e-5, atol=1e-6, msg=name)


def test_a_step_under_autocast_reaches_every_parameter():
    method, data = small_vif(), batch()
    with torch.autocast("cpu", torch.bfloat16):
        found = method(data)
        assert found.identity.logits.dtype == torch.bfloat16
        terms = method.losses(found, data)
    sum(terms.values()).backward()
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


@torch.no_grad()
def test_test_features_are_those_behind_the_norm_and_of_images_only():
    method, data = small_vif().eval(), batch()
    found = method.embed(method(data.only(method.inference_inputs)))
    torch.testing.assert_close(found, method.head.norm(method.backbone(data.images).cls))


class Foreign(nn.Module):
    """A network of another toolbox: its features in the form that a test asks for."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, images):
        return self.form(images.mean(dim=(2, 3)))


@pytest.mark.parametrize(
    "form",
    [
        lambda vectors: vectors,
        lambda vectors: vectors[..., None, None].expand(-1, -1, 4, 2),
        lambda vectors: (vectors[:, :1], vectors),
    ],
    ids=["vectors", "maps", "several"],
)
def test_backbones_of_other_toolboxes(form):
    method, data = VIF(Foreign(form), 2, width=3).eval(), batch()
    torch.testing.assert_close(method(data).identity.features, data.images.mean(dim=(2, 3)))


def test_another_of_our_backbones():
    encoder = DecoupledEncoder(VisionTransformer((32, 16), 8, width=16, depth=2, heads=2, extra_tokens=1))
    method, data = VIF(encoder, 2).eval(), batch()
    torch.testing.assert_close(method(data).identity.features, encoder(data.images).identity)


@pytest.mark.parametrize(
    ("width", "words"),
    [(None, "width=None, but Foreign does not say how wide"), (4, "width=4, but the features of the backbone have 3")],
)
def test_a_wrong_width_is_refused(width, words):
    with pytest.raises(InputError, match=words):
        VIF(Foreign(lambda vectors: vectors), 2, width=width)(batch())


def test_vial_is_not_computed_twice():
    with pytest.raises(InputError, match="objectives has vial, which VIF has built in"):
        small_vif(objectives=nn.ModuleDict({"vial": FeatureLoss(TripletLoss())}))
