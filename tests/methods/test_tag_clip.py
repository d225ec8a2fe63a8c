import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError
from agreid_plugin.losses.sdm import SDMLoss
from agreid_plugin.methods.tag_clip import (
    TAGCLIP,
    Decoupling,
    Features,
    ImageFeatures,
    OrthogonalHinge,
    Routed,
    TAGCLIPOutputs,
    TextFeatures,
    read_texts,
)
from agreid_plugin.methods.tag_clip.literal import run_densely
from agreid_plugin.methods.tag_clip.method import held
from agreid_plugin.nn.clip import CLIP, EOT, SOT
from agreid_plugin.nn.clip_build import build_clip
from agreid_plugin.nn.token_selection import SelectedTokens
from agreid_plugin.types import UNKNOWN, Batch, View

SHAPE = {"patch_size": 8, "width": 16, "heads": 2, "layers": 4, "embed_dim": 8}
TEXT = {"text_width": 8, "text_heads": 2, "text_layers": 2, "text_length": 12}
PIDS = torch.tensor([0, 0, 1, 2, 2, 2])
VIEWS = torch.tensor([View.AERIAL, View.GROUND, UNKNOWN, View.AERIAL, View.GROUND, View.GROUND])
NO_DECOUPLING = {"view_loss": False, "ortho_loss": False}
TABLE_4 = {
    "1 ViT": {"block": "vit", **NO_DECOUPLING},
    "2 MoE": {"block": "moe", **NO_DECOUPLING},
    "3 HR-MoE": NO_DECOUPLING,
    "4 with L_view": {"ortho_loss": False},
    "5 with L_ortho": {"view_loss": False},
    "6 all": {},
}
TBPS = {"block": "vit", **NO_DECOUPLING, "tse": False, "id_loss": False}
ALIGNMENT = {"loss_nitc", "loss_ritc", "loss_nitc_local", "loss_ritc_local"}


@pytest.fixture(scope="module")
def clip() -> CLIP:
    torch.manual_seed(0)
    return build_clip("ViT-B-16", image_size=(32, 16), **SHAPE, **TEXT)


def small(clip: CLIP, **arguments) -> TAGCLIP:
    """Of three identities, with towers of its own and routers that have something to decide by."""
    torch.manual_seed(0)
    defaults = {"at": (1, 2), "local_width": 10}
    model = TAGCLIP(copy.deepcopy(clip), 3, **defaults | arguments)
    for name, parameter in model.named_parameters():
        if "router" in name or ".experts." in name:
            parameter.data += 0.3 * torch.randn(parameter.shape)
    return model


def sentences(*lengths: int) -> Tensor:
    """Sentences of so many words."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.zeros(len(lengths), 12, dtype=torch.long)
    for row, length in zip(rows, lengths, strict=True):
        words = torch.randint(1, SOT, (length,), generator=generator).tolist()
        row[: length + 2] = torch.tensor([SOT, *words, EOT])
    return rows


def batch(**values) -> Batch:
    images = torch.randn(6, 3, 32, 16, generator=torch.Generator().manual_seed(1))
    tokens = sentences(10, 3, 1, 7, 2, 5)
    return Batch(images=images, pids=PIDS, views=VIEWS, tokens=tokens).with_(**values)


def routed(logits: list[list[float]]) -> Routed:
    return Routed(torch.zeros(0), torch.zeros(0), torch.zeros(0), torch.tensor(logits))


def outputs_of(images: Tensor, texts: Tensor) -> TAGCLIPOutputs:
    return TAGCLIPOutputs(ImageFeatures(images), TextFeatures(texts))


# Comparing


@torch.no_grad()
def test_one_dot_product_is_the_mean_of_both_cosines(clip):
    model, data = small(clip).eval(), batch()
    images, texts = model.encode_images(data.images), model.encode_texts(data.tokens[:4])
    expected = torch.empty(4, 6)
    for row in range(4):
        for column in range(6):
            whole = F.cosine_similarity(texts.whole[row], images.whole[column], dim=0)
            local = F.cosine_similarity(texts.selected.features[row], images.selected.features[column], dim=0)
            expected[row, column] = (whole + local) / 2  # Eq. 14
    torch.testing.assert_close(texts.embedding @ images.embedding.T, expected)
    assert images.embedding.shape == (6, 8 + 10)
    torch.testing.assert_close(images.embedding.norm(dim=1), torch.ones(6))


@torch.no_grad()
def test_without_local_features_it_is_the_one_cosine(clip):
    model, data = small(clip, **TBPS).eval(), batch()
    images, texts = model.encode_images(data.images), model.encode_texts(data.tokens)
    expected = F.cosine_similarity(texts.whole.unsqueeze(1), images.whole.unsqueeze(0), dim=2)
    torch.testing.assert_close(texts.embedding @ images.embedding.T, expected)


@torch.no_grad()
def test_images_and_sentences_can_come_alone(clip):
    model, data = small(clip).eval(), batch()
    both = model(data.only(model.inference_inputs))
    images, texts = model(Batch(images=data.images)), model(Batch(tokens=data.tokens))
    assert model.embed(images).equal(both.images.embedding)
    assert model.embed(both).equal(both.images.embedding)
    assert model.embed(texts).equal(both.texts.embedding)
    assert images.texts is None
    assert texts.images is None


@torch.no_grad()
def test_no_label_reaches_a_test_feature(clip):
    model, data = small(clip).eval(), batch()
    other = data.with_(pids=PIDS.flip(0), views=1 - VIEWS.clamp(min=0))
    assert model.embed(model(data)).equal(model.embed(model(other)))
    assert model.view_source == "predicted"
    assert small(clip, **TBPS).view_source == ""


@torch.no_grad()
def test_evaluation_is_deterministic(clip):
    model, data = small(clip).eval(), batch()
    first, second = model(data), model(data)
    assert first.images.embedding.equal(second.images.embedding)
    assert first.texts.embedding.equal(second.texts.embedding)


@torch.no_grad()
def test_images_and_words_are_what_is_selected(clip):
    model, data = small(clip).eval(), batch()
    outputs = model(data)
    assert outputs.images.selected.indices.shape == (6, 2)  # of 8 patches
    assert (outputs.images.selected.indices > 0).all()
    texts = outputs.texts.selected
    assert texts.real.sum(dim=1).tolist() == [3, 3, 1, 3, 2, 3]  # of 10 words at most
    for indices, real, words in zip(texts.indices, texts.real, (10, 3, 1, 7, 2, 5), strict=True):
        assert all(1 <= place <= words for place in indices[real].tolist())


@torch.no_grad()
def test_experts_in_the_last_block_leave_the_view_token_out_of_the_selection(clip):
    model = small(clip, at=(1, 3), share=1.0).eval()
    indices = model.encode_images(batch().images).selected.indices
    assert indices.sort(dim=1).values.tolist() == [list(range(1, 9))] * 6


@pytest.mark.parametrize("training", [True, False])
def test_sentences_without_words_are_finite(clip, training):
    model = small(clip).train(training)
    data = batch(tokens=sentences(0, 0, 3, 0, 1, 0))
    outputs = model(data)
    assert outputs.texts.embedding.isfinite().all()
    torch.testing.assert_close(outputs.texts.embedding.norm(dim=1), torch.ones(6))
    if training:
        sum(model.losses(outputs, data).values()).backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@torch.no_grad()
def test_padding_does_not_matter(clip):
    model, tokens = small(clip).eval(), sentences(3, 4)
    cut = model.encode_texts(tokens[:, :7]).embedding
    torch.testing.assert_close(cut, model.encode_texts(tokens).embedding)


@torch.no_grad()
def test_one_pass_over_a_sentence_gives_what_the_tower_does(clip):
    tokens, tower = sentences(10, 3, 1), clip.text
    found = read_texts(tower, tokens)
    torch.testing.assert_close(found.tokens, tower(tokens))
    torch.testing.assert_close(found.attention, tower.eos_attention(tokens))
    assert read_texts(tower, tokens, attention=False).attention is None
    with pytest.raises(InputError, match=r"tokens=\(1, 13\) should be \(sentences, 1 \.\. 12\)"):
        read_texts(tower, torch.ones(1, 13, dtype=torch.long))


def test_features_are_precise_inside_autocast(clip):
    model, data = small(clip), batch()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(data)
        losses = model.losses(outputs, data)
    for features in (outputs.images, outputs.texts):
        assert features.whole.dtype == features.selected.features.dtype == torch.float32
    assert all(value.dtype == torch.float32 and value.isfinite() for value in losses.values())


def test_a_feature_by_hand():
    whole = torch.tensor([[3.0, 4.0]])
    selected = SelectedTokens(torch.tensor([[0.0, 2.0]]), torch.zeros(1, 1), torch.ones(1, 1))
    expected = math.sqrt(0.5) * torch.tensor([[0.6, 0.8, 0.0, 1.0]])
    torch.testing.assert_close(Features(whole, selected).embedding, expected)


@torch.no_grad()
def test_the_dense_form_can_be_exported(clip):
    """With one graph for any routing."""
    model, data = small(clip).eval(), batch()
    expected = model.encode_images(data.images)
    assert {view for one in expected.routed for view in one.views.tolist()} == {0, 1}
    run_densely(model)
    graph = torch.export.export(EmbedImages(model), (torch.randn(6, 3, 32, 16),)).module()
    torch.testing.assert_close(graph(data.images), expected.embedding, rtol=0, atol=1e-5)


class EmbedImages(nn.Module):
    def __init__(self, model: TAGCLIP):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model.encode_images(images).embedding


# Learning


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
    expected = SDMLoss()(outputs.images.whole, outputs.texts.whole, PIDS)
    torch.testing.assert_close(found["loss_sdm"], expected)
    assert model.logit_scale is None


@torch.no_grad()
def test_identity_loss_is_the_weighted_mean_of_both(clip):
    model, data = small(clip), batch()
    nn.init.normal_(model.classifier.weight)
    outputs = model(data)
    parts = [F.cross_entropy(model.classifier(one.whole), PIDS) for one in (outputs.images, outputs.texts)]
    torch.testing.assert_close(model.losses(outputs, data)["loss_id"], 0.5 * (parts[0] + parts[1]) / 2)
    assert model.eval()(data).image_logits is None


@pytest.mark.parametrize("start", [0.07, 0.01])
def test_the_temperature_learns_from_where_it_starts(clip, start):
    """At CLIP's own 100 too, which is the bound."""
    model, data = small(clip, temperature=start), batch()
    assert held(model.logit_scale).item() == pytest.approx(1 / start)
    sum(model.losses(model(data), data).values()).backward()
    assert model.logit_scale.grad.abs() > 0


def test_the_scale_is_held_where_it_is_used():
    logit_scale = torch.tensor(math.log(500.0), requires_grad=True)
    scale = held(logit_scale)
    scale.backward()
    assert scale.item() <= 100
    assert logit_scale.grad.item() == pytest.approx(100)
    assert logit_scale.item() == pytest.approx(math.log(500.0))
    below = torch.tensor(math.log(20.0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.grad(held(below), below)[0].item() == pytest.approx(20)


def test_attention_dropout_of_the_text_tower_alone(clip):
    model, tokens = small(clip, text_dropout=0.5), sentences(10, 8)
    assert {block.attn.dropout for block in model.text.blocks} == {0.5}
    assert {block.attn.dropout for block in model.image.tower.blocks} == {0.0}
    assert not model.encode_texts(tokens).whole.equal(model.encode_texts(tokens).whole)
    model.eval()
    assert model.encode_texts(tokens).whole.equal(model.encode_texts(tokens).whole)
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


# Decoupling


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


def test_view_accuracy():
    views = torch.tensor([View.AERIAL, View.GROUND, UNKNOWN])
    first, second = routed([[2.0, 1.0], [2.0, 1.0], [0.0, 1.0]]), routed([[2.0, 1.0], [1.0, 2.0], [0.0, 1.0]])
    outputs = TAGCLIPOutputs(ImageFeatures(torch.zeros(3, 1), routed=(first, second)))
    assert outputs.view_accuracy(views).item() == pytest.approx(3 / 4)
    assert outputs.view_accuracy(torch.full((3,), UNKNOWN)).isnan()
    assert TAGCLIPOutputs(ImageFeatures(torch.zeros(3, 1))).view_accuracy(views).isnan()


# What is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"block": "vit"}, "view_loss and ortho_loss need block='hr_moe', not 'vit': set both to False"),
        ({"block": "moe", "view_loss": False}, "need block='hr_moe', not 'moe'"),
        ({"block": "dense", **NO_DECOUPLING}, "block 'dense' unknown"),
        ({"objective": "tal"}, "objective 'tal' unknown; known: itc, sdm"),
        ({"temperature": 0.001}, r"temperature=0\.001 should be between 0\.01 and 1"),
        ({"soft_label": 2.0}, r"soft_label=2\.0 should be between 0 and 1"),
        ({"text_dropout": -0.1}, r"text_dropout=-0\.1 should be between 0 and 1"),
        ({"margin": 2.0}, r"margin=2\.0 should be between 0 and 1"),
        ({"at": (6, 7, 8)}, r"at=\[6, 7, 8\] should be blocks with experts, each once: 0 \.\. 3"),
    ],
)
def test_bad_arguments_are_refused(clip, arguments, message):
    with pytest.raises(InputError, match=message):
        small(clip, **arguments)


def test_bad_batches_are_refused(clip):
    model, data = small(clip), batch()
    with pytest.raises(InputError, match="the batch has neither images nor tokens"):
        model(Batch(pids=PIDS))
    with pytest.raises(InputError, match="TAG-CLIP learns from pairs: give the batch images and tokens"):
        model.losses(model(data.with_(tokens=None)), data)
    with pytest.raises(InputError, match="views=None, but the view loss needs them"):
        model.losses(model(data), data.with_(views=None))
    with pytest.raises(InputError, match=r"view=\(2, 3\) should have the shape of cls"):
        OrthogonalHinge()(torch.zeros(2, 4), torch.zeros(2, 3))


def test_decoupling_without_losses_is_nothing():
    assert Decoupling(None, None)([], None) == {}
