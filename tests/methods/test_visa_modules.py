"""ViSA's two modules: the queries that ETGM makes, and what DLFM fuses of them."""

import itertools
from dataclasses import replace

import pytest
import torch
from small_visa import batch, small_backbone
from torch import Tensor, nn
from torch.autograd import gradcheck

from agreid_plugin.methods.visa import DLFM, ETGM, VARIANTS, PlainQueries, Queries, reference
from agreid_plugin.nn.view_token_vit import EncoderOutputs
from agreid_plugin.types import View


def random_parts(images: int = 2, queries: int = 2, patches: int = 4, width: int = 4) -> tuple[Queries, EncoderOutputs]:
    """What DLFM is given, in float64."""
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    vectors = [draw(images, width) for _ in range(3)]
    made = Queries(draw(images, queries, width), draw(images, queries, width))
    return made, EncoderOutputs(*vectors, draw(images, patches, width))


def small_dlfm(variant: str, neighbors: int = 2) -> DLFM:
    read = VARIANTS[variant]
    torch.manual_seed(0)
    return DLFM(
        4, 2, neighbors, read.patches_per_query, read.graph_per_branch, read.graph_gradient, fuse_cls=read.fuse_cls
    ).double()


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
            (identity[image], 0, reference.route(etgm.shared_router, identity[image : image + 1]), queries.invariant),
            (
                view[image],
                3 + 3 * group,
                reference.route(etgm.view_router, view[image : image + 1], group),
                queries.specific,
            ),
        ):
            experts, weights = routing.experts[0].tolist(), routing.weights[0]
            parts = [reference.run_expert(etgm.experts, first + number, vector[None])[0] for number in experts]
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


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("patches_per_query", "graph_per_branch"), itertools.product([True, False], repeat=2))
@torch.no_grad()
def test_every_kind_of_graph_equals_the_reference_form(variant, patches_per_query, graph_per_branch):
    torch.manual_seed(0)
    dlfm = DLFM(4, 2, 3, patches_per_query, graph_per_branch, fuse_cls=VARIANTS[variant].fuse_cls).double()
    assert (dlfm.invariant.graph is dlfm.specific.graph) != graph_per_branch
    parts = random_parts(patches=6)
    torch.testing.assert_close(dlfm(*parts), reference.fuse(dlfm, *parts), rtol=0, atol=1e-12)


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
    dlfm.invariant.move(queries.invariant, encoded.identity, encoded.patches).sum().backward()
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
    moved = branch.move(own, first, encoded.patches)
    patch = last if variant == "paper" else first
    for image in range(2):
        expected = reference.move_query(branch.graph.weight, last[image], patch[image][None])
        torch.testing.assert_close(moved[image, 0], expected)


@torch.no_grad()
def test_the_query_is_added_to_its_normalized_move():
    branch, (queries, encoded) = small_dlfm("paper").invariant, random_parts()
    nn.init.normal_(branch.norm.weight)
    moved = branch.move(queries.invariant, encoded.identity, encoded.patches)
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
