import pytest
import torch

from agreid_plugin.errors import InputError
from agreid_plugin.nn.vit import SIZES, VisionTransformer, build_vit


def small_vit(**arguments) -> VisionTransformer:
    """Images of 24x16 in patches of 8: a grid of 3x2."""
    torch.manual_seed(0)
    defaults = {"image_size": (24, 16), "patch_size": 8, "width": 12, "depth": 3, "heads": 2}
    return VisionTransformer(**defaults | arguments)


def images(count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, 24, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("stride", "grid"), [(None, (16, 8)), (16, (16, 8)), (12, (21, 10)), ((12, 10), (21, 12)), ([12, 12], (21, 10))]
)
def test_grids_of_the_released_models(stride, grid):
    vit = VisionTransformer(stride=stride, width=12, depth=1, heads=2, extra_tokens=1)
    assert (vit.grid, vit.num_patches) == (grid, grid[0] * grid[1])
    assert vit.pos_embed.shape == (1, 2 + vit.num_patches, 12)
    assert vit.patches(torch.zeros(1, 3, 256, 128)).shape == (1, vit.num_patches, 12)


def test_base_has_the_published_number_of_parameters():
    with torch.device("meta"):
        vit = build_vit("base")
    assert sum(parameter.numel() for parameter in vit.blocks.parameters()) == 85_054_464
    assert (vit.width, vit.depth, vit.blocks[0].attn.heads) == (768, 12, 12)


def test_sizes_by_name():
    assert {name: (size.width, size.depth, size.heads) for name, size in SIZES.items()} == {
        "tiny": (192, 12, 3),
        "small": (384, 12, 6),
        "base": (768, 12, 12),
    }
    vit = build_vit("tiny", depth=2, extra_tokens=3)
    assert (vit.width, vit.depth, vit.extra_tokens) == (192, 2, 3)
    with pytest.raises(InputError, match=r"ViT size 'bases' unknown \(did you mean base\?\); known: base, small, tiny"):
        build_vit("bases")


def test_names_are_those_of_timm():
    names = set(small_vit(depth=1).state_dict())
    parts = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
    modules = ["patch_embed.proj", "norm", *(f"blocks.0.{part}" for part in parts)]
    assert names == {"cls_token", "pos_embed"} | {
        f"{module}.{kind}" for module in modules for kind in ("weight", "bias")
    }


def test_where_the_weights_start():
    vit = VisionTransformer(width=96, depth=2, heads=2)
    for weight in (vit.cls_token, vit.pos_embed, vit.blocks[0].attn.qkv.weight, vit.blocks[1].mlp.fc2.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert vit.blocks[1].attn.proj.bias.eq(0).all()
    assert vit.norm.eps == 1e-6


def test_drop_path_grows_linearly_over_the_blocks():
    rates = [block.drop_path.rate for block in small_vit(depth=12, drop_path=0.11).blocks]
    assert rates == pytest.approx([0.01 * number for number in range(12)])
    assert small_vit(depth=1, drop_path=0.5).blocks[0].drop_path.rate == 0


def test_patches_run_row_by_row():
    vit = small_vit(stride=4).eval()
    patches = vit.patches(images())
    assert vit.grid == (5, 3)
    kernel, bias = vit.patch_embed.proj.weight, vit.patch_embed.proj.bias
    for row, col in [(0, 0), (0, 2), (1, 0), (4, 1)]:
        square = images()[:, :, 4 * row : 4 * row + 8, 4 * col : 4 * col + 8]
        expected = torch.einsum("bchw,dchw->bd", square, kernel) + bias
        torch.testing.assert_close(patches[:, 3 * row + col], expected)


@torch.no_grad()
def test_forward_spelled_out():
    vit, extra = small_vit(extra_tokens=2).eval(), torch.randn(2, 12)
    tokens = torch.cat([vit.cls_token.repeat(2, 1, 1), extra.repeat(2, 1, 1), vit.patches(images())], dim=1)
    tokens = tokens + vit.pos_embed
    for block in vit.blocks:
        tokens = block(tokens)
    assert tokens.shape == (2, 1 + 2 + 6, 12)
    assert torch.equal(vit(images(), extra), vit.norm(tokens))


@torch.no_grad()
def test_extra_tokens_of_all_images_or_of_each():
    vit, extra = small_vit(extra_tokens=1).eval(), torch.randn(2, 1, 12)
    both = vit(images(), extra)
    torch.testing.assert_close(vit(images(), extra[0])[0], both[0])
    torch.testing.assert_close(vit(images(), extra[1])[1], both[1])
    assert not torch.allclose(both, vit(images(), extra.flip(0)))


def test_hooks_see_every_block_in_order():
    calls = []
    vit = small_vit().eval()
    vit(
        images(),
        before=lambda number, tokens: calls.append(("before", number, tokens.shape)) or tokens,
        after=lambda number, tokens: calls.append(("after", number, tokens.shape)) or tokens,
    )
    assert calls == [(when, number, (2, 7, 12)) for number in range(3) for when in ("before", "after")]


@torch.no_grad()
def test_hooks_change_the_tokens():
    vit = small_vit(extra_tokens=1).eval()
    extra = torch.randn(1, 12)

    def subtract(number: int, tokens: torch.Tensor) -> torch.Tensor:
        """VDT: CLS minus view token."""
        return torch.cat([tokens[:, :1] - tokens[:, 1:2], tokens[:, 1:]], dim=1)

    states = {}
    vit(images(), extra, before=lambda number, tokens: states.setdefault(number, tokens), after=subtract)
    tokens = states[0]
    for number, block in enumerate(vit.blocks):
        assert torch.equal(tokens, states[number])
        tokens = subtract(0, block(tokens))
    assert torch.equal(vit(images(), extra, after=subtract), vit.norm(tokens))

    zeros = vit(images(), extra, before=lambda number, tokens: tokens * (number < 2))
    torch.testing.assert_close(zeros, vit.norm(vit.blocks[2](torch.zeros(2, 8, 12))))


@pytest.mark.parametrize("drop_path", [0.0, 0.5])
def test_checkpointing_changes_neither_outputs_nor_gradients(drop_path):
    results = []
    for checkpointing in (False, True):
        vit = small_vit(drop_path=drop_path, checkpointing=checkpointing).train()
        calls = []
        torch.manual_seed(5)
        outputs = vit(images(), after=lambda number, tokens, calls=calls: calls.append(number) or 2 * tokens)
        outputs.square().sum().backward()
        assert calls == [0, 1, 2]  # not once more in the backward pass
        results.append([outputs, *(parameter.grad for parameter in vit.parameters())])
    for plain, checkpointed in zip(*results, strict=True):
        torch.testing.assert_close(checkpointed, plain)


def test_checkpointing_keeps_fewer_activations():
    kept = []
    for checkpointing in (False, True):
        sizes = []
        vit = small_vit(checkpointing=checkpointing).train()
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t):
            vit(images())
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 2


@torch.no_grad()
def test_compiles_into_one_graph():
    vit, extra = small_vit(extra_tokens=1).eval(), torch.randn(2, 1, 12)
    compiled = torch.compile(vit, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images(), extra), vit(images(), extra))
    torch.testing.assert_close(compiled(images(), extra[0]), vit(images(), extra[0]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("patch_size", 17),  # wider than the image
        ("patch_size", 0),
        ("stride", 0),
        ("stride", (4, 4, 4)),
        ("stride", 2.5),
        ("image_size", (24,)),
        ("image_size", (24, -16)),
        ("depth", 0),
        ("width", 0),
        ("heads", 5),
        ("extra_tokens", -1),
        ("drop_path", 1.5),
    ],
)
def test_bad_arguments_are_named(name, value):
    with pytest.raises(InputError, match=f"{name}=") as error:
        small_vit(**{name: value})
    assert str(value) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2, 3, 32, 16), r"32x16 .* position embedding, made for 24x16: .* image_size=\(32, 16\)"),
        ((2, 1, 24, 16), r"images=\(2, 1, 24, 16\)"),
        ((3, 24, 16), r"images=\(3, 24, 16\)"),
    ],
)
def test_bad_images_are_named(shape, words):
    with pytest.raises(InputError, match=words):
        small_vit()(torch.zeros(shape))


@pytest.mark.parametrize(
    ("extra_tokens", "shape", "words"),
    [
        (1, None, r"extra=None should be \(1, 12\) or \(2, 1, 12\): .* extra_tokens=1"),
        (1, (2, 12), r"extra=\(2, 12\)"),
        (1, (3, 1, 12), r"extra=\(3, 1, 12\)"),
        (0, (0, 12), r"extra=\(0, 12\) should be left out: .* extra_tokens=0"),
    ],
)
def test_bad_extra_tokens_are_named(extra_tokens, shape, words):
    with pytest.raises(InputError, match=words):
        small_vit(extra_tokens=extra_tokens)(images(), None if shape is None else torch.zeros(shape))


@pytest.mark.parametrize("first", [1, 2, 5])
def test_the_first_tokens_alone_are_those_of_a_whole_pass(first):
    torch.manual_seed(0)
    vit = VisionTransformer((32, 16), patch_size=8, width=16, depth=3, heads=2, drop_path=0.0, extra_tokens=1).double()
    images, extra = torch.randn(2, 3, 32, 16).double(), torch.randn(1, 16).double()
    whole, some = vit(images, extra)[:, :first], vit(images, extra, first=first)
    torch.testing.assert_close(some, whole, rtol=0, atol=1e-12)
    wanted = torch.autograd.grad(whole.square().sum(), vit.parameters())
    torch.testing.assert_close(torch.autograd.grad(some.square().sum(), vit.parameters()), wanted, rtol=0, atol=1e-10)
