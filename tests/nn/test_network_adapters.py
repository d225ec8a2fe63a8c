"""Networks of any library as ones with patches: the same as ours where it is ours, tokens and maps elsewhere."""

import pytest
import torch
from torch import nn

from agreid_plugin.errors import InputError
from agreid_plugin.methods.visa import build_backbone
from agreid_plugin.nn.network_adapters import MapNetwork, TokenNetwork, adapt_network
from agreid_plugin.nn.patch_features import PatchFeatures
from agreid_plugin.nn.view_token_vit import PlainEncoder
from agreid_plugin.nn.vit import VisionTransformer

SIZE = (32, 16)
SHAPE = {"patch_size": 8, "width": 16, "depth": 3, "heads": 2, "drop_path": 0.0}
SMALL = {"experts": 2, "tokens": 3, "neighbors": 3}
VIEWS = torch.tensor([0, 1, 0, 1])


def images() -> torch.Tensor:
    return torch.randn(4, 3, *SIZE, generator=torch.Generator().manual_seed(1))


def build_timm(name: str = "vit_tiny_patch16_224", **options) -> nn.Module:
    shape = {"img_size": (64, 32), "embed_dim": 24, "depth": 2, "num_heads": 3}
    return pytest.importorskip("timm").create_model(name, **{"num_classes": 0} | shape | options)


def build_open_clip() -> nn.Module:
    model = pytest.importorskip("open_clip.model")
    plan = {"image_size": (64, 32), "patch_size": 16, "width": 24, "layers": 2, "head_width": 8}
    return model._build_vision_tower(12, plan, False)


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 4, stride=4), nn.BatchNorm2d(8)
        self.last = nn.Conv2d(8, 24, 2, stride=2)

    def forward(self, images):
        return self.last(self.norm(self.stem(images)).relu())


class WithParts(CNN):
    def patch_features(self, images):
        cells = self(images)
        return PatchFeatures(cells.amax(dim=(2, 3)), cells.flatten(2).mT, tuple(cells.shape[2:]))


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_visa_on_an_adapted_vit_is_visa_on_the_vit(variant):
    ours = VisionTransformer(SIZE, **SHAPE, extra_tokens=1)
    weights = ours.state_dict()
    positions = weights.pop("pos_embed")
    plain = VisionTransformer(SIZE, **SHAPE)
    plain.load_state_dict(weights | {"pos_embed": torch.cat([positions[:, :1], positions[:, 2:]], dim=1)})
    adapted = adapt_network(plain, SIZE, extra_tokens=1)
    adapted.positions.data = positions[0, 1:2].clone()
    assert (adapted.width, adapted.heads, adapted.grid, adapted.depth) == (
        ours.width,
        ours.heads,
        ours.grid,
        ours.depth,
    )

    expected = build_backbone(ours, variant=variant, **SMALL)
    backbone = build_backbone(adapted, variant=variant, **SMALL)
    rest = {name: value for name, value in expected.state_dict().items() if ".vit." not in name}
    rest["encoder.view_tokens"].normal_()
    assert not backbone.load_state_dict(rest, strict=False).unexpected_keys
    torch.testing.assert_close(backbone(images(), VIEWS).feature, expected(images(), VIEWS).feature)
    torch.testing.assert_close(adapted.embed_patches(images()), ours.embed_patches(images()))


def test_without_extra_tokens_our_vit_is_taken_as_it_is_and_equals_its_adapter():
    ours = VisionTransformer(SIZE, **SHAPE)
    assert adapt_network(ours, SIZE) is ours
    expected, found = ours.patch_features(images()), TokenNetwork(ours, SIZE).patch_features(images())
    torch.testing.assert_close((found.vector, found.patches), (expected.vector, expected.patches))


@pytest.mark.parametrize(
    "build",
    [build_timm, lambda: build_timm("deit_tiny_distilled_patch16_224"), build_open_clip],
    ids=["timm", "distilled", "open_clip"],
)
def test_gradients_reach_every_part_on_a_vit_of_others(build):
    """A distillation token is neither the class token nor a patch."""
    network = adapt_network(build(), (64, 32), extra_tokens=1)
    backbone = build_backbone(network, **SMALL)
    features = backbone(torch.randn(4, 3, 64, 32), VIEWS)
    assert features.encoded.patches.shape == (4, 8, 24)
    features.feature.square().sum().backward()
    idle = [name for name, each in backbone.named_parameters() if each.requires_grad and each.grad is None]
    assert not idle
    assert backbone.encoder.view_tokens.grad.abs().sum() > 0


def test_a_class_token_is_what_the_network_gives():
    network = build_timm()
    adapted = adapt_network(network, (64, 32))
    pictures = torch.randn(2, 3, 64, 32)
    torch.testing.assert_close(adapted.patch_features(pictures).vector, network.eval()(pictures))


def test_a_vit_without_class_token_gives_the_mean_of_its_patches():
    network = build_timm("vit_wee_patch16_reg1_gap_256").eval()  # with a register
    pictures = torch.randn(2, 3, 64, 32)
    features = adapt_network(network, (64, 32)).patch_features(pictures)
    torch.testing.assert_close(features.vector, network.fc_norm(network.forward_features(pictures)[:, 1:]).mean(1))
    with pytest.raises(InputError, match="has no class token"):
        adapt_network(network, (64, 32), extra_tokens=1)


@pytest.mark.parametrize("kind", [CNN, WithParts])
def test_the_cells_of_a_map_are_patches(kind):
    network = adapt_network(kind(), SIZE)
    assert isinstance(network, MapNetwork)
    assert (network.width, network.embed_width, network.grid, network.num_patches) == (24, 8, (4, 2), 8)
    backbone = build_backbone(network, vab=False, **SMALL)
    features = backbone(images(), VIEWS)
    cells = network.network(images())
    torch.testing.assert_close(features.encoded.patches[:, 3], cells[:, :, 1, 1])
    torch.testing.assert_close(features.encoded.cls, cells.amax((2, 3)) if kind is WithParts else cells.mean((2, 3)))
    features.feature.square().sum().backward()
    assert not [name for name, each in backbone.named_parameters() if each.grad is None]
    assert network.embed_patches(images()).shape == (4, 8, 8)


def test_learning_how_a_network_works_leaves_no_trace():
    network, seed = CNN().train(), torch.random.get_rng_state()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    adapt_network(network, SIZE)
    assert torch.equal(seed, torch.random.get_rng_state())
    assert network.norm.training
    assert not network._forward_hooks
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_classifier_behind_the_features_is_frozen():
    network = build_timm(num_classes=5)
    adapt_network(network, (64, 32))
    assert [name for name, each in network.named_parameters() if not each.requires_grad] == ["head.weight", "head.bias"]


def build_rotary() -> nn.Module:
    return pytest.importorskip("timm").create_model(
        "vit_small_patch16_dinov3", num_classes=0, embed_dim=24, depth=1, num_heads=3
    )


@pytest.mark.parametrize(
    ("build", "tokens", "words"),
    [
        (CNN, 1, "CNN has no blocks that take tokens"),
        (
            lambda: nn.Sequential(CNN(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            0,
            "Sequential gives features of .1, 24.",
        ),
        (build_rotary, 1, "Eva has no blocks that take tokens"),
        (lambda: nn.Linear(2, 2), 0, "Linear does not run on images of 64x32"),
    ],
)
def test_what_a_network_cannot_give_is_one_line(build, tokens, words):
    with pytest.raises(InputError, match=words) as caught:
        adapt_network(build(), (64, 32), tokens)
    assert "\n" not in str(caught.value)


def test_view_tokens_need_a_vit():
    with pytest.raises(InputError, match="vab=True, but MapNetwork has no blocks"):
        build_backbone(adapt_network(CNN(), SIZE), **SMALL)
    assert PlainEncoder(adapt_network(CNN(), SIZE)).needs_views is False
