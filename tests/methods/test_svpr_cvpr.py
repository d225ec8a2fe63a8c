"""CVPR of SVPR-ReID: the stages and Eq. 8, against a loop over images, stages, heads and patches."""

import pytest
import torch
from draws import draw
from torch import Tensor, nn
from torch.autograd import gradcheck

from agreid_plugin.errors import InputError
from agreid_plugin.methods.svpr.cvpr import (
    CVAttention,
    GatedRefinement,
    MomentumRefinement,
    PatchScores,
    Refinement,
    gather_patches,
    scatter_patches,
    straight_through,
)

KINDS = [MomentumRefinement, GatedRefinement]


def small(kind: type[Refinement], patches: int = 8, **arguments) -> Refinement:
    torch.manual_seed(3)
    module = kind(8, patches, **arguments)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


def inputs(patches: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """f_cls, f_asmoe and patches of three images."""
    return draw(3, 8), draw(3, 8, seed=1), draw(3, patches, 8, seed=2)


def scores_by_hand(layer: PatchScores, query: Tensor, candidates: list[Tensor]) -> Tensor:
    """(C,), n of (C,) -> (n,)."""
    width = len(query) // layer.heads
    found = []
    for head in range(layer.heads):
        rows = slice(head * width, (head + 1) * width)
        asked = layer.query.weight[rows] @ query
        logits = [asked @ (layer.key.weight[rows] @ each) / width**0.5 for each in candidates]
        found.append(torch.stack(logits).softmax(0))
    return sum(found) / len(found)


def paper_by_hand(module: MomentumRefinement, cls: Tensor, asmoe: Tensor, patches: Tensor) -> tuple[Tensor, ...]:
    """One image: (C,), (C,), (P, C)."""
    query, patches, places = cls + asmoe + module.token, list(patches), list(range(len(patches)))
    chosen = []
    for _ in range(module.stages):
        scores = scores_by_hand(module.scores, query, [patches[place] for place in places])
        best = scores.argsort(descending=True)[: max(1, int(module.keep * len(places)))].tolist()
        places = [places[each] for each in best]
        chosen.append(places)
        refined, moved = module.block(query[None, None], torch.stack([patches[place] for place in places])[None])
        query = module.momentum * refined[0, 0] + (1 - module.momentum) * cls
        for place, each in zip(places, moved[0], strict=True):
            patches[place] = module.momentum * each + (1 - module.momentum) * patches[place]
    weighted = [patch * weight.tanh() for patch, weight in zip(patches, module.local_weight, strict=True)]
    return query, sum(weighted) / len(weighted), chosen


def released_by_hand(module: GatedRefinement, cls: Tensor, asmoe: Tensor, patches: Tensor) -> tuple[Tensor, ...]:
    """One image: (C,), (C,), (P, C)."""
    token = module.token
    query = module.entry(token[None, None], (cls + asmoe)[None, None])[0, 0]
    updated, places, chosen = list(patches), list(range(len(patches))), []
    for _ in range(module.stages):
        scores = scores_by_hand(module.scores, query, [patches[place] for place in places])
        best = scores.argsort(descending=True)[: max(1, int(module.keep * len(places)))].tolist()
        by_mask = [place for number, place in enumerate(places) if number in best]
        places = [places[each] for each in best]
        chosen.append(places)
        refined, moved = module.block(query[None, None], torch.stack([patches[place] for place in by_mask])[None])
        query = refined[0, 0]
        for place, each in zip(places, moved[0], strict=True):  # in the order of scores, unlike `moved`
            updated[place] = each
        gate = torch.sigmoid(module.gate.weight @ query + module.gate.bias)
        token = gate * query + (1 - gate) * token
    final = [patch + module.momentum * other for patch, other in zip(patches, updated, strict=True)]
    weighted = [patch * weight.tanh() for patch, weight in zip(final, module.local_weight, strict=True)]
    return token, sum(weighted) / len(weighted), chosen


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_stages_equal_a_slow_loop(kind, stages):
    module, tensors = small(kind, patches=19, stages=stages, keep=0.6), inputs(patches=19)
    refined = module(*tensors)
    by_hand = paper_by_hand if kind is MomentumRefinement else released_by_hand
    for image, each in enumerate(zip(*tensors, strict=True)):
        query, local, chosen = by_hand(module, *each)
        torch.testing.assert_close(refined.query[image], query)
        torch.testing.assert_close(refined.local[image], local)
        assert [places[image].tolist() for places in refined.chosen] == chosen


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_decoder_block(kind):
    block, query, patches = small(kind).block, draw(2, 1, 8), draw(2, 4, 8, seed=1)
    first = block.norm1(query + block.attn(query))
    second = block.norm2(first + block.to_patches(first, patches))
    third = block.norm3(second + block.mlp(second))
    found_query, found_patches = block(query, patches)
    torch.testing.assert_close(found_query, third)
    torch.testing.assert_close(found_patches, block.patch_norm(patches + block.to_query(patches, third)))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_without_attributes_the_query_is_of_the_identity_alone(kind):
    module, (identity, _, patches) = small(kind), inputs()
    alone, nothing = module(identity, None, patches), module(identity, torch.zeros_like(identity), patches)
    torch.testing.assert_close(alone.query, nothing.query)
    torch.testing.assert_close(alone.local, nothing.local)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_an_image_is_refined_alike_in_any_company(kind):
    module, tensors = small(kind), inputs()
    together = module(*tensors)
    for image in range(3):
        alone = module(*(each[image : image + 1] for each in tensors))
        torch.testing.assert_close(alone.query[0], together.query[image])
        torch.testing.assert_close(alone.local[0], together.local[image])


@pytest.mark.parametrize(
    ("patches", "keep", "stages", "counts"),
    [(128, 0.5, 3, [64, 32, 16]), (8, 0.5, 5, [4, 2, 1, 1, 1]), (7, 0.5, 2, [3, 1]), (6, 1.0, 2, [6, 6])],
)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_how_many_patches_a_stage_keeps(kind, patches, keep, stages, counts):
    refined = small(kind, patches, keep=keep, stages=stages)(*inputs(patches))
    assert [places.shape[1] for places in refined.chosen] == counts


# Where refined patches go


@torch.no_grad()
def test_the_paper_moves_each_chosen_patch_and_no_other():
    module, (identity, attributes, patches) = small(MomentumRefinement, stages=1), inputs()
    refined = module(identity, attributes, patches)
    for image in range(3):
        chosen = refined.chosen[0][image].tolist()
        others = [place for place in range(8) if place not in chosen]
        assert torch.equal(refined.patches[image, others], patches[image, others])
        query = (identity + attributes + module.token)[image][None, None]
        moved = module.block(query, patches[image, chosen][None])[1][0]
        torch.testing.assert_close(refined.patches[image, chosen], 0.1 * moved + 0.9 * patches[image, chosen])


@torch.no_grad()
def test_released_places_are_those_of_other_patches():
    module, (identity, attributes, patches) = small(GatedRefinement, stages=1), inputs()
    refined = module(identity, attributes, patches)
    start = module.entry(module.token.expand(3, 1, -1), (identity + attributes)[:, None])
    displaced = 0
    for image in range(3):
        by_score = refined.chosen[0][image].tolist()
        in_order = sorted(by_score)
        moved = module.block(start[image : image + 1], patches[image, in_order][None])[1][0]
        expected = patches[image, by_score] + 0.1 * moved
        torch.testing.assert_close(refined.patches[image, by_score], expected)
        others = [place for place in range(8) if place not in by_score]
        torch.testing.assert_close(refined.patches[image, others], 1.1 * patches[image, others])
        displaced += sum(one != other for one, other in zip(by_score, in_order, strict=True))
    assert displaced


def test_taking_and_writing_patches():
    patches = torch.arange(6.0).view(1, 3, 2)
    places = torch.tensor([[2, 0]])
    assert gather_patches(patches, places).tolist() == [[[4, 5], [0, 1]]]
    other = scatter_patches(patches, places, torch.tensor([[[8.0, 8.0], [9.0, 9.0]]]))
    assert other.tolist() == [[[9, 9], [2, 3], [8, 8]]]
    assert patches[0, 0].tolist() == [0, 1]


# What learns


def test_the_papers_choice_learns():
    module, tensors = small(MomentumRefinement), inputs()
    module(*tensors).query.square().sum().backward()
    assert module.scores.query.weight.grad.any()
    assert module.scores.key.weight.grad.any()


def test_the_released_choice_does_not():
    module, tensors = small(GatedRefinement), [each.requires_grad_() for each in inputs()]
    refined = module(*tensors)
    (refined.query.square().sum() + refined.local.square().sum()).backward()
    assert [parameter.requires_grad for parameter in module.scores.parameters()] == [False, False]
    assert all(parameter.grad is None for parameter in module.scores.parameters())
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None or name.startswith("scores."), name
    assert {"scores.query.weight", "scores.key.weight"} <= module.state_dict().keys()  # they define the selection


def test_the_gradient_of_a_score_is_that_of_its_logarithm():
    """With the block's patches as the loss, each chosen one is multiplied by 1, whose gradient is d log s."""
    module, (identity, attributes, patches) = small(MomentumRefinement, stages=1, keep=0.5), inputs()
    module.block = PassOn()
    query = (identity + attributes + module.token)[:, None].detach()
    module(identity, attributes, patches)
    entered = module.block.patches  # (B, k, C), chosen patches times 1
    entered.sum().backward()
    found = module.scores.key.weight.grad.clone()
    module.scores.zero_grad()
    scores, strongest = module.strongest(query, patches)
    torch.testing.assert_close(entered, gather_patches(patches, strongest), rtol=0, atol=0)
    (scores.log() * gather_patches(patches, strongest).sum(dim=-1)).sum().backward()
    torch.testing.assert_close(found, module.scores.key.weight.grad)


class PassOn(nn.Module):
    """Stands in for the block and keeps the patches that enter it."""

    def forward(self, query: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        self.patches = patches
        return query, patches


def test_a_score_of_zero_does_no_harm():
    scores = torch.tensor([0.0, 0.25, 0.75], requires_grad=True)
    ones = straight_through(scores)
    assert ones.tolist() == [1, 1, 1]
    ones.sum().backward()
    assert scores.grad.tolist() == [0, 4, pytest.approx(4 / 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_around_the_choice(kind):
    """In everything but the scores, whose gradient is not that of the value: it is 1 whatever the score."""
    # The paper's scores are of a query that begins with the token, and from the second stage on comes out of the block.
    stages, around = (2, ("scores.",)) if kind is GatedRefinement else (1, ("scores.", "token"))
    module, tensors = small(kind, patches=4, stages=stages), inputs(patches=4)
    module.scores.requires_grad_(False)
    learned = [parameter for name, parameter in module.named_parameters() if not name.startswith(around)]

    def run(*_: Tensor) -> tuple[Tensor, Tensor]:
        refined = module(*tensors)
        return refined.query, refined.local

    assert gradcheck(run, tuple(learned), fast_mode=True)


# Bad arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stages": 0}, "stages=0 should be 1 or more"),
        ({"keep": 1.5}, r"keep=1\.5 should be between 0 and 1"),
        ({"momentum": -0.1}, r"momentum=-0\.1 should be between 0 and 1"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_arguments(kind, arguments, message):
    with pytest.raises(InputError, match=message):
        kind(8, 8, **arguments)


def test_scores_are_precise_inside_autocast_and_add_up_to_one():
    torch.manual_seed(0)
    scores, query, patches = PatchScores(8), torch.randn(2, 1, 8), torch.randn(2, 5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = scores(query.bfloat16(), patches.bfloat16())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(dim=1), torch.ones(2))


def test_the_block_has_no_bias_in_queries_keys_and_values():
    block = CVAttention(8)
    assert block.attn.qkv.bias is None
    assert block.to_patches.query.bias is None
