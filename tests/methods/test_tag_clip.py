"""TAG-CLIP as a method: how images and sentences are compared, what is selected, and what is refused."""

import math

import pytest
import torch
import torch.nn.functional as F
from small_tag_clip import NO_DECOUPLING, PIDS, TBPS, VIEWS, batch, sentences, small, small_clip
from torch import Tensor, nn

from agreid_plugin.errors import InputError
from agreid_plugin.methods.tag_clip import TAGCLIP, Features, OrthogonalHinge, read_texts
from agreid_plugin.nn.clip import CLIP
from agreid_plugin.nn.experts import make_traceable
from agreid_plugin.nn.token_selection import SelectedTokens
from agreid_plugin.types import Batch


@pytest.fixture(scope="module")
def clip() -> CLIP:
    return small_clip()


# Comparing


@torch.no_grad()
def test_one_dot_product_is_the_mean_of_both_cosines(clip):
    model, data = small(clip).eval(), batch()
    images, texts = model.encode_images(data.images), model.encode_texts(data.tokens[:4])
    expected = torch.empty(4, 6)
    for row in range(4):
        for column in range(6):
            pooled = F.cosine_similarity(texts.pooled[row], images.pooled[column], dim=0)
            local = F.cosine_similarity(texts.selected.features[row], images.selected.features[column], dim=0)
            expected[row, column] = (pooled + local) / 2  # Eq. 14
    torch.testing.assert_close(texts.embedding @ images.embedding.T, expected)
    assert images.embedding.shape == (6, 8 + 10)
    torch.testing.assert_close(images.embedding.norm(dim=1), torch.ones(6))


@torch.no_grad()
def test_without_local_features_it_is_the_one_cosine(clip):
    model, data = small(clip, **TBPS).eval(), batch()
    images, texts = model.encode_images(data.images), model.encode_texts(data.tokens)
    expected = F.cosine_similarity(texts.pooled.unsqueeze(1), images.pooled.unsqueeze(0), dim=2)
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
    model = small(clip, at=(1, 3), tse_share=1.0).eval()
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
    torch.testing.assert_close(found.attention, tower.with_attention(tokens)[1])
    assert read_texts(tower, tokens, attention=False).attention is None
    with pytest.raises(InputError, match=r"tokens=\(1, 13\) should be \(sentences, 1 \.\. 12\)"):
        read_texts(tower, torch.ones(1, 13, dtype=torch.long))


def test_features_are_precise_inside_autocast(clip):
    model, data = small(clip), batch()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(data)
        losses = model.losses(outputs, data)
    for features in (outputs.images, outputs.texts):
        assert features.pooled.dtype == features.selected.features.dtype == torch.float32
    assert all(value.dtype == torch.float32 and value.isfinite() for value in losses.values())


def test_a_feature_by_hand():
    pooled = torch.tensor([[3.0, 4.0]])
    selected = SelectedTokens(torch.tensor([[0.0, 2.0]]), torch.zeros(1, 1), torch.ones(1, 1))
    expected = math.sqrt(0.5) * torch.tensor([[0.6, 0.8, 0.0, 1.0]])
    torch.testing.assert_close(Features(pooled, selected).embedding, expected)


@pytest.mark.slow
@torch.no_grad()
def test_the_dense_form_can_be_exported(clip):
    """With one graph for any routing."""
    model, data = small(clip).eval(), batch()
    expected = model.encode_images(data.images)
    assert {view for one in expected.routed for view in one.views.tolist()} == {0, 1}
    make_traceable(model)
    graph = torch.export.export(EmbedImages(model), (torch.randn(6, 3, 32, 16),)).module()
    torch.testing.assert_close(graph(data.images), expected.embedding, rtol=0, atol=1e-5)


class EmbedImages(nn.Module):
    def __init__(self, model: TAGCLIP):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model.encode_images(images).embedding


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
    with pytest.raises(InputError, match="pids=None should be given"):
        model.losses(model(data), data.with_(pids=None))
    with pytest.raises(InputError, match="views=None, but the view loss needs them"):
        model.losses(model(data), data.with_(views=None))
    with pytest.raises(InputError, match=r"view=\(2, 3\) should have the shape of cls"):
        OrthogonalHinge()(torch.zeros(2, 4), torch.zeros(2, 3))
