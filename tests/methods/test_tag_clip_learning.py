"""What TAG-CLIP learns by: the rows of Table 4, its contrasts, its temperature, and that it learns."""

import math

import pytest
import torch
import torch.nn.functional as F
from small_tag_clip import PIDS, TABLE_4, TBPS, VIEWS, batch, sentences, small, small_clip
from torch import Tensor, nn

from agreid_plugin.losses import SDMLoss
from agreid_plugin.methods.tag_clip import ImageFeatures, TAGCLIPOutputs, TextFeatures
from agreid_plugin.methods.tag_clip.method import clamp_scale
from agreid_plugin.nn.clip import CLIP
from agreid_plugin.types import Batch, View

ALIGNMENT = {"loss_nitc", "loss_ritc", "loss_nitc_local", "loss_ritc_local"}


@pytest.fixture(scope="module")
def clip() -> CLIP:
    return small_clip()


def outputs_of(images: Tensor, texts: Tensor) -> TAGCLIPOutputs:
    return TAGCLIPOutputs(ImageFeatures(images), TextFeatures(texts))


@pytest.mark.parametrize("row", TABLE_4)
def test_rows_of_table_4(clip, row):
    model, data = small(clip, **TABLE_4[row]), batch()
    names = ALIGNMENT | {"loss_id"}
    names |= {"loss_view"} if row[0] in "46" else set()
    names |= {"loss_orthogonal"} if row[0] in "56" else set()
    assert set(model.losses(model(data), data)) == names


def test_tbps_clip_is_all_switched_off(clip):
    model, data = small(clip, **TBPS), batch()
    assert set(model.losses(model(data), data)) == {"loss_nitc", "loss_ritc"}
    own = {name.split(".")[0] for name, _ in model.named_parameters()}
    assert own == {"image", "text", "logit_scale"}


@pytest.mark.parametrize("objective", ["itc", "sdm"])
@pytest.mark.parametrize("row", [*TABLE_4, "TBPS"])
def test_every_parameter_has_a_gradient(clip, row, objective):
    """Also in a batch of one view, so that processes never wait for one."""
    model = small(clip, objective=objective, **TABLE_4.get(row, TBPS))
    data = batch(views=torch.full((6,), View.GROUND))
    for number in model.image.at if row[0] in "3456" else ():
        router = model.image.tower.blocks[number].image_router
        router.weight.data.zero_()
        router.bias.data = torch.tensor([-50.0, 50.0])
    sum(model.losses(model(data), data).values()).backward()
    missing = [name for name, value in model.named_parameters() if value.requires_grad and value.grad is None]
    assert not missing


def test_an_image_router_without_its_loss_does_not_learn(clip):
    for view_loss in (True, False):
        model = small(clip, view_loss=view_loss)
        routers = [value for name, value in model.named_parameters() if "image_router" in name]
        assert len(routers) == 4
        assert all(value.requires_grad == view_loss for value in routers)


@torch.no_grad()
def test_contrast_without_soft_labels_is_that_of_clip(clip):
    model = small(clip, **TBPS)
    model.soft_label = 0.0
    model.logit_scale.fill_(math.log(7))
    images, texts = torch.randn(5, 8), torch.randn(5, 8)
    found = model.losses(outputs_of(images, texts), Batch(pids=torch.arange(5)))["loss_nitc"]
    logits = 7 * F.normalize(images) @ F.normalize(texts).T
    label = torch.arange(5)
    torch.testing.assert_close(found, (F.cross_entropy(logits, label) + F.cross_entropy(logits.T, label)) / 2)


@torch.no_grad()
def test_the_reverse_contrast_by_hand(clip):
    # Cosines are the unit matrix and the scale is 1: p = e / (1 + e) of the own, 1 - p of the other, in all four rows.
    model = small(clip, temperature=1.0, **TBPS)
    found = model.losses(outputs_of(torch.eye(2), torch.eye(2)), Batch(pids=torch.arange(2)))["loss_ritc"]
    p = math.e / (1 + math.e)
    assert found.item() == pytest.approx(p * math.log(p / 1.01) + (1 - p) * math.log((1 - p) / 0.01))


@torch.no_grad()
def test_the_soft_label_can_be_set(clip):
    model, data = small(clip), batch()
    outputs = model(data)
    found = []
    for share in (0.0, 0.25, 0.5):
        model.soft_label = share
        found.append(model.losses(outputs, data)["loss_nitc"].item())
    assert found[0] != pytest.approx(found[2])
    assert found[1] == pytest.approx((found[0] + found[2]) / 2, rel=1e-5)  # linear in the share


@torch.no_grad()
def test_distribution_matching_in_place_of_the_contrasts(clip):
    model, data = small(clip, objective="sdm"), batch()
    outputs = model(data)
    found = model.losses(outputs, data)
    assert {name for name in found if "sdm" in name} == {"loss_sdm", "loss_sdm_local"}
    assert not ALIGNMENT & set(found)
    expected = SDMLoss()(outputs.images.pooled, outputs.texts.pooled, PIDS)
    torch.testing.assert_close(found["loss_sdm"], expected)
    assert model.logit_scale is None


@torch.no_grad()
def test_identity_loss_is_the_weighted_mean_of_both(clip):
    model, data = small(clip), batch()
    nn.init.normal_(model.classifier.weight)
    outputs = model(data)
    parts = [F.cross_entropy(model.classifier(one.pooled), PIDS) for one in (outputs.images, outputs.texts)]
    torch.testing.assert_close(model.losses(outputs, data)["loss_id"], 0.5 * (parts[0] + parts[1]) / 2)
    assert model.eval()(data).image_logits is None


@torch.no_grad()
def test_weights_of_the_terms(clip):
    plain, data = small(clip), batch()
    weighted = small(clip, id_weight=0.25, view_weight=3.0, ortho_weight=50.0)
    outputs = plain(data)
    ours, theirs = (model.losses(outputs, data) for model in (plain, weighted))
    factors = dict.fromkeys(ours, 1.0) | {"loss_id": 0.5, "loss_view": 3.0, "loss_orthogonal": 0.5}
    for name, factor in factors.items():
        torch.testing.assert_close(theirs[name], factor * ours[name], msg=name)


@pytest.mark.parametrize("start", [0.07, 0.01])
def test_the_temperature_learns_from_where_it_starts(clip, start):
    """At CLIP's own 100 too, which is the bound."""
    model, data = small(clip, temperature=start), batch()
    assert clamp_scale(model.logit_scale).item() == pytest.approx(1 / start)
    sum(model.losses(model(data), data).values()).backward()
    assert model.logit_scale.grad.abs() > 0


def test_the_scale_is_held_where_it_is_used():
    logit_scale = torch.tensor(math.log(500.0), requires_grad=True)
    scale = clamp_scale(logit_scale)
    scale.backward()
    assert scale.item() <= 100
    assert logit_scale.grad.item() == pytest.approx(100)
    assert logit_scale.item() == pytest.approx(math.log(500.0))
    below = torch.tensor(math.log(20.0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.grad(clamp_scale(below), below)[0].item() == pytest.approx(20)


def test_attention_dropout_of_the_text_tower_alone(clip):
    model, tokens = small(clip, text_dropout=0.5), sentences(10, 8)
    assert {block.attn.dropout for block in model.text.blocks} == {0.5}
    assert {block.attn.dropout for block in model.image.tower.blocks} == {0.0}
    assert not model.encode_texts(tokens).pooled.equal(model.encode_texts(tokens).pooled)
    model.eval()
    assert model.encode_texts(tokens).pooled.equal(model.encode_texts(tokens).pooled)
    assert {block.attn.dropout for block in small(clip).text.blocks} == {0.05}


def test_a_few_steps_bring_pairs_together_and_views_apart(clip):
    model, data = small(clip, noise=0.0, text_dropout=0.0), batch(views=VIEWS.clamp(min=0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    history = []
    for _ in range(25):
        losses = model.losses(model(data), data)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        history.append({name: value.item() for name, value in losses.items()})
    for name in ("loss_nitc", "loss_nitc_local", "loss_view", "loss_orthogonal"):
        assert history[-1][name] < 0.7 * history[0][name], name
