import itertools
from dataclasses import replace

import pytest
import torch
from processes import returned_by
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.nn.parallel import DistributedDataParallel

from agreid_plugin.errors import InputError
from agreid_plugin.losses import IdentityLoss, OrthogonalLoss, TripletLoss, ViewLoss, load_balance
from agreid_plugin.methods.visa import (
    DLFM,
    ETGM,
    READINGS,
    PlainQueries,
    Queries,
    ViSA,
    ViSABackbone,
    build_backbone,
    literal,
)
from agreid_plugin.methods.visa.literal import LiteralBackbone, literal_features
from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.nn.decoupled import Encoded
from agreid_plugin.nn.vit import VisionTransformer
from agreid_plugin.types import UNKNOWN, Batch, View

VARIANTS = list(READINGS)
TABLE_2 = [row for row in itertools.product([False, True], repeat=3) if row[2] or not row[1]]  # (VAB, ETGM, DLFM)


def small_backbone(variant: str = "paper", vab: bool = True, **arguments) -> ViSABackbone:
    """Width 16, 8 patches, three experts a group; nothing random in training, and no view token at zero."""
    torch.manual_seed(0)
    vit = VisionTransformer((32, 16), 8, width=16, depth=3, heads=2, drop_path=0.0, extra_tokens=int(vab))
    defaults = {"experts": 3, "top_k": 2, "tokens": 4, "neighbors": 3}
    backbone = build_backbone(vit, variant=variant, vab=vab, **defaults | arguments)
    if vab:
        nn.init.normal_(backbone.encoder.view_tokens, std=0.5)
    return backbone


def small_visa(variant: str = "paper", modules: dict[str, bool] | None = None, **arguments) -> ViSA:
    """Of three identities."""
    return ViSA(small_backbone(variant, **modules or {}), 3, variant, **arguments)


def batch(seed: int = 1) -> Batch:
    images = torch.randn(6, 3, 32, 16, generator=torch.Generator().manual_seed(seed))
    views = torch.tensor([View.AERIAL, View.GROUND, View.GROUND, View.AERIAL, View.GROUND, View.GROUND])
    return Batch(images=images, pids=torch.tensor([0, 0, 1, 1, 2, 2]), views=views)


def random_parts(images: int = 2, queries: int = 2, patches: int = 4, width: int = 4) -> tuple[Queries, Encoded]:
    """What DLFM is given, in float64."""
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    vectors = [draw(images, width) for _ in range(3)]
    made = Queries(draw(images, queries, width), draw(images, queries, width))
    return made, Encoded(*vectors, draw(images, patches, width))


def small_dlfm(variant: str, neighbors: int = 2) -> DLFM:
    read = READINGS[variant]
    torch.manual_seed(0)
    return DLFM(4, 2, neighbors, read.own_patches, read.own_graph, read.graph_gradient, fuse_cls=read.fuse_cls).double()


def assert_same_features(features, expected, tolerance: float) -> None:
    pairs = [
        (features.encoded.identity, expected.encoded.identity),
        (features.encoded.view, expected.encoded.view),
        (features.local, expected.local),
    ]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


# What a variant is


def test_the_variant_of_the_paper():
    backbone = small_backbone("paper")
    branches = [backbone.fusion.invariant, backbone.fusion.specific]
    assert backbone.encoder.view_tokens.shape == (3, 2, 16)  # of every block, of every view
    assert backbone.encoder.subtractions == 2  # after all blocks but the last
    assert all(branch.own_patches and branch.gradient for branch in branches)
    assert branches[0].graph is not branches[1].graph
    assert backbone.fusion.token is None
    assert not ViSA(backbone, 3, "paper").objectives["cls"].loss.over_nonzero


def test_the_released_variant():
    backbone = small_backbone("released")
    branches = [backbone.fusion.invariant, backbone.fusion.specific]
    assert backbone.encoder.view_tokens.shape == (1, 2, 16)
    assert backbone.encoder.subtractions == 2
    assert not any(branch.own_patches or branch.gradient for branch in branches)
    assert branches[0].graph is branches[1].graph
    assert backbone.fusion.token.shape == (16,)
    assert ViSA(backbone, 3, "released").objectives["cls"].loss.over_nonzero


# Against the equations as printed


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_features_equal_the_literal_form(variant, dtype, tolerance):
    backbone, data = small_backbone(variant).to(dtype), batch()
    features = backbone(data.images.to(dtype), data.views)
    assert_same_features(features, literal_features(backbone, data.images.to(dtype), data.views), tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("own_patches", "own_graph"), itertools.product([True, False], repeat=2))
@torch.no_grad()
def test_every_kind_of_graph_equals_the_literal_form(variant, own_patches, own_graph):
    torch.manual_seed(0)
    dlfm = DLFM(4, 2, 3, own_patches, own_graph, fuse_cls=READINGS[variant].fuse_cls).double()
    assert (dlfm.invariant.graph is dlfm.specific.graph) != own_graph
    parts = random_parts(patches=6)
    torch.testing.assert_close(dlfm(*parts), literal.fuse(dlfm, *parts), rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_training_step_equals_the_literal_form(variant):
    gradients = []
    for make in (lambda backbone: backbone, LiteralBackbone):
        backbone, data = small_backbone(variant).double(), batch()
        method = ViSA(make(backbone), 3, variant).double()
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


# ETGM


@pytest.mark.parametrize("views", [[0, 1, 1, 0, 1, 0], [0] * 6, [1] * 6, [1]])
@torch.no_grad()
def test_queries_equal_a_loop_over_images(views):  # Eqs. 4-7
    torch.manual_seed(0)
    etgm = ETGM(8, 2, experts=3, top_k=2, tokens=4).double()
    generator = torch.Generator().manual_seed(3)
    identity, view = torch.randn(2, len(views), 8, generator=generator, dtype=torch.float64)
    queries = etgm(identity, view, torch.tensor(views))
    for image, group in enumerate(views):
        # The bank holds 0-2 shared, 3-5 aerial, 6-8 ground.
        for vector, first, routing, made in (
            (identity[image], 0, literal.route(etgm.shared_router, identity[image : image + 1]), queries.invariant),
            (
                view[image],
                3 + 3 * group,
                literal.route(etgm.view_router, view[image : image + 1], group),
                queries.specific,
            ),
        ):
            experts, weights = routing.experts[0].tolist(), routing.weights[0]
            parts = [literal.expert(etgm.experts, first + number, vector[None])[0] for number in experts]
            expected = weights[0] * parts[0] + weights[1] * parts[1]
            torch.testing.assert_close(made[image], expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_permuted_batch_gives_permuted_features():
    backbone, data = small_backbone().double(), batch()
    order = torch.tensor([5, 2, 0, 4, 1, 3])
    images = data.images.double()
    features, permuted = backbone(images, data.views), backbone(images[order], data.views[order])
    torch.testing.assert_close(permuted.local, features.local[order], rtol=0, atol=1e-12)
    torch.testing.assert_close(permuted.queries.specific, features.queries.specific[order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("view", list(View))
def test_every_expert_and_router_has_a_gradient_in_a_batch_of_one_view(view):
    torch.manual_seed(0)
    etgm = ETGM(8, 2, experts=3, top_k=2, tokens=4)
    queries = etgm(torch.randn(5, 8), torch.randn(5, 8), torch.full((5,), view))
    (queries.invariant.square().sum() + queries.specific.square().sum()).backward()
    for name, parameter in etgm.named_parameters():
        assert parameter.grad is not None, name
    of_view = etgm.view_router.weight.grad
    assert of_view[view].any()
    assert not of_view[1 - view].any()
    assert not etgm.experts.tokens.grad[3 * (2 - view) : 3 * (3 - view)].any()


def test_routers_of_the_load_balance():
    features, views = small_backbone()(batch().images, batch().views), batch().views
    shared, aerial, ground = features.queries.routers(views)
    assert shared[1] is None
    assert torch.equal(aerial[1], views == View.AERIAL)
    assert torch.equal(ground[1], views == View.GROUND)
    torch.testing.assert_close(ground[0].sum(dim=1), torch.ones(6))


def test_plain_queries_by_hand():
    plain = PlainQueries(2, tokens=1)
    with torch.no_grad():
        plain.tokens.copy_(torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]))
    queries = plain(torch.tensor([[10.0, 0.0]]), torch.tensor([[0.0, 10.0]]))
    assert queries.invariant.tolist() == [[[11.0, 2.0]]]
    assert queries.specific.tolist() == [[[3.0, 14.0]]]
    assert queries.shared is None


# DLFM


def test_gradient_of_the_fusion():
    dlfm, (queries, encoded) = small_dlfm("paper"), random_parts(images=1)
    inputs = (queries.invariant, queries.specific, encoded.identity, encoded.patches)
    assert gradcheck(lambda *_: dlfm(queries, encoded), (*inputs, *dlfm.parameters()), fast_mode=True)


def test_gradient_of_the_released_fusion_in_its_parameters():
    dlfm, (queries, encoded) = small_dlfm("released"), random_parts(images=1)
    assert gradcheck(lambda *_: dlfm(queries, encoded), tuple(dlfm.parameters()), fast_mode=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_through_the_graph(variant):
    dlfm, (queries, encoded) = small_dlfm(variant), random_parts()
    dlfm.invariant.moved(queries.invariant, encoded.identity, encoded.patches).sum().backward()
    reached = {queries.invariant.grad is not None, encoded.patches.grad is not None}
    assert reached == {variant == "paper"}
    assert dlfm.invariant.graph.weight.grad.any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_queries_learn_around_the_graph_in_both_variants(variant):
    dlfm, (queries, encoded) = small_dlfm(variant), random_parts()
    dlfm(queries, encoded).square().sum().backward()
    assert queries.invariant.grad.any()
    assert queries.specific.grad.any()
    assert (encoded.patches.grad is not None) == (variant == "paper")


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_who_chooses_the_patches(variant):
    # One query is the last patch itself; the branch's feature is the first.
    branch, (queries, encoded) = small_dlfm(variant, neighbors=1).invariant, random_parts()
    own, first, last = queries.invariant.clone(), encoded.patches[:, 0], encoded.patches[:, -1]
    own[:, 0] = last
    moved = branch.moved(own, first, encoded.patches)
    patch = last if variant == "paper" else first
    for image in range(2):
        expected = literal.move_query(branch.graph.weight, last[image], patch[image][None])
        torch.testing.assert_close(moved[image, 0], expected)


@torch.no_grad()
def test_the_query_is_added_to_its_normalized_move():
    branch, (queries, encoded) = small_dlfm("paper").invariant, random_parts()
    nn.init.normal_(branch.norm.weight)
    moved = branch.moved(queries.invariant, encoded.identity, encoded.patches)
    expected = queries.invariant + branch.norm(moved)
    torch.testing.assert_close(branch(queries.invariant, encoded.identity, encoded.patches), expected)


@torch.no_grad()
def test_what_is_fused_with_the_queries():  # Eq. 13
    queries, encoded = random_parts()
    other = replace(encoded, identity=encoded.identity.flip(0))
    for variant in VARIANTS:
        dlfm, entering = small_dlfm(variant), []
        dlfm.fusion.register_forward_pre_hook(lambda _, inputs, entering=entering: entering.append(inputs[0]))
        local = dlfm(queries, encoded)
        dlfm(queries, other)
        assert entering[0].shape == (2, 5, 4)  # one token, two queries of each branch
        torch.testing.assert_close(local, dlfm.fusion(entering[0])[:, 0])
        first = [tokens[:, 0] for tokens in entering[:2]]
        if variant == "paper":
            assert dlfm.token is None
            assert torch.equal(first[0], encoded.identity)
            assert torch.equal(first[1], other.identity)
        else:
            assert torch.equal(first[0], dlfm.token.expand(2, 4))
            assert torch.equal(first[1], first[0])


# The method


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_term_equals_its_loss_and_all_are_equation_20(variant):
    method, data = small_visa(variant), batch()
    outputs = method(data)
    terms, features = method.losses(outputs, data), outputs.features
    read, aerial = READINGS[variant], data.views == View.AERIAL
    of_identity, encoded = IdentityLoss(over_nonzero=read.over_nonzero), features.encoded
    shared, by_view = features.queries.shared.probabilities, features.queries.by_view.probabilities
    balance = load_balance(shared) + load_balance(by_view[aerial]) * 2 / 6 + load_balance(by_view[~aerial]) * 4 / 6
    expected = {
        "loss_cls_id": of_identity(outputs.identity.logits, data.pids),
        "loss_triplet_id": TripletLoss()(encoded.identity, data.pids),
        "loss_cls_local": of_identity(outputs.local.logits, data.pids),
        "loss_triplet_local": TripletLoss()(features.local, data.pids),
        "loss_view": ViewLoss()(outputs.view.logits, data.views),
        "loss_orthogonal": OrthogonalLoss()(encoded.identity, encoded.view),
        "loss_view_predictor": ViewLoss()(outputs.predicted, data.views),
        "loss_balance": read.balance_weight * balance,
    }
    assert list(terms) == list(expected)
    assert all(name.startswith("loss_") for name in terms)
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name], msg=name)
    assert read.balance_weight == {"paper": 1e-3, "released": 1e-4}[variant]
    total = sum(term for name, term in terms.items() if name != "loss_view_predictor")  # Eq. 20 has no predictor
    equation_20 = sum(expected[name] for name in expected if name != "loss_view_predictor")
    torch.testing.assert_close(total, equation_20)


def test_weights_of_the_terms():
    data = batch()
    plain, weighted = small_visa(balance_weight=1.0), small_visa(view_weight=0.25, balance_weight=0.5)
    ours, theirs = plain.losses(plain(data), data), weighted.losses(weighted(data), data)
    for name, factor in {"loss_view": 0.25, "loss_orthogonal": 0.25, "loss_balance": 0.5}.items():
        torch.testing.assert_close(theirs[name], factor * ours[name])
    assert torch.equal(theirs["loss_view_predictor"], ours["loss_view_predictor"])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("vab", "etgm", "dlfm"), TABLE_2)
def test_rows_of_table_2(variant, vab, etgm, dlfm):
    method, data = small_visa(variant, {"vab": vab, "etgm": etgm, "dlfm": dlfm}), batch()
    terms = method.losses(method(data), data)
    names = {"loss_cls_id", "loss_triplet_id"}
    names |= {"loss_cls_local", "loss_triplet_local"} if dlfm else set()
    names |= {"loss_view", "loss_orthogonal"} if vab else set()
    names |= {"loss_view_predictor"} if vab or etgm else set()
    names |= {"loss_balance"} if etgm else set()
    assert set(terms) == names
    sum(terms.values()).backward()
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
    method.eval()
    features = method.embed(method(data.only(method.inference_inputs)))
    assert features.shape == (6, 32 if dlfm else 16)
    assert method.inference_inputs == ({"images", "views"} if vab or etgm else {"images"})
    assert method.training_inputs == ({"images", "pids", "views"} if vab or etgm else {"images", "pids"})
    assert method.view_source == ("given" if vab or etgm else "")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("vab", "etgm"), itertools.product([False, True], repeat=2))
@torch.no_grad()
def test_features_of_ablations_equal_the_literal_form(variant, vab, etgm):
    backbone, data = small_backbone(variant, vab, etgm=etgm).double(), batch()
    images = data.images.double()
    assert_same_features(backbone(images, data.views), literal_features(backbone, images, data.views), 1e-12)


@torch.no_grad()
def test_features_do_not_depend_on_labels():
    method, data = small_visa().eval(), batch()
    features = method.embed(method(data))
    for other in (data.with_(pids=data.pids.flip(0)), data.only(method.inference_inputs)):
        assert torch.equal(method.embed(method(other)), features)


@torch.no_grad()
def test_features_are_identity_and_local_behind_their_norms():
    method, data = small_visa().eval(), batch()
    made = method.backbone(data.images, data.views)
    expected = torch.cat([method.head.norm(made.encoded.identity), method.local_head.norm(made.local)], dim=1)
    assert torch.equal(method.embed(method(data)), expected)


@pytest.mark.parametrize(("variant", "tracked"), [("released", 2), ("paper", 1)])
def test_what_the_norm_keeps(variant, tracked):
    method, data = small_visa(variant), batch()
    encoded = method(data).features.encoded
    mean = 0.1 * encoded.identity.mean(dim=0)
    mean = 0.9 * mean + 0.1 * encoded.cls.mean(dim=0) if tracked == 2 else mean
    torch.testing.assert_close(method.head.norm.running_mean, mean)
    counts = [head.norm.num_batches_tracked.item() for head in (method.head, method.local_head, method.view_head)]
    assert counts == [tracked, 1, 1]


def test_heads_and_losses_of_ones_own():
    made = []

    def make_head(classes: int) -> BNNeck:
        made.append(classes)
        return BNNeck(16, classes)

    method, data = small_visa(make_head=make_head, objectives=nn.ModuleDict()), batch()
    assert made == [3, 3, 2]
    assert set(method.losses(method(data), data)) == {
        "loss_view",
        "loss_orthogonal",
        "loss_view_predictor",
        "loss_balance",
    }


# Views


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


@torch.no_grad()
def test_an_image_alone_has_the_features_it_has_in_company():
    method, data = small_visa().eval(), batch()
    alone = Batch(images=data.images[2:3], views=data.views[2:3])
    torch.testing.assert_close(method.embed(method(alone)), method.embed(method(data))[2:3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("views", [None, torch.tensor([0, 1, UNKNOWN, 0, 1, 0])])
def test_a_view_that_is_not_there_is_asked_for(training, views):
    way_out = "training has no way around it" if training else "view='predicted' needs none"
    with pytest.raises(InputError, match=rf"^views.* ViSA needs the view of every image; {way_out}$"):
        small_visa().train(training)(batch().with_(views=views))


# Bad arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"neighbors": 9}, "neighbors=9 .* 8"),
        ({"neighbors": 0}, "neighbors=0"),
        ({"top_k": 4}, "top_k=4 .* 3"),
        ({"tokens": 0}, "tokens=0"),
        ({"tokens": 0, "etgm": False}, "tokens=0"),
        ({"variant": "relased"}, "variant 'relased' unknown .*released"),
        ({"dlfm": False}, "etgm=True needs dlfm=True"),
    ],
)
def test_bad_arguments_of_the_backbone_are_named(arguments, words):
    with pytest.raises(InputError, match=words) as error:
        small_backbone(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"view": "guessed"}, "view 'guessed' unknown; known: given, predicted"),
        ({"variant": "papre"}, "variant 'papre'"),
    ],
)
def test_bad_arguments_of_the_method_are_named(arguments, words):
    with pytest.raises(InputError, match=words):
        ViSA(small_backbone(), 3, **arguments)


def test_queries_without_their_fusion_are_refused():
    backbone = small_backbone()
    with pytest.raises(InputError, match="come together"):
        ViSABackbone(backbone.encoder, backbone.queries, None)


# Half precision and several processes


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_inside_autocast(variant):
    method, data = small_visa(variant), batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = method.losses(method(data), data)
    sum(terms.values()).backward()
    for name, parameter in method.named_parameters():
        assert not parameter.requires_grad or parameter.grad.isfinite().all(), name


class LossesOf(nn.Module):
    """What DDP wraps: a method from batch to total loss."""

    def __init__(self, method: ViSA):
        super().__init__()
        self.method = method

    def forward(self, data: Batch) -> Tensor:
        return sum(self.method.losses(self.method(data), data).values())


def train_two_steps(rank: int) -> dict[str, dict[str, Tensor]]:
    """One of two processes: the first has aerial images alone, the second ground ones."""
    trained = {}
    for variant in VARIANTS:
        model = DistributedDataParallel(LossesOf(small_visa(variant)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            optimizer.zero_grad()
            model(batch(seed=10 * rank + step).with_(views=torch.full((6,), rank))).backward()
            optimizer.step()
        trained[variant] = dict(model.module.method.named_parameters())
    return trained


def test_two_processes_of_one_view_each_agree(tmp_path):
    trained = returned_by(2, train_two_steps, tmp_path)
    for variant in VARIANTS:
        start = dict(small_visa(variant).named_parameters())
        first, second = (theirs[variant] for theirs in trained)
        for name, parameter in first.items():
            assert torch.equal(parameter, second[name]), name
        moved = first["backbone.encoder.view_tokens"] - start["backbone.encoder.view_tokens"]
        assert moved.flatten(2).any(dim=2).all()  # both views learned


def test_unknown_views_are_those_of_the_predictor():
    given, guessing = small_visa().eval(), small_visa(view="predicted").eval()
    data = batch()
    nobody = data.with_(views=torch.full_like(data.views, UNKNOWN))
    with torch.no_grad():
        told = guessing.told_views(guessing(data.only({"images"})))
        assert given.told_views(given(data.only({"images", "views"}))) is None
        assert given.with_views(nobody).views.tolist() == told.tolist()
        mixed = torch.where(torch.arange(len(told)) == 0, 1 - told, UNKNOWN)
        assert given.with_views(data.with_(views=mixed)).views.tolist() == [1 - told[0], *told[1:]]
    plain = small_visa(modules={"vab": False, "etgm": False})
    assert not plain.tells_views
    assert plain.with_views(nobody) is nobody
