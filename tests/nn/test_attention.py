import math

import pytest
import torch
import torch.nn.functional as F

from agreid_plugin.errors import InputError
from agreid_plugin.nn.attention import Attention, Block, DropPath, Mlp, PostNormBlock


def tokens(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def slow_attention(attention: Attention, inputs: torch.Tensor) -> torch.Tensor:
    """Softmax attention, image by image, head by head, token by token."""
    width = inputs.shape[2]
    size = width // attention.heads
    seen = torch.zeros_like(inputs)
    for image, row in enumerate(attention.qkv(inputs)):
        query, key, value = row[:, :width], row[:, width : 2 * width], row[:, 2 * width :]
        for start in range(0, width, size):
            part = slice(start, start + size)
            for token in range(inputs.shape[1]):
                scores = [(query[token, part] @ other).item() / math.sqrt(size) for other in key[:, part]]
                weights = [math.exp(score) for score in scores]
                mean = sum(weight * other for weight, other in zip(weights, value[:, part], strict=True))
                seen[image, token, part] = mean / sum(weights)
    return attention.proj(seen)


@pytest.mark.parametrize("qkv_bias", [True, False])
@torch.no_grad()
def test_attention_equals_the_slow_loop(qkv_bias):
    torch.manual_seed(1)
    attention = Attention(12, 3, qkv_bias)
    assert (attention.qkv.bias is not None) == qkv_bias
    inputs = tokens(2, 5, 12)
    expected = slow_attention(attention, inputs)
    torch.testing.assert_close(attention(inputs), expected)
    torch.testing.assert_close(attention(inputs, first=2), expected[:, :2])


def test_one_token_attends_to_itself_by_hand():
    attention = Attention(2, 1, qkv_bias=False)
    with torch.no_grad():
        attention.qkv.weight.copy_(torch.cat([torch.eye(2), torch.eye(2), 3 * torch.eye(2)]))  # value = 3 t
        attention.proj.weight.copy_(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))  # swaps the two
        attention.proj.bias.copy_(torch.tensor([0.5, 0.0]))
    assert attention(torch.tensor([[[1.0, 2.0]]])).tolist() == [[[6.5, 3.0]]]


@pytest.mark.parametrize("heads", [0, 5])
def test_heads_that_do_not_divide_the_width_are_named(heads):
    with pytest.raises(InputError, match=f"heads={heads} .* width=12"):
        Attention(12, heads)


def test_an_mlp_without_hidden_units_is_refused():
    with pytest.raises(InputError, match=r"hidden=0 .* mlp_ratio"):
        Block(12, 3, mlp_ratio=0.01)


def test_mlp_by_hand():  # exact GELU: x Phi(x), Phi(1) = 0.841345
    mlp = Mlp(1, 1)
    with torch.no_grad():
        for parameter, value in zip(mlp.parameters(), (2.0, -1.0, 10.0, 0.5), strict=True):
            parameter.fill_(value)
    assert mlp(torch.ones(1, 1, 1)).item() == pytest.approx(10 * 0.841345 + 0.5, rel=1e-5)


def test_drop_path_keeps_the_expectation_and_drops_whole_images():
    torch.manual_seed(0)
    branch = tokens(20000, 2, 3)
    dropped = DropPath(0.3).train()(branch)
    gone = dropped.flatten(1).eq(0).all(dim=1)
    assert gone.float().mean().item() == pytest.approx(0.3, abs=0.02)
    torch.testing.assert_close(dropped[~gone], branch[~gone] / 0.7)
    assert DropPath(0.3)(torch.ones(20000, 1)).mean().item() == pytest.approx(1, abs=0.02)


def test_drop_path_is_the_identity_in_evaluation_and_at_rate_0():
    branch = tokens(4, 2, 3)
    assert DropPath(0.9).eval()(branch) is branch
    assert DropPath(0.0).train()(branch) is branch


def test_drop_path_of_1_leaves_zeros():
    assert DropPath(1.0)(tokens(4, 2, 3)).eq(0).all()


@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_bad_drop_rates_are_named(rate):
    with pytest.raises(InputError, match=f"drop_path={rate}"):
        DropPath(rate)


@torch.no_grad()
def test_block_normalizes_before_each_branch():
    torch.manual_seed(2)
    block, inputs = Block(8, 2, mlp_ratio=3.0).eval(), tokens(2, 5, 8)
    middle = inputs + slow_attention(block.attn, F.layer_norm(inputs, (8,), eps=1e-6))
    hidden = F.gelu(F.layer_norm(middle, (8,), eps=1e-6) @ block.mlp.fc1.weight.T + block.mlp.fc1.bias)
    assert hidden.shape == (2, 5, 24)
    expected = middle + hidden @ block.mlp.fc2.weight.T + block.mlp.fc2.bias
    torch.testing.assert_close(block(inputs), expected)


def test_a_block_with_both_branches_dropped_is_the_identity():
    inputs = tokens(2, 5, 8)
    assert torch.equal(Block(8, 2, drop_path=1.0).train()(inputs), inputs)


@torch.no_grad()
def test_post_norm_block_normalizes_after_each_branch():
    torch.manual_seed(3)
    block, inputs = PostNormBlock(8, 2, mlp_ratio=2.0), tokens(2, 5, 8)
    assert block.attn.qkv.bias is None
    middle = F.layer_norm(inputs + slow_attention(block.attn, inputs), (8,), eps=1e-5)
    hidden = F.gelu(middle @ block.mlp.fc1.weight.T + block.mlp.fc1.bias)
    assert hidden.shape == (2, 5, 16)
    expected = F.layer_norm(middle + hidden @ block.mlp.fc2.weight.T + block.mlp.fc2.bias, (8,), eps=1e-5)
    torch.testing.assert_close(block(inputs), expected)


@pytest.mark.parametrize(("kind", "eps"), [(Block, 1e-6), (PostNormBlock, 1e-5)])
def test_names_and_eps(kind, eps):
    block = kind(8, 2)
    assert {name.split(".")[0] for name in block.state_dict()} == {"norm1", "attn", "norm2", "mlp"}
    assert block.norm1.eps == block.norm2.eps == eps


def test_gradient_reaches_every_parameter():
    for block in (Block(8, 2), PostNormBlock(8, 2)):
        (block(tokens(2, 5, 8)) * tokens(2, 5, 8)).sum().backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in block.parameters())


def test_the_row_of_cls_is_the_softmax_of_its_scores():
    torch.manual_seed(0)
    attention, inputs = Attention(8, 2), tokens(3, 5, 8)
    query, key, _ = attention.qkv(inputs).chunk(3, dim=-1)
    wanted = torch.zeros(3, 5)
    for head in (slice(0, 4), slice(4, 8)):
        for image in range(3):
            scores = key[image, :, head] @ query[image, 0, head] / 2.0
            wanted[image] += scores.softmax(dim=0) / 2
    torch.testing.assert_close(attention.cls_attention(inputs), wanted)
