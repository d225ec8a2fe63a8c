"""VDFE of SVPR-ReID: Eqs. 1-4, against the formulas written out."""

import pytest
import torch
from draws import draw
from small_svpr import TEXT_WIDTH, WIDTH, batch, small_clip, small_svpr
from torch import Tensor, nn
from torch.autograd import gradcheck

from agreid_plugin.errors import InputError
from agreid_plugin.methods.svpr.text import ViewText
from agreid_plugin.methods.svpr.vdfe import CrossAttention, InverseNet, ViewDecoupling, ViewToken


def wide(module: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module.double().eval()


def attend_slowly(layer: CrossAttention, queries: Tensor, keys: Tensor) -> Tensor:
    """One query after another, one head after another: (Q, D), (K, D) -> (Q, D)."""
    width = queries.shape[1] // layer.heads
    outputs = []
    for query in queries:
        heads = []
        for head in range(layer.heads):
            rows = slice(head * width, (head + 1) * width)
            asked = layer.query.weight[rows] @ query
            scores = torch.stack([asked @ (layer.key.weight[rows] @ key) / width**0.5 for key in keys]).softmax(0)
            heads.append(sum(score * (layer.value.weight[rows] @ key) for score, key in zip(scores, keys, strict=True)))
        outputs.append(layer.proj.weight @ torch.cat(heads) + layer.proj.bias)
    return torch.stack(outputs)


def attend_to_one(layer: nn.MultiheadAttention, key: Tensor) -> Tensor:
    """A softmax over one key is 1, so the values are what is read, whoever asks: (B, C) -> (B, C)."""
    width = key.shape[-1]
    value = key @ layer.in_proj_weight[2 * width :].T + layer.in_proj_bias[2 * width :]
    return value @ layer.out_proj.weight.T + layer.out_proj.bias


@torch.no_grad()
def test_cross_attention_equals_a_slow_loop():
    layer = wide(CrossAttention(16))
    queries, keys = draw(2, 3, 16), draw(2, 5, 16, seed=1)
    expected = torch.stack([attend_slowly(layer, *pair) for pair in zip(queries, keys, strict=True)])
    torch.testing.assert_close(layer(queries, keys), expected)


def test_cross_attention_in_bad_numbers():
    with pytest.raises(InputError, match="heads=8 should divide width=12"):
        CrossAttention(12)
    with pytest.raises(InputError, match="heads=4 should divide width=6"):
        ViewDecoupling(6)


@torch.no_grad()
def test_equation_1():
    layer, text = wide(ViewToken(8, 16, prompts=3)), ViewText(draw(2, 3, 8), draw(2, 8, seed=1))
    for prompts, key, found in zip(text.prompts, text.key, layer.descriptor(text), strict=True):
        torch.testing.assert_close(found, prompts + attend_slowly(layer.attention, prompts, key[None]))


@torch.no_grad()
def test_the_token_is_phi_of_the_fused_descriptor_with_a_position():
    layer, text = wide(ViewToken(8, 16, prompts=3)), ViewText(draw(2, 3, 8), draw(2, 8, seed=1))
    fused = layer.descriptor(text).reshape(2, 24) @ layer.fusion.weight.T + layer.fusion.bias
    first, second = layer.inverse[0], layer.inverse[3]
    hidden = nn.functional.gelu(fused @ first.weight.T + first.bias)  # four times as wide
    assert hidden.shape == (2, 32)
    torch.testing.assert_close(layer(text), hidden @ second.weight.T + second.bias + layer.position)


def test_gradient_of_the_token():
    layer, drawn = wide(ViewToken(8, 4, prompts=2)), [draw(2, 2, 8), draw(2, 8, seed=1)]
    inputs = [each.requires_grad_() for each in drawn]
    assert gradcheck(lambda *_: layer(ViewText(*inputs)), (*inputs, *layer.parameters()), fast_mode=True)


def test_phi_drops_out_in_training_alone():
    torch.manual_seed(0)
    net, vector = InverseNet(8, 16), torch.randn(1, 8)
    assert not torch.equal(net(vector), net(vector))
    assert torch.equal(net.eval()(vector), net(vector))


@pytest.mark.parametrize(("at", "first"), [(None, 2), (0, 0), (1, 1), (2, 2)])
@torch.no_grad()
def test_equation_2(at, first):
    """The token joins the others before a block, at the end, and the rest of the tower sees all."""
    method, data = small_svpr(inject_at=at).eval(), batch()
    backbone, image = method.backbone, method.backbone.image
    words = method.view_classes.encode(data.views)
    token = backbone.vdfe.token(backbone.text.views(words))
    before = image.run(image.start(data.images), last=first)
    tokens = image.end(image.run(torch.cat([before, token[:, None]], dim=1), first=first))
    cls, patches, view, entering = backbone._encode(data.images, words, use_cache=False)
    for found, expected in (
        (cls, tokens[:, 0]),
        (patches, tokens[:, 1:9]),
        (view, tokens[:, 9]),
        (entering, before[:, 0]),
    ):
        torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_equations_3_and_4_of_the_paper():
    layer = wide(ViewDecoupling(8))
    cls, view, entering = draw(3, 8), draw(3, 8, seed=1), draw(3, 8, seed=2)
    identity, rest = layer(cls, view, entering)
    torch.testing.assert_close(identity, cls - attend_to_one(layer.of_view, view))
    torch.testing.assert_close(rest, view - attend_to_one(layer.of_cls, entering))
    assert layer.scale is None


@torch.no_grad()
def test_equations_3_and_4_as_released():
    layer = wide(ViewDecoupling(8, scaled=True, entering_key=False, view_mlp=True))
    cls, view, entering = draw(3, 8), draw(3, 8, seed=1), draw(3, 8, seed=2)
    identity, rest = layer(cls, view, entering)
    expected = cls - layer.scale * attend_to_one(layer.of_view, view)
    torch.testing.assert_close(identity, expected)
    norm, first, _, second = layer.after
    shed = norm(view - attend_to_one(layer.of_cls, expected))
    hidden = (shed @ first.weight.T + first.bias).clamp(min=0)
    torch.testing.assert_close(rest, hidden @ second.weight.T + second.bias)


def test_the_scale_starts_at_one():
    assert ViewDecoupling(8, scaled=True).scale.item() == 1


@pytest.mark.parametrize("released", [False, True])
def test_gradient_of_the_decoupling(released):
    layer = wide(ViewDecoupling(4, scaled=released, entering_key=not released, view_mlp=released))
    inputs = [draw(2, 4, seed=seed).requires_grad_() for seed in range(3)]
    assert gradcheck(lambda *_: layer(*inputs), (*inputs, *layer.parameters()), fast_mode=True)


def test_a_block_that_is_not_there():
    clip = small_clip()
    assert (clip.image.width, clip.text.embed_dim) == (WIDTH, TEXT_WIDTH)
    with pytest.raises(InputError, match=r"inject_at=3 should be a block of the image tower, 0 \.\. 2"):
        small_svpr(inject_at=3)
