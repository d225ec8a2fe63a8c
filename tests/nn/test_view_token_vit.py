import pytest
import torch
from torch import Tensor, nn

from agreid_plugin.errors import InputError
from agreid_plugin.methods.visa import reference
from agreid_plugin.nn.view_token_vit import DecoupledEncoder, PlainEncoder
from agreid_plugin.nn.vit import VisionTransformer
from agreid_plugin.types import View

VIEWS = torch.tensor([View.AERIAL, View.GROUND, View.GROUND, View.AERIAL])


def small_vit(extra_tokens: int = 1, **arguments) -> VisionTransformer:
    torch.manual_seed(0)
    defaults = {"image_size": (32, 16), "patch_size": 8, "width": 16, "depth": 3, "heads": 2, "drop_path": 0.0}
    return VisionTransformer(**defaults | arguments, extra_tokens=extra_tokens)


def idle_vit() -> VisionTransformer:
    """Blocks and final norm return what they are given."""
    vit = small_vit()
    vit.norm = nn.Identity()
    for block in vit.blocks:
        for layer in (block.attn.proj, block.mlp.fc2):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
    return vit


def with_tokens(encoder: DecoupledEncoder) -> DecoupledEncoder:
    """View tokens start at zero; these do not."""
    nn.init.normal_(encoder.view_tokens, std=0.5)
    return encoder.eval()


def images(count: int = 4) -> Tensor:
    return torch.randn(count, 3, 32, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("arguments", "after_blocks"),
    [({}, 3), ({"subtractions": 2}, 2), ({"subtractions": 0}, 0), ({"views": 2, "subtractions": 2}, 2)],
)
@torch.no_grad()
def test_subtractions_counted_by_hand(arguments, after_blocks):
    vit = idle_vit()
    encoder = with_tokens(DecoupledEncoder(vit, **arguments))
    encoded = encoder(images(), VIEWS)
    cls = vit.cls_token[0, 0] + vit.pos_embed[0, 0]
    own = encoder.view_tokens[0][VIEWS] if encoder.needs_views else encoder.view_tokens[0]
    view = (own + vit.pos_embed[0, 1]).expand(4, -1)  # idle blocks leave it alone
    torch.testing.assert_close(encoded.view, view)
    torch.testing.assert_close(encoded.cls, cls - after_blocks * view)
    torch.testing.assert_close(encoded.identity, cls - (after_blocks + 1) * view)  # once more after the norm
    torch.testing.assert_close(encoded.patches, vit.patches(images()) + vit.pos_embed[:, 2:])


@torch.no_grad()
def test_tokens_of_every_block_by_hand():
    vit = idle_vit()
    encoder = with_tokens(DecoupledEncoder(vit, views=2, per_block=True, subtractions=2))
    encoded = encoder(images(), VIEWS)
    first, second, third = encoder.view_tokens[:, VIEWS]
    first = first + vit.pos_embed[0, 1]
    cls = vit.cls_token[0, 0] + vit.pos_embed[0, 0]
    # The token grows block by block: after the first block CLS sheds one part of it, after the second two.
    torch.testing.assert_close(encoded.view, first + second + third)
    torch.testing.assert_close(encoded.cls, cls - first - (first + second))
    torch.testing.assert_close(encoded.identity, encoded.cls - encoded.view)


@torch.no_grad()
def test_tokens_of_every_block_start_as_those_of_the_input():
    vit = small_vit()
    at_input = with_tokens(DecoupledEncoder(vit, views=2))
    per_block = DecoupledEncoder(vit, views=2, per_block=True).eval()
    assert per_block.view_tokens.shape == (3, 2, 16)
    per_block.view_tokens[0] = at_input.view_tokens[0]
    expected, encoded = at_input(images(), VIEWS), per_block(images(), VIEWS)
    assert torch.equal(encoded.identity, expected.identity)
    assert torch.equal(encoded.patches, expected.patches)
    per_block.view_tokens[1, View.AERIAL, 0] = 1.0
    changed = per_block(images(), VIEWS)
    aerial = VIEWS == View.AERIAL
    assert not torch.isclose(changed.identity, expected.identity).all(dim=1)[aerial].any()
    assert torch.equal(changed.identity[~aerial], expected.identity[~aerial])


@torch.no_grad()
def test_each_image_has_the_token_of_its_view():
    encoder = with_tokens(DecoupledEncoder(small_vit(), views=2, per_block=True))
    encoded = encoder(images(), VIEWS)
    for view in View:
        alone = encoder(images(), torch.full((4,), view))
        torch.testing.assert_close(encoded.identity[view == VIEWS], alone.identity[view == VIEWS])
        assert not torch.isclose(encoded.view[view != VIEWS], alone.view[view != VIEWS]).all(dim=1).any()


@pytest.mark.parametrize("per_block", [True, False])
@pytest.mark.parametrize("views", [1, 2])
@torch.no_grad()
def test_equals_the_reference_form(views, per_block):
    encoder = with_tokens(DecoupledEncoder(small_vit(), views, per_block, subtractions=2)).double()
    encoded, expected = (run(images().double(), VIEWS) for run in (encoder, lambda *x: reference.encode(encoder, *x)))
    for name in ("cls", "view", "identity", "patches"):
        torch.testing.assert_close(getattr(encoded, name), getattr(expected, name), rtol=0, atol=1e-12)


@torch.no_grad()
def test_patches_are_those_that_enter_the_last_block():
    vit, entering = small_vit(), []
    vit.blocks[2].register_forward_pre_hook(lambda _, inputs: entering.append(inputs[0]))
    assert torch.equal(DecoupledEncoder(vit)(images()).patches, entering[0][:, 2:])


def test_the_token_of_an_absent_view_has_a_gradient_of_zero():
    encoder = with_tokens(DecoupledEncoder(small_vit(), views=2, per_block=True))
    encoder(images(), torch.full((4,), View.GROUND)).identity.square().sum().backward()
    assert not encoder.view_tokens.grad[:, View.AERIAL].any()
    assert encoder.view_tokens.grad[:, View.GROUND].any(dim=1).all()


@torch.no_grad()
def test_the_plain_encoder_is_the_vit():
    vit = small_vit(extra_tokens=0).eval()
    encoded, expected = PlainEncoder(vit)(images(), VIEWS), reference.encode(PlainEncoder(vit), images())
    cls = vit(images())[:, 0]
    assert torch.equal(encoded.cls, cls)
    assert torch.equal(encoded.identity, cls)
    assert torch.equal(encoded.view, cls)
    torch.testing.assert_close(encoded.patches, expected.patches)
    torch.testing.assert_close(encoded.cls, expected.cls)


@pytest.mark.parametrize(("kind", "extra"), [(DecoupledEncoder, 0), (DecoupledEncoder, 2), (PlainEncoder, 1)])
def test_a_vit_with_the_wrong_tokens_is_refused(kind, extra):
    with pytest.raises(InputError, match=f"extra_tokens={extra}"):
        kind(small_vit(extra))


def test_missing_views_are_asked_for():
    with pytest.raises(InputError, match="view of each image is needed: aerial, ground"):
        DecoupledEncoder(small_vit(), views=2)(images())


@torch.no_grad()
def test_gates_by_hand():
    """At 0 nothing is subtracted, at 1 it is the paper's form; the last gate is that after the final norm."""
    torch.manual_seed(0)
    paper = with_tokens(DecoupledEncoder(small_vit(), views=2, subtractions=2))
    torch.manual_seed(0)
    gated = with_tokens(DecoupledEncoder(small_vit(), views=2, subtractions=2, shed="gated"))
    encoded = gated(images(), VIEWS)
    assert torch.equal(encoded.identity, encoded.cls)
    gated.gates[-1] = 0.5
    torch.testing.assert_close(gated(images(), VIEWS).identity, encoded.cls - 0.5 * encoded.view)
    gated.gates[:] = 1
    torch.testing.assert_close(gated(images(), VIEWS).identity, paper(images(), VIEWS).identity)
    assert gated.gates.shape == (3, small_vit().width)


def test_gates_have_a_gradient_from_the_start():
    encoder = with_tokens(DecoupledEncoder(small_vit(), views=2, shed="gated"))
    encoder(images(), VIEWS).identity.square().sum().backward()
    assert (encoder.gates.grad != 0).all()
