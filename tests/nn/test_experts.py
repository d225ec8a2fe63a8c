import math

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from agreid_plugin.errors import InputError
from agreid_plugin.methods.visa import reference
from agreid_plugin.nn.experts import GroupedLayerNorm, GroupedLinear, Router, TokenExperts

LN3 = math.log(3)


def bank(experts: int = 5, tokens: int = 3, width: int = 8, heads: int = 2, dtype=torch.float32) -> TokenExperts:
    """Experts all of whose parameters are random, norms too."""
    torch.manual_seed(0)
    made = TokenExperts(experts, tokens, width, heads).to(dtype)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


def vectors(count: int, width: int = 8, dtype=torch.float32) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(1)).to(dtype)


def one_by_one(experts: TokenExperts, inputs: Tensor, chosen: Tensor) -> Tensor:
    """Eq. 7 for each vector alone."""
    made = [
        reference.run_expert(experts, number, vector[None])
        for vector, number in zip(inputs, chosen.tolist(), strict=True)
    ]
    return torch.cat(made)


def expert_by_hand() -> TokenExperts:
    """Two experts of width 4 that make one token; the second has weights to reckon with."""
    experts = TokenExperts(2, 1, 4, heads=1, mlp_ratio=1.0)
    eye, backward = torch.eye(4), torch.eye(4).flip(0)
    values = {
        "tokens": [[2.0, 0.0, 0.0, 0.0]],
        "value.weight": eye,
        "value.bias": torch.ones(4),
        "out.weight": backward,
        "out.bias": [-5.0, -2.0, -3.0, -2.0],
        "qkv.weight": torch.cat([torch.rand(8, 4), 2 * eye]),  # alone, a token attends to itself
        "proj.weight": torch.diag(torch.tensor([0.0, -1.0, -1.0, 0.0])),
        "proj.bias": torch.zeros(4),
        "norm2.bias": [0.0, 0.0, 0.0, 4.0],
        "fc1.weight": 10 * eye,
        "fc1.bias": torch.zeros(4),
        "fc2.weight": 0.1 * backward,
        "fc2.bias": [0.0, 0.0, -1.0, -4.0],
        "norm3.weight": [1.0, 1.0, 1.0, 2.0],
    }
    with torch.no_grad():
        for name, value in values.items():
            experts.get_parameter(name)[1] = torch.as_tensor(value)
    return experts


def test_an_expert_by_hand():  # Eq. 7
    # Cross-attention: Z + 1 = (1, 2, 3, 4), backward and shifted (-1, 1, -1, -1); with T (1, 1, -1, -1), a normal one.
    # Self-attention: value (2, 2, -2, -2), projected (0, -2, 2, 0), added (1, -1, 1, -1); norm and shift (1, -1, 1, 3).
    # FFN: 10 t through GELU (10, 0, 10, 30), backward a tenth (3, 1, 0, 1), shifted (3, 1, -1, -3); added (4, 0, 0, 0).
    # Norm: mean 1, variance 3, so (3, -1, -1, -1) / sqrt(3), the last doubled.
    made = expert_by_hand()(torch.tensor([[0.0, 1.0, 2.0, 3.0]]), torch.tensor([1]))
    expected = torch.tensor([[[3.0, -1.0, -1.0, -2.0]]]) / math.sqrt(3)
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)  # the norms' eps


@torch.no_grad()
def test_cross_attention_to_one_key_does_not_depend_on_queries_and_keys():
    experts, inputs = bank(dtype=torch.float64), vectors(4, dtype=torch.float64)
    made = experts(inputs, torch.full((4,), 2))
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        cross = tuple(torch.randn(2, 8, 8, generator=generator, dtype=torch.float64) * 3)
        torch.testing.assert_close(reference.run_expert(experts, 2, inputs, cross), made, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
@torch.no_grad()
def test_the_bank_equals_a_loop_for_random_routing(seed):
    experts, inputs = bank(), vectors(12)
    chosen = torch.randint(0, 5, (12,), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(experts(inputs, chosen), one_by_one(experts, inputs, chosen), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "chosen",
    [
        [4, 0, 4, 0, 2],  # nothing for 1 and 3
        [3, 3, 3, 3, 3],
        [4],
        [],
    ],
)
@torch.no_grad()
def test_the_bank_equals_a_loop_in_corners(chosen):
    experts, inputs = bank(dtype=torch.float64), vectors(len(chosen), dtype=torch.float64)
    made = experts(inputs, torch.tensor(chosen, dtype=torch.long))
    assert made.shape == (len(chosen), 3, 8)
    if chosen:
        torch.testing.assert_close(made, one_by_one(experts, inputs, torch.tensor(chosen)), rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_permuted_batch_gives_permuted_tokens():
    experts, inputs = bank(dtype=torch.float64), vectors(7, dtype=torch.float64)
    chosen, order = torch.tensor([1, 0, 4, 1, 1, 3, 0]), torch.tensor([3, 6, 0, 2, 5, 1, 4])
    made = experts(inputs, chosen)
    torch.testing.assert_close(experts(inputs[order], chosen[order]), made[order], rtol=0, atol=1e-12)


def test_an_unused_expert_has_a_gradient_of_zero():
    experts = bank()
    experts(vectors(3), torch.tensor([0, 2, 2])).square().sum().backward()
    for name, parameter in experts.named_parameters():
        assert parameter.grad[[0, 2]].flatten(1).any(dim=1).all(), name
        assert not parameter.grad[[1, 3, 4]].any(), name


def test_gradient_of_the_bank():
    experts, inputs = bank(2, 2, 4, dtype=torch.float64), vectors(3, 4, torch.float64).requires_grad_()
    chosen = torch.tensor([1, 0, 1])
    assert gradcheck(lambda *_: experts(inputs, chosen), (inputs, *experts.parameters()), fast_mode=True)


def test_grouped_layers_by_hand():
    linear, norm = GroupedLinear(2, 2, 1), GroupedLayerNorm(2, 2, eps=0.0)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]))
        linear.bias.copy_(torch.tensor([[0.5], [-1.0]]))
        norm.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        norm.bias.copy_(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
    ones = torch.ones(3, 2)
    assert linear(ones, [1, 2]).tolist() == [[3.5], [6.0], [6.0]]
    assert linear(ones, [3, 0]).tolist() == [[3.5], [3.5], [3.5]]
    values = torch.tensor([[[5.0, 7.0]], [[7.0, 5.0]]])  # normal: (-1, 1) and (1, -1)
    assert norm(values, torch.tensor([1, 0])).tolist() == [[[-3.0, 3.0]], [[1.0, -1.0]]]


def router_by_hand() -> Router:
    """Two groups of three experts, two chosen."""
    router = Router(2, 3, 2, groups=2)
    with torch.no_grad():
        router.weight.copy_(torch.tensor([[[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]]))
        router.bias.copy_(torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 4 * LN3]]))
    return router


def test_routing_by_hand():
    # For (ln 3, ln 9) the e^logits of group 0 are 3, 1, 9: experts 2 and 0 with 9 / 12 and 3 / 12.
    # Those of group 1 are 9, 3, 81: experts 2 and 0 with 81 / 90 and 9 / 90.
    routing = router_by_hand()(torch.tensor([[LN3, 2 * LN3]] * 2), torch.tensor([0, 1]))
    torch.testing.assert_close(routing.logits, LN3 * torch.tensor([[1.0, 0.0, 2.0], [2.0, 1.0, 4.0]]))
    assert routing.experts.tolist() == [[2, 0], [2, 0]]
    torch.testing.assert_close(routing.weights, torch.tensor([[0.75, 0.25], [0.9, 0.1]]))
    torch.testing.assert_close(routing.probabilities[0], torch.tensor([3.0, 1.0, 9.0]) / 13)


def test_without_a_group_it_is_the_first():
    router, inputs = router_by_hand(), vectors(5, 2)
    routing, first = router(inputs), router(inputs, torch.zeros(5, dtype=torch.long))
    assert torch.equal(routing.logits, first.logits)
    assert torch.equal(routing.experts, first.experts)


@torch.no_grad()
def test_routing_equals_the_reference_form_in_each_group():
    torch.manual_seed(0)
    router, inputs, group = Router(8, 5, 3, groups=2), vectors(9), torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1])
    routing = router(inputs, group)
    for number in range(2):
        expected = reference.route(router, inputs[group == number], number)
        assert torch.equal(routing.experts[group == number], expected.experts)
        torch.testing.assert_close(routing.weights[group == number], expected.weights)
        torch.testing.assert_close(routing.logits[group == number], expected.logits)


def test_every_group_has_a_gradient_in_a_batch_of_one_group():
    router = Router(4, 3, 2, groups=2)
    router(vectors(6, 4), torch.ones(6, dtype=torch.long)).logits.square().sum().backward()
    for parameter in router.parameters():
        assert not parameter.grad[0].any()
        assert parameter.grad[1].all()


def test_gradient_of_the_router():
    torch.manual_seed(0)
    router, inputs = Router(3, 4, 2, groups=2).double(), vectors(3, 3, torch.float64).requires_grad_()

    def outputs(*_):
        routing = router(inputs, torch.tensor([0, 1, 1]))
        return routing.weights, routing.probabilities

    assert gradcheck(outputs, (inputs, *router.parameters()))


def test_routing_in_float32_inside_autocast():
    router, inputs = Router(8, 4, 2), vectors(6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        routing = router(inputs)
    assert torch.equal(routing.logits, router(inputs).logits)


@pytest.mark.parametrize("top_k", [0, 5])
def test_a_top_k_out_of_range_is_named(top_k):
    with pytest.raises(InputError, match=f"top_k={top_k} .* 4"):
        Router(8, 4, top_k)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"width": 10, "heads": 3}, "width=10 .* heads=3"), ({"tokens": 0}, "tokens=0")],
)
def test_bad_arguments_of_the_bank_are_named(arguments, words):
    with pytest.raises(InputError, match=words):
        TokenExperts(**{"experts": 2, "tokens": 3, "width": 8, "heads": 2} | arguments)


def test_a_centered_router_by_hand():
    router = Router(width=2, experts=3, top_k=1, centered=True)
    router.weight.data = torch.tensor([[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]])
    router.bias.data.zero_()
    far = torch.tensor([100.0, 50.0])
    routing = router(far + torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 2.0], [-1.0, -2.0]]))
    # Means 100 and 50, standard deviations 1 and sqrt(2): the third image is (1, sqrt(2)).
    torch.testing.assert_close(routing.logits[2], torch.tensor([1.0, -1.0, math.sqrt(2)]), atol=1e-4, rtol=0)
    assert routing.experts.flatten().tolist() == [0, 1, 2, 1]
    assert routing.choices.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]]


@torch.no_grad()
def test_what_vectors_have_in_common_chooses_no_experts_of_a_centered_router():
    common = 20 * torch.randn(1, 16, generator=torch.Generator().manual_seed(2))
    used = {}
    for centered in (False, True):
        torch.manual_seed(0)
        router = Router(16, experts=8, top_k=2, centered=centered)
        used[centered] = len(router(common + vectors(64, 16)).experts.unique())
    assert used[False] <= 3
    assert used[True] == 8


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_operation_of_compiled_graphs_is_the_layer(bias, autocast):
    torch.manual_seed(0)
    layer, counts = GroupedLinear(3, 4, 5, bias=bias), [2, 0, 3]  # one expert has nothing to do
    inputs = torch.randn(5, 2, 4, requires_grad=True)
    found = []
    for given in (counts, torch.tensor(counts)):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            outputs = layer(inputs, given)
        gradients = torch.autograd.grad(outputs.square().sum(), [inputs, *layer.parameters()])
        found.append([outputs, *gradients])
    for plain, operation in zip(*found, strict=True):
        assert plain.dtype == operation.dtype
        assert torch.allclose(plain, operation, atol=1e-5, rtol=0.02 if autocast else 1e-5)


def test_the_operation_of_compiled_graphs_has_shapes_and_gradients():
    layer = GroupedLinear(3, 4, 5).double()
    values = torch.randn(5, 2, 4, dtype=torch.float64, requires_grad=True)
    operation = torch.ops.agreid_plugin.grouped_linear.default
    torch.library.opcheck(operation, (values, layer.weight, layer.bias, torch.tensor([2, 0, 3])))
    assert gradcheck(lambda *given: operation(*given, torch.tensor([2, 0, 3])), (values, layer.weight, layer.bias))
