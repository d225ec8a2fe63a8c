"""SVPR-ReID as a method: its variants, Table 5, what it may see, and what stays frozen."""

import copy
import itertools

import pytest
import torch
from small_svpr import VARIANTS, batch, features, small_clip, small_svpr, step
from torch import nn

from agreid_plugin.errors import InputError
from agreid_plugin.methods.svpr import SVPR, GatedRefinement, MomentumRefinement
from agreid_plugin.types import Batch

TABLE_5 = list(itertools.product([False, True], repeat=3))  # (VDFE, ASMoE, CVPR)
PAPER_TERMS = {"loss_cls", "loss_triplet"}
RELEASED_TERMS = PAPER_TERMS | {"loss_triplet_entering"}


# What a variant is


def test_the_variant_of_the_paper():
    method = small_svpr("paper")
    backbone = method.backbone
    assert isinstance(backbone.cvpr, MomentumRefinement)
    assert (backbone.text.word_key, backbone.text.replaced, backbone.text.style) == (False, True, "paper")
    assert backbone.vdfe.decoupling.scale is None
    assert backbone.vdfe.decoupling.entering_key
    assert isinstance(backbone.vdfe.decoupling.after, nn.Identity)
    assert backbone.asmoe.experts.top_k == 4
    assert (method.head.width, method.view_head.classes) == (48, 2)
    assert method.cvpr_head is method.local_head is None
    assert method.attribute_loss.weight == 0.1


def test_the_released_variant():
    method = small_svpr("released")
    backbone = method.backbone
    assert isinstance(backbone.cvpr, GatedRefinement)
    assert (backbone.text.word_key, backbone.text.replaced, backbone.text.style) == (True, False, "released")
    assert backbone.vdfe.decoupling.scale.item() == 1
    assert not backbone.vdfe.decoupling.entering_key
    assert backbone.asmoe.experts.top_k == 3
    assert [head.width for head in (method.head, method.cvpr_head, method.local_head)] == [16, 16, 16]
    assert method.view_head.classes == 3
    assert method.attribute_loss.weight == 0.05


@pytest.mark.parametrize("variant", VARIANTS)
def test_numbers_of_ones_own(variant):
    method = small_svpr(
        variant, stages=2, prompts=2, experts=5, expert_top_k=2, attribute_ratio=0.4, keep=0.25, momentum=0.3
    )
    backbone, data = method.backbone, batch()
    assert (backbone.cvpr.stages, backbone.cvpr.keep, backbone.cvpr.momentum) == (2, 0.25, 0.3)
    assert len(backbone.text.view_prompts) == len(backbone.text.attribute_prompts) == 2
    assert (len(backbone.asmoe.experts.experts), backbone.asmoe.experts.top_k, backbone.asmoe.count) == (5, 2, 1)
    step(method, data)
    assert features(method.eval(), data).isfinite().all()


def test_sentences_of_another_style():
    assert small_svpr("released", sentences="released-cp2108").backbone.text.style == "released-cp2108"


# Features


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_the_embedding_is_its_parts_side_by_side(variant):
    method, data = small_svpr(variant).eval(), batch()
    outputs = method(data)
    made = outputs.features
    parts = [made.identity, made.refined.query, made.refined.local]
    parts += [made.attributes.vector] if variant == "released" else []
    assert torch.equal(method.embed(outputs), torch.cat(parts, dim=1))


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_an_image_has_the_same_features_in_any_company(variant):
    method, data = small_svpr(variant).eval(), batch()
    together = features(method, data)
    for image in range(6):
        alone = Batch(**{name: value[image : image + 1] for name, value in data.present().items()})
        torch.testing.assert_close(features(method, alone)[0], together[image], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_features_do_not_depend_on_labels(variant):
    method, data = small_svpr(variant).eval(), batch()
    expected = features(method, data)
    for other in (
        data,
        data.with_(pids=data.pids.flip(0), attributes=1 - data.attributes),
        data.with_(attributes=torch.zeros(6, 9)),
    ):
        assert torch.equal(method.embed(method(other)), expected)


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_the_view_matters(variant):
    method, data = small_svpr(variant).eval(), batch()
    moved = (features(method, data) - features(method, data.with_(views=1 - data.views))).abs()
    for part in moved.split(16, dim=1):
        assert (part.amax(dim=1) > 1e-6).all()


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_the_text_may_be_remembered_or_not(variant):
    method, data, runs = small_svpr(variant).eval(), batch(), []
    method.backbone.text.tower.register_forward_hook(lambda *_: runs.append(1))
    expected = features(method, data)
    assert len(runs) == 2
    torch.testing.assert_close(features(method, data), expected, rtol=0, atol=0)
    assert len(runs) == 2
    method.cache_text = False
    torch.testing.assert_close(features(method, data), expected, rtol=0, atol=1e-6)
    assert len(runs) == 4


# Table 5


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("vdfe", "asmoe", "cvpr"), TABLE_5)
def test_rows_of_table_5(variant, vdfe, asmoe, cvpr):
    method, data = small_svpr(variant, vdfe=vdfe, asmoe=asmoe, cvpr=cvpr), batch()
    names = set(RELEASED_TERMS if variant == "released" else PAPER_TERMS)
    if cvpr and variant == "released":
        names |= {"loss_cls_cvpr", "loss_cls_local", "loss_triplet_cvpr", "loss_triplet_local"}
    names |= {"loss_view", "loss_orthogonal", "loss_view_predictor"} if vdfe else set()
    names |= {"loss_attributes"} if asmoe else set()
    assert set(step(method, data)) == names
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
    parts = (3 if cvpr else 1) + (asmoe and variant == "released")
    assert features(method.eval(), data).shape == (6, 16 * parts)
    assert method.inference_inputs == {"images", *(["views"] if vdfe else [])}
    assert method.training_inputs == method.inference_inputs | {"pids", *(["attributes"] if asmoe else [])}
    assert method.view_source == ("given" if vdfe else "")
    assert (method.backbone.text is not None) == (vdfe or asmoe)


@torch.no_grad()
def test_the_baseline_is_the_class_token():
    clip = small_clip()
    method, data = SVPR(clip.image, None, 3, vdfe=False, asmoe=False, cvpr=False).eval(), batch()
    assert torch.equal(features(method, data), clip.image(data.images).tokens[:, 0])


def test_the_text_tower_is_asked_for():
    clip = small_clip()
    with pytest.raises(InputError, match="text=None, but VDFE and ASMoE read sentences"):
        SVPR(clip.image, None, 3)


# What is frozen


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_a_step_changes(variant):
    method, data = small_svpr(variant), batch()
    before = copy.deepcopy(dict(method.named_parameters()))
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    step(method, data)
    optimizer.step()
    still = {name for name, parameter in method.named_parameters() if torch.equal(parameter, before[name])}
    frozen = {name for name, parameter in method.named_parameters() if not parameter.requires_grad}
    assert frozen <= still
    scores = {"backbone.cvpr.scores.query.weight", "backbone.cvpr.scores.key.weight"}
    assert scores & frozen == (scores if variant == "released" else set())
    assert not scores & still or variant == "released"
    rest = {name for name in frozen - scores if not name.startswith("backbone.text.tower.")}
    biases = {f"{name}.norm.bias" for name, module in method.named_modules() if hasattr(module, "classifier")}
    biases -= {"view_predictor.norm.bias"}
    assert rest == biases | {"backbone.asmoe.heads.norm.bias", "backbone.image.visual.proj"}
    # What attends to one token alone never learns whom to ask: a softmax over one is 1.
    asks = ("attention.query", "attention.key", "entry.query", "entry.key", "to_query.query", "to_query.key")
    for name in still - frozen:
        assert any(each in name for each in asks) or "norm" in name, name


@pytest.mark.parametrize("variant", VARIANTS)
def test_prompts_learn_through_the_frozen_text_tower(variant):
    method = small_svpr(variant)
    step(method, batch())
    assert method.backbone.text.view_prompts.grad.any()
    assert method.backbone.text.attribute_prompts.grad.any()
    assert all(parameter.grad is None for parameter in method.backbone.text.tower.parameters())


def test_the_state_has_the_text_tower_once():
    names = [name for name in small_svpr().state_dict() if name.endswith("token_embedding.weight")]
    assert names == ["backbone.text.tower.text.token_embedding.weight"]


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_model_for_evaluation_needs_no_identities():
    clip = small_clip()
    for variant in VARIANTS:
        assert SVPR(clip.image, clip.text, 0, variant=variant).head.classes == 0


# Bad arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"view": "guessed"}, "view 'guessed' unknown; known: given, predicted"),
        ({"variant": "papre"}, "variant 'papre' unknown .*paper"),
        ({"drop_attributes": 2}, "drop_attributes=2"),
        ({"stages": 0}, "stages=0"),
        ({"expert_top_k": 5}, "expert_top_k=5 .* 4"),
        ({"variant": "released", "experts": 2}, "expert_top_k=3 .* 2"),
        ({"prompts": 0}, "prompts=0"),
        ({"keep": 2.0}, r"keep=2\.0"),
        ({"orthogonality": "cos"}, "kind of orthogonality 'cos' unknown"),
        ({"sentences": "long"}, "style of attribute sentences 'long' unknown"),
        ({"words": {"cctv": "ground"}}, "words has none for the platform wearable"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(InputError, match=words) as error:
        small_svpr(**{"variant": "paper"} | arguments)
    assert "\n" not in str(error.value)


# Half precision


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_inside_autocast(variant):
    method, data = small_svpr(variant), batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = method.losses(method(data), data)
    sum(terms.values()).backward()
    for name, parameter in method.named_parameters():
        assert not parameter.requires_grad or parameter.grad.isfinite().all(), name
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert features(method.eval(), data).isfinite().all()
