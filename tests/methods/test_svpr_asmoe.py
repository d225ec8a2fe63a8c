"""ASMoE of SVPR-ReID: Eqs. 5-7, against the formulas written out."""

import pytest
import torch
from draws import draw
from torch import Tensor, nn
from torch.autograd import gradcheck

from agreid_plugin.errors import InputError
from agreid_plugin.methods.svpr.asmoe import ASMoE, AttributeExperts, AttributeHeads, RoutedFusion, ScoredFusion
from agreid_plugin.nn.bnneck import BNNeck

SIZES = (2, 3, 4, 2, 3)


def wide(module: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double()


def small_asmoe(released: bool, **arguments) -> ASMoE:
    top_k = 3 if released else None
    return wide(ASMoE(4, 8, SIZES, **{"top_k": top_k, "scored_experts": not released} | arguments)).eval()


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Text, patches and identity of two images."""
    return draw(2, 4), draw(2, 6, 8, seed=1), draw(2, 8, seed=2)


def expert_by_hand(layers: nn.Sequential, vector: Tensor) -> Tensor:
    first, _, second, _, norm = layers
    hidden = first.weight @ vector + first.bias
    hidden = hidden * torch.sigmoid(1.702 * hidden)
    made = second.weight @ hidden + second.bias
    made = made * torch.sigmoid(1.702 * made)
    return (made - made.mean()) / (made.var(unbiased=False) + 1e-6).sqrt() * norm.weight + norm.bias


# Eq. 6


@pytest.mark.parametrize("top_k", [None, 3, 1])
@torch.no_grad()
def test_experts_equal_a_loop(top_k):
    moe, vectors = wide(AttributeExperts(8, 4, top_k)), draw(2, 3, 8)
    found, gates = moe(vectors)
    for image in range(2):
        for place in range(3):
            vector = vectors[image, place]
            logits = moe.gate.weight @ vector + moe.gate.bias
            torch.testing.assert_close(gates[image, place], logits)
            weights = logits.softmax(0)
            counting = weights.argsort(descending=True)[: top_k or 4].tolist()
            expected = sum(weights[number] * expert_by_hand(moe.experts[number], vector) for number in counting)
            torch.testing.assert_close(found[image, place], expected)


def test_experts_hidden_width_and_number():
    moe = AttributeExperts(8)
    assert len(moe.experts) == 4
    assert moe.experts[0][0].weight.shape == (32, 8)


@pytest.mark.parametrize(("experts", "top_k"), [(4, 5), (2, 3), (4, 0)])
def test_more_experts_than_there_are(experts, top_k):
    with pytest.raises(InputError, match=f"expert_top_k={top_k} should be between 1 and .*, {experts}"):
        AttributeExperts(8, experts, top_k)


@pytest.mark.parametrize("released", [False, True])
@torch.no_grad()
def test_what_enters_the_experts(released):
    asmoe, (text, patches, identity) = small_asmoe(released), inputs()
    made = asmoe(text, patches, identity)
    for image in range(2):
        hidden = nn.functional.gelu(asmoe.inverse[0].weight @ text[image] + asmoe.inverse[0].bias)
        asked = asmoe.inverse[3].weight @ hidden + asmoe.inverse[3].bias  # phi of Eq. 5
        context = asmoe.attention(asked[None, None], patches[image : image + 1])[0, 0]
        for place in range(len(SIZES)):
            expected = asmoe.experts((identity[image] + context + asmoe.prompts[place])[None])[0][0]
            torch.testing.assert_close(made.tokens[image, place], expected)


# Eq. 7


@torch.no_grad()
def test_equation_7_of_the_paper_by_hand():
    fusion = ScoredFusion(2, 3).double()
    fusion.score.weight.copy_(torch.tensor([[1.0, 0.0]]))
    fusion.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
    tokens = torch.tensor([[[0.0, 1.0], [2.0, 5.0], [1.0, -1.0]]], dtype=torch.float64)
    vector, scores, chosen = fusion(draw(1, 3, 2), tokens, 2)
    share = torch.tensor([0.0, 2.0, 1.0], dtype=torch.float64).softmax(0)
    torch.testing.assert_close(scores[0], share)
    assert chosen.tolist() == [[1, 2]]
    torch.testing.assert_close(vector[0], 2 * share[1] * tokens[0, 1] + 3 * share[2] * tokens[0, 2])


@torch.no_grad()
def test_equation_7_as_released_by_hand():
    fusion = wide(RoutedFusion(2))
    entering, tokens = draw(1, 3, 2), draw(1, 3, 2, seed=1)
    vector, scores, chosen = fusion(entering, tokens, 2)
    first, _, second = fusion.score
    expected = []
    for each in entering[0]:
        hidden = nn.functional.gelu(first.weight @ each + first.bias)  # one number
        expected.append((second.weight @ hidden + second.bias).mean())
    expected = torch.stack(expected)
    torch.testing.assert_close(scores[0], expected)
    strongest = expected.argsort(descending=True)[:2]
    assert chosen[0].tolist() == strongest.tolist()
    weights = expected[strongest].softmax(0)
    torch.testing.assert_close(vector[0], weights[0] * tokens[0, strongest[0]] + weights[1] * tokens[0, strongest[1]])


def test_weights_of_attributes_start_at_one():
    assert ScoredFusion(4, 3).weight.tolist() == [1, 1, 1]


@pytest.mark.parametrize(("attributes", "ratio", "count"), [(15, 0.7, 10), (12, 0.7, 8), (22, 0.7, 15), (1, 0.7, 1)])
def test_how_many_attributes_are_chosen(attributes, ratio, count):
    assert ASMoE(8, 8, (2,) * attributes, ratio=ratio).count == count


@pytest.mark.parametrize("released", [False, True])
def test_gradients(released):
    asmoe, tensors = small_asmoe(released, experts=3, ratio=0.5), inputs()
    tensors = [each.requires_grad_() for each in tensors]

    def run(*_: Tensor) -> tuple[Tensor, ...]:
        made = asmoe(*tensors)
        return made.vector, *made.logits

    learned = [parameter for parameter in asmoe.parameters() if parameter.requires_grad]
    assert gradcheck(run, (*tensors, *learned), fast_mode=True)


@pytest.mark.parametrize("released", [False, True])
def test_the_choice_of_attributes_learns(released):
    asmoe = small_asmoe(released)
    asmoe(*inputs()).vector.square().sum().backward()
    for name, parameter in asmoe.fusion.named_parameters():
        assert parameter.grad.isfinite().all(), name
    first = asmoe.fusion.score if isinstance(asmoe.fusion.score, nn.Linear) else asmoe.fusion.score[0]
    assert first.weight.grad.any()


# The heads


def test_heads_equal_one_norm_and_classifier_an_attribute():
    heads, tokens = wide(AttributeHeads(4, (2, 3))), draw(6, 2, 4)
    separate = [BNNeck(4, size).double() for size in (2, 3)]
    with torch.no_grad():
        for place, neck in enumerate(separate):
            neck.norm.weight.copy_(heads.norm.weight[4 * place : 4 * place + 4])
            neck.norm.bias.copy_(heads.norm.bias[4 * place : 4 * place + 4])
            neck.classifier.weight.copy_(heads.classifiers[place].weight)
    for place, found in enumerate(heads(tokens)):
        torch.testing.assert_close(found, separate[place](tokens[:, place]).logits)
        kept = heads.norm.running_var[4 * place : 4 * place + 4]
        torch.testing.assert_close(kept, separate[place].norm.running_var)
    assert not heads.norm.bias.requires_grad


def test_logits_at_test_time_too():
    asmoe = small_asmoe(released=False)
    assert [each.shape for each in asmoe(*inputs()).logits] == [(2, size) for size in SIZES]


def test_bad_arguments():
    with pytest.raises(InputError, match=r"sizes=\(\) should have one number an attribute"):
        ASMoE(8, 8, ())
    with pytest.raises(InputError, match=r"attribute_ratio=1\.5 should be between 0 and 1"):
        ASMoE(8, 8, SIZES, ratio=1.5)


@pytest.mark.parametrize("released", [False, True])
def test_choices_are_precise_inside_autocast(released):
    asmoe, tensors = small_asmoe(released).float(), [each.float() for each in inputs()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = asmoe(*tensors)
    assert made.scores.dtype == made.gates.dtype == torch.float32
