"""The blocks with experts and the image tower around them (TAG-CLIP, Eqs. 3-8)."""

import copy
import math
from functools import partial

import pytest
import torch
from draws import draw
from small_tag_clip import small_clip
from torch import Tensor, nn

from agreid_plugin.errors import InputError
from agreid_plugin.methods.tag_clip import HRMoEBlock, ImageEncoder, MoEBlock
from agreid_plugin.methods.tag_clip.hrmoe import Experts
from agreid_plugin.methods.tag_clip.reference import DenseExperts
from agreid_plugin.nn.clip import ImageTower
from agreid_plugin.nn.experts import make_traceable
from agreid_plugin.types import View

WIDTH, PATCHES = 16, 8
LEAVES = ("weight", "bias")
KINDS = {"moe": MoEBlock, "hr_moe": HRMoEBlock}
drawn = partial(draw, seed=1)


def small_tower() -> ImageTower:
    return small_clip().image


@pytest.fixture(scope="module")
def tower() -> ImageTower:
    return small_tower()


def plain_block(tower: ImageTower) -> nn.Module:
    """A block of its own, in float64."""
    return copy.deepcopy(tower.blocks[1]).double()


def grown(block: MoEBlock) -> MoEBlock:
    """Give every expert weights of its own, and the routers something to decide by."""
    generator = torch.Generator().manual_seed(3)
    for parameter in [*block.experts.parameters(), *block.feature_router.parameters()]:
        parameter.data += 0.5 * torch.randn(parameter.shape, generator=generator)
    if isinstance(block, HRMoEBlock):
        block.image_router.weight.data = torch.randn(2, WIDTH, generator=generator).to(block.image_router.weight)
    return block


def slow_block(block: HRMoEBlock, tokens: Tensor) -> Tensor:
    """Eqs. 3-8 in evaluation, token by token and expert by expert."""
    normal = block.ln_1(tokens)
    tokens = tokens + block.attn(normal, normal, normal)[0]
    hidden, out = block.ln_2(tokens), tokens.clone()
    number = block.feature_router.out_features
    for image in range(len(tokens)):
        view = int(block.image_router(hidden[image, -1]).softmax(dim=0).argmax())
        permitted = range(number - 1) if view == View.AERIAL else range(1, number)
        for place in range(tokens.shape[1]):
            logits = block.feature_router(hidden[image, place])
            mask = torch.tensor([0.0 if each in permitted else -math.inf for each in range(number)])
            shares = (logits + mask).softmax(dim=0)
            best = sorted(range(number), key=lambda each: -shares[each])[: block.top_k]
            for each in best:
                layers = [
                    getattr(block.experts, f"{layer}_{leaf}")[each] for layer in ("c_fc", "c_proj") for leaf in LEAVES
                ]
                inside = block.experts.activation(layers[0] @ hidden[image, place] + layers[1])
                made = layers[2] @ inside + layers[3]
                out[image, place] += shares[each] / sum(shares[other] for other in best) * made
    return out


# One block


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_at_first_a_block_does_what_it_did(tower, kind, training, seed):
    """Whatever view is drawn, and with noise in the routers."""
    plain, tokens = plain_block(tower), drawn(5, PATCHES + 2, WIDTH, seed=seed)
    torch.manual_seed(seed)
    block = KINDS[kind](plain, noise=3.0).double().train(training)
    found, routed = block.run_with_routing(tokens)
    torch.testing.assert_close(found, plain(tokens), rtol=0, atol=1e-12)
    torch.testing.assert_close(routed.weights.sum(dim=-1), torch.ones(5, PATCHES + 2, dtype=torch.float64))


@torch.no_grad()
@pytest.mark.parametrize("top_k", [1, 3, 5])
def test_a_block_equals_the_slow_loop(tower, top_k):
    block = grown(HRMoEBlock(plain_block(tower), top_k=top_k).double()).eval()
    tokens = drawn(4, 5, WIDTH)
    assert set(block.run_with_routing(tokens)[1].views.tolist()) == {0, 1}
    torch.testing.assert_close(block(tokens), slow_block(block, tokens), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top_k", [1, 2, 4, 5])
def test_grouped_experts_equal_all_of_them_run(tower, kind, top_k):
    results, original = [], grown(KINDS[kind](plain_block(tower), top_k=top_k).double())
    for dense in (False, True):
        block = copy.deepcopy(original)
        if dense:
            make_traceable(block)
            assert type(block.experts) is DenseExperts
        tokens = drawn(4, 5, WIDTH).requires_grad_()
        torch.manual_seed(0)
        made = block(tokens)
        (made * drawn(4, 5, WIDTH, seed=2)).sum().backward()
        results.append((made, tokens.grad, {name: value.grad for name, value in block.named_parameters()}))
    (made, gradient, own), (dense_made, dense_gradient, dense_own) = results
    torch.testing.assert_close(made, dense_made, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradient, dense_gradient, rtol=0, atol=1e-9)
    for name in own.keys() - {"image_router.weight", "image_router.bias"}:
        torch.testing.assert_close(own[name], dense_own[name], rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize("view", View)
def test_a_forbidden_expert_has_no_weight_and_no_gradient(tower, view):
    block = grown(HRMoEBlock(plain_block(tower), sample="argmax").double())
    block.image_router.weight.data.zero_()
    block.image_router.bias.data = torch.tensor([1.0, 0.0] if view == View.AERIAL else [0.0, 1.0]).double()
    made, routed = block.run_with_routing(drawn(3, 5, WIDTH))
    made.square().sum().backward()
    forbidden = 5 if view == View.AERIAL else 0
    assert routed.views.tolist() == [view] * 3
    assert (routed.weights[..., forbidden] == 0).all()
    assert (routed.weights[..., 1:5] > 0).all()
    for parameter in block.experts.parameters():
        assert (parameter.grad[forbidden] == 0).all()  # zero rather than none, for processes that wait for it
        others = [each for each in range(6) if each != forbidden]
        assert (parameter.grad[others].flatten(1).abs().sum(dim=1) > 0).all()


@pytest.mark.parametrize(("exclusive", "aerial", "ground"), [(0, 6, 6), (1, 5, 5), (2, 4, 4)])
def test_groups_overlap(tower, exclusive, aerial, ground):
    block = HRMoEBlock(plain_block(tower), top_k=2, exclusive=exclusive)
    permitted = block.mask_permitted(torch.tensor([View.AERIAL, View.GROUND]))
    assert permitted.tolist() == [
        [expert < aerial for expert in range(6)],
        [expert >= 6 - ground for expert in range(6)],
    ]


@pytest.mark.parametrize(
    ("kind", "top_k", "expected"), [("hr_moe", 5, 20 * 5), ("hr_moe", 2, 20 * 2), ("moe", 5, 20 * 5)]
)
def test_only_what_is_chosen_is_run(tower, monkeypatch, kind, top_k, expected):
    block, counted, run = grown(KINDS[kind](plain_block(tower), top_k=top_k).double()), [], Experts.run
    monkeypatch.setattr(
        Experts, "run", lambda self, values, layers: counted.append(values) or run(self, values, layers)
    )
    block(drawn(4, 5, WIDTH))
    assert sum(values.numel() // WIDTH for values in counted) == expected  # of 4 * 5 tokens to 6 experts


def test_views_are_drawn_by_their_probability(tower):
    block = HRMoEBlock(plain_block(tower)).double()
    block.image_router.weight.data.zero_()
    block.image_router.bias.data = torch.tensor([math.log(3), 0.0]).double()  # 3 : 1
    torch.manual_seed(0)
    hidden = drawn(4000, 2, WIDTH)
    assert block.route(hidden).views.float().mean().item() == pytest.approx(0.25, abs=0.03)
    block.sample = "argmax"
    assert (block.route(hidden).views == View.AERIAL).all()
    block.sample = "gumbel"
    assert (block.eval().route(hidden).views == View.AERIAL).all()


def test_noise_is_for_training_alone(tower):
    hidden = drawn(2, 4, WIDTH)
    block = MoEBlock(plain_block(tower), noise=1.0).double()
    assert not block.route(hidden).weights.equal(block.route(hidden).weights)
    block.eval()
    assert block.route(hidden).weights.equal(block.route(hidden).weights)


@pytest.mark.parametrize("top_k", [2, 5])
def test_gradients_of_a_block(tower, top_k):
    block = grown(HRMoEBlock(plain_block(tower), top_k=top_k).double()).eval()
    tokens = drawn(2, 3, WIDTH).requires_grad_()
    assert torch.autograd.gradcheck(lambda *_: block(tokens), (tokens, *block.parameters()), fast_mode=True)


def test_routers_are_precise_inside_autocast(tower):
    block = grown(HRMoEBlock(copy.deepcopy(tower.blocks[1]))).eval()
    hidden = drawn(4, 5, WIDTH, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        routed = block.route(hidden)
        made = block(hidden)
    assert routed.weights.equal(block.route(hidden).weights)
    assert routed.logits.dtype == torch.float32
    assert made.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_k": 7}, "top_k=7 should be between 1 and the number of experts, 6"),
        ({"top_k": 6}, "top_k=6 should be at most the experts of a view, 5"),
        ({"exclusive": 3, "top_k": 1}, "exclusive=3 of each view leaves none to share of experts=6"),
        ({"sample": "gumble"}, "sample 'gumble' unknown .did you mean gumbel"),
        ({"noise": -1.0}, r"noise=-1\.0 should be 0 or more"),
    ],
)
def test_bad_blocks_are_refused(tower, arguments, message):
    with pytest.raises(InputError, match=message):
        HRMoEBlock(plain_block(tower), **arguments)


# The tower


def images() -> Tensor:
    return drawn(3, 3, 32, 16, dtype=torch.float32)


def lengths(encoder: ImageEncoder) -> list[int]:
    """Return how many tokens enter each block, and how many come out at the end."""
    seen = []
    handles = [
        block.ln_1.register_forward_pre_hook(lambda _, tokens: seen.append(tokens[0].shape[1]))
        for block in encoder.tower.blocks
    ]
    with torch.no_grad():
        encoded = encoder(images(), attention=False)
    for handle in handles:
        handle.remove()
    return [*seen, encoded.tokens.shape[1]]


@pytest.mark.parametrize(
    ("kind", "at", "expected"),
    [
        ("hr_moe", (1, 2), [10, 10, 10, 9, 9]),
        ("hr_moe", (2, 1), [10, 10, 10, 9, 9]),
        ("hr_moe", (0,), [10, 9, 9, 9, 9]),
        ("hr_moe", (1, 3), [10, 10, 10, 10, 9]),
        ("moe", (1, 2), [9] * 5),
        ("vit", (6, 7, 8), [9] * 5),
    ],
)
def test_the_view_token_leaves_after_the_last_experts(kind, at, expected):
    encoder = ImageEncoder(small_tower(), kind, at)
    assert lengths(encoder) == expected
    assert encoder(images()).attention.shape == (3, 1 + PATCHES)


@torch.no_grad()
@pytest.mark.parametrize("at", [(1, 2), (1, 3), (3,)])
def test_at_first_the_tower_is_clip_with_one_more_token(at):
    """A token without a position, behind `ln_pre`, dropped after the last block with experts."""
    plain = small_tower().double()
    encoder = ImageEncoder(small_tower(), "hr_moe", at).double()
    found = encoder(images().double())
    view = plain.visual.ln_pre(encoder.view_token).expand(3, 1, -1)
    tokens = plain.run(torch.cat([plain.start(images().double()), view], dim=1), last=at[-1] + 1)
    tokens = plain.run(tokens[:, :-1], first=at[-1] + 1)
    torch.testing.assert_close(found.tokens, plain.project(plain.end(tokens)), rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["moe", "vit"])
def test_at_first_the_tower_without_a_view_token_is_clip(kind):
    plain = small_tower().double()
    encoder = ImageEncoder(small_tower(), kind, (1, 2)).double()
    found = encoder(images().double())
    torch.testing.assert_close(found.tokens, plain.project(plain(images().double()).tokens), rtol=0, atol=1e-10)
    assert encoder.view_token is None
    assert len(found.routed) == {"moe": 2, "vit": 0}[kind]


@torch.no_grad()
@pytest.mark.parametrize("at", [(1, 2), (3,)])
def test_attention_is_that_of_the_last_block(at):
    """With the view token among the keys if it is still there; what CLS gives to it is left out."""
    encoder = ImageEncoder(small_tower(), "hr_moe", at).eval()
    entering = []
    last = encoder.tower.blocks[-1]
    handle = last.ln_1.register_forward_pre_hook(lambda _, tokens: entering.append(tokens[0]))
    found = encoder(images()).attention
    handle.remove()
    normal = last.ln_1(entering[-1])
    weights = last.attn(normal, normal, normal, need_weights=True)[1][:, 0]  # (B, N)
    torch.testing.assert_close(found, weights[:, : 1 + PATCHES])
    assert (found.sum(dim=1) < 0.999).all() == (at == (3,))


@torch.no_grad()
def test_evaluation_is_deterministic_and_does_not_depend_on_the_batch():
    encoder = ImageEncoder(small_tower(), "hr_moe", (1, 2))
    for number in encoder.at:
        grown(encoder.tower.blocks[number])
    encoder.eval()
    once = encoder(images()).tokens
    assert once.equal(encoder(images()).tokens)
    alone = torch.cat([encoder(image.unsqueeze(0)).tokens for image in images()])
    torch.testing.assert_close(once, alone, rtol=0, atol=1e-5)
    encoder.train()
    for number in encoder.at:
        encoder.tower.blocks[number].sample, encoder.tower.blocks[number].noise = "argmax", 0.0
    torch.testing.assert_close(once, encoder(images()).tokens, rtol=0, atol=1e-5)


@pytest.mark.parametrize("at", [(), (1, 1), (4,), (-1,)])
def test_bad_places_are_refused(at):
    with pytest.raises(InputError, match=r"should be blocks with experts, each once: 0 \.\. 3"):
        ImageEncoder(small_tower(), "hr_moe", at)


def test_a_bad_kind_is_refused():
    with pytest.raises(InputError, match=r"block 'hrmoe' unknown .did you mean hr_moe"):
        ImageEncoder(small_tower(), "hrmoe")
