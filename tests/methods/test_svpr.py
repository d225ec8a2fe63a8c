"""SVPR-ReID as a method: its terms, its variants, Table 5, what it may see, and what stays frozen."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from small_svpr import SCHEMA, THREE_WORDS, batch, small_clip, small_svpr, without_dropout
from torch import Tensor, nn

from agreid_plugin.data.attributes import AttributeSchema
from agreid_plugin.errors import InputError
from agreid_plugin.losses import AttributeLoss, OnFeatures, OnLogits, OrthogonalLoss, TripletLoss, ViewLoss
from agreid_plugin.methods.svpr import READINGS, SVPR, GatedRefinement, MomentumRefinement
from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.types import PLATFORMS, UNKNOWN, Batch, View

VARIANTS = list(READINGS)
TABLE_5 = list(itertools.product([False, True], repeat=3))  # (VDFE, ASMoE, CVPR)
GROUND, AERIAL = 0, 1
PAPER_TERMS = {"loss_cls", "loss_triplet"}
RELEASED_TERMS = PAPER_TERMS | {"loss_triplet_entering"}


def features(method: SVPR, data: Batch) -> Tensor:
    with torch.no_grad():
        return method.embed(method(data.only(method.inference_inputs)))


def step(method: SVPR, data: Batch) -> dict[str, Tensor]:
    terms = method.losses(method(data), data)
    sum(terms.values()).backward()
    return terms


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


# Losses


def test_terms_of_the_paper():  # Eqs. 9-12
    method, data = small_svpr("paper"), batch()
    outputs = method(data)
    terms, made = method.losses(outputs, data), outputs.features
    joint = torch.cat([made.identity, made.refined.query, made.refined.local], dim=1)  # f_reid
    words = torch.tensor([AERIAL, GROUND, GROUND] * 2)
    attributes = sum(
        F.cross_entropy(logits, labels, ignore_index=UNKNOWN)  # Eq. 11
        for logits, labels in zip(made.attributes.logits, data.attributes.T, strict=True)
    )
    cosines = F.cosine_similarity(made.identity, made.view)
    expected = {
        "loss_cls": 0.25 * F.cross_entropy(outputs.identity.logits, data.pids, label_smoothing=0.1),
        "loss_triplet": TripletLoss()(joint, data.pids),
        "loss_view": F.cross_entropy(outputs.view.logits, words),
        "loss_orthogonal": cosines.abs().mean(),
        "loss_view_predictor": F.cross_entropy(outputs.predicted, words),
        "loss_attributes": 0.1 * attributes,
    }
    assert list(terms) == list(expected)
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name], msg=name)
    torch.testing.assert_close(outputs.identity.features, joint)


def test_terms_as_released():
    method, data = small_svpr("released"), batch()
    outputs = method(data)
    terms, made = method.losses(outputs, data), outputs.features
    parts = {"": made.identity, "_cvpr": made.refined.query, "_local": made.refined.local}
    heads = {"": outputs.identity, "_cvpr": outputs.cvpr, "_local": outputs.local}
    words = torch.tensor([AERIAL, GROUND, GROUND] * 2)
    probabilities = F.one_hot(words, 3) * 0.9 + 0.1 / 3  # three identities: here by chance what 3 classes would give
    expected = {}
    for place, (ending, head) in enumerate(heads.items()):
        weight = 0.25 * (0.5 if place else 1)
        expected[f"loss_cls{ending}"] = weight * F.cross_entropy(head.logits, data.pids, label_smoothing=0.1)
    for place, (ending, values) in enumerate((parts | {"_entering": made.entering}).items()):
        expected[f"loss_triplet{ending}"] = TripletLoss(1 / 3 if place else 1)(values, data.pids)
    expected |= {
        "loss_view": -(probabilities * outputs.view.logits.log_softmax(dim=1)).sum(dim=1).mean(),
        "loss_orthogonal": OrthogonalLoss()(made.identity, made.view),
        "loss_view_predictor": ViewLoss()(outputs.predicted, words),
        "loss_attributes": AttributeLoss(0.05)(made.attributes.logits, data.attributes),
    }
    assert list(terms) == list(expected)
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name], msg=name)


def test_released_views_are_smoothed_by_the_number_of_identities():
    clip = small_clip()
    loss = SVPR(clip.image, clip.text, 50, variant="released").view_loss
    logits, words = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    targets = F.one_hot(words, 3) * 0.9 + 0.1 / 50
    torch.testing.assert_close(loss(logits, words), -(targets * logits.log_softmax(dim=1)).sum(dim=1).mean())


def test_weights_of_the_terms():
    data = batch()
    plain = without_dropout(small_svpr(attribute_weight=1.0))
    weighted = without_dropout(small_svpr(view_weight=0.25, attribute_weight=0.5))
    ours, theirs = plain.losses(plain(data), data), weighted.losses(weighted(data), data)
    for name, factor in {"loss_view": 0.25, "loss_orthogonal": 0.25, "loss_attributes": 0.5}.items():
        torch.testing.assert_close(theirs[name], factor * ours[name])
    for name in ("loss_view_predictor", "loss_cls", "loss_triplet"):
        assert torch.equal(theirs[name], ours[name])


def test_orthogonality_as_printed():  # Eq. 10
    method, data = small_svpr(orthogonality="dot"), batch()
    outputs = method(data)
    made = outputs.features
    expected = sum((one @ other).abs().item() for one, other in zip(made.identity, made.view, strict=True))
    assert method.losses(outputs, data)["loss_orthogonal"].item() == pytest.approx(expected, rel=1e-5)


def test_heads_and_losses_of_ones_own():
    made = []

    def make_head(width: int, classes: int) -> BNNeck:
        made.append((width, classes))
        return BNNeck(width, classes)

    own = nn.ModuleDict({"metric": OnFeatures(TripletLoss(0.5, margin=0.3)), "id": OnLogits(nn.CrossEntropyLoss())})
    for variant, heads in (("paper", [(48, 3), (16, 2)]), ("released", [(16, 3)] * 3 + [(16, 3)])):
        made.clear()
        method, data = small_svpr(variant, make_head=make_head, objectives=own), batch()
        assert made == heads
        names = {name for name in method.losses(method(data), data) if name.startswith(("loss_metric", "loss_id"))}
        paper = {"loss_metric", "loss_id"}
        more = {"loss_metric_cvpr", "loss_metric_local", "loss_metric_entering", "loss_id_cvpr", "loss_id_local"}
        assert names == (paper if variant == "paper" else paper | more)


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
def test_in_training_the_attributes_are_told(variant):
    method, data = without_dropout(small_svpr(variant)), batch()
    told = method(data).features.attributes.tokens
    others = data.with_(attributes=torch.tensor([[1, 0, 0]]).expand(6, -1))
    assert not torch.isclose(told, method(others).features.attributes.tokens).flatten(1).all(dim=1).any()


def test_some_training_images_are_told_nothing():
    data, torch_seed = batch(), 0
    nothing = data.with_(attributes=torch.full_like(data.attributes, UNKNOWN))
    methods = {share: without_dropout(small_svpr(untold=share)) for share in (0.0, 0.5, 1.0)}
    torch.manual_seed(torch_seed)
    tokens = {share: method(data).features.attributes.tokens for share, method in methods.items()}
    silent = methods[0.0](nothing).features.attributes.tokens
    assert torch.equal(tokens[1.0], silent)
    torch.manual_seed(torch_seed)
    hidden = (torch.rand(6, 1) < 0.5).flatten()
    assert 0 < hidden.sum() < 6
    assert torch.allclose(tokens[0.5][hidden], silent[hidden], atol=1e-6)
    assert torch.allclose(tokens[0.5][~hidden], tokens[0.0][~hidden], atol=1e-6)
    losses = methods[1.0].losses(methods[1.0](data), data)
    assert losses["loss_attributes"] > 0  # what is not told is learned all the same


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


# Attributes


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("schema", [None, AttributeSchema({})])
def test_a_dataset_without_attributes(variant, schema):
    method, data = small_svpr(variant, schema), batch().with_(attributes=None)
    assert method.backbone.asmoe is None
    assert "loss_attributes" not in step(method, data)
    assert features(method.eval(), data).shape == (6, 48)
    with pytest.raises(InputError, match="the model has no attributes"):
        method.predict_attributes(method(data))


@pytest.mark.parametrize("variant", VARIANTS)
def test_attributes_that_nobody_knows(variant):
    method, data = small_svpr(variant), batch()
    data = data.with_(attributes=torch.full_like(data.attributes, UNKNOWN))
    terms = step(method, data)
    assert terms["loss_attributes"].item() == 0
    for name, parameter in method.named_parameters():
        assert not parameter.requires_grad or parameter.grad.isfinite().all(), name


def test_an_unknown_attribute_is_neither_told_nor_learned():
    method, data = without_dropout(small_svpr()), batch()
    outputs = method(data)
    known = data.attributes[:, 1] != UNKNOWN
    logits = outputs.features.attributes.logits
    terms = [
        F.cross_entropy(logits[0][[0, 1, 2, 3, 5]], data.attributes[[0, 1, 2, 3, 5], 0]),
        F.cross_entropy(logits[1][known], data.attributes[known, 1]),
        F.cross_entropy(logits[2][[0, 1, 2, 3, 5]], data.attributes[[0, 1, 2, 3, 5], 2]),
    ]
    torch.testing.assert_close(method.losses(outputs, data)["loss_attributes"], 0.1 * sum(terms))
    assert "A photo of a X X X X person with attributes: hair is short, hat is yes." in method.backbone.text.tokens


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        (None, "attributes=None, but SVPR-ReID learns from attributes; asmoe=False needs none"),
        (torch.zeros(6, 2, dtype=torch.long), r"attributes=\(6, 2\) should be images by attributes, \(6, 3\)"),
        (torch.full((6, 3), 2), "attributes has 2 for 'hair', which has 2 values"),
        (torch.full((6, 3), -2), "attributes has -2 for 'hair', which has 2 values"),
    ],
)
def test_attributes_that_are_not_there(attributes, said):
    with pytest.raises(InputError, match=said):
        small_svpr()(batch().with_(attributes=attributes))


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_attributes_are_predicted(variant):
    method, data = small_svpr(variant).eval(), batch()
    outputs = method(data.only(method.inference_inputs))
    found = method.predict_attributes(outputs)
    assert len(found) == 6
    for image, guesses in enumerate(found):
        assert [guess.name for guess in guesses] == ["hair", "bag", "hat"]
        for guess, logits in zip(guesses, outputs.features.attributes.logits, strict=True):
            probabilities = logits[image].softmax(dim=0)
            assert guess.confidence == pytest.approx(probabilities.max().item())
            assert guess.value == SCHEMA.groups[guess.name][probabilities.argmax()]


# Views


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
        told = guessing.told_views(guessing(data.only({"images"})))
        assert given.told_views(given(data.only({"images", "views"}))) is None
        assert given.with_views(nobody).views.tolist() == told.tolist()
        half = nobody.with_(views=torch.tensor([1 - told[0], *[UNKNOWN] * 5]))
        assert given.with_views(half).views.tolist() == [1 - told[0], *told[1:]]
        filled = given.with_views(nobody).only({"images", "views"})
        torch.testing.assert_close(features(given, filled), features(guessing, data))
    assert not small_svpr(vdfe=False).tells_views
    assert small_svpr(vdfe=False).with_views(nobody) is nobody


def test_a_platform_that_is_told_fits_the_known_view():
    method, data = small_svpr(words=THREE_WORDS).eval(), batch()
    ground = data.with_(views=torch.ones_like(data.views), platforms=torch.full_like(data.views, UNKNOWN))
    with torch.no_grad():
        method.view_predictor.classifier.bias[2] += 100  # which takes everything for a drone's
        filled = method.with_views(ground)
        assert method.with_views(ground.with_(views=None)).views.tolist() == [View.AERIAL] * 6
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
    step(small_svpr(), batch().with_(platforms=None))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("view", list(View))
def test_everything_learns_in_a_batch_of_one_view(variant, view):
    """Every parameter has a gradient in every batch, which training in several processes asks for."""
    method = small_svpr(variant)
    step(method, batch().with_(views=torch.full((6,), view)))
    for name, parameter in method.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name


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
        ({"untold": 2}, "untold=2"),
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
