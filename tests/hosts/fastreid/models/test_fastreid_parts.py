"""Parts of methods on networks of others: they are in use, all of them learn, and what cannot be is refused."""

import pytest
import torch
from conftest import ROOT
from fastreid.utils.events import EventStorage
from small_fastreid import built

from agreid_plugin.data.attributes import AttributeSchema
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.data.batches import to_host
from agreid_plugin.nn.clip import tokenize
from agreid_plugin.types import Batch

VISA, VDT, SVPR, TAG_CLIP = (
    ROOT / "projects" / name / "agsynth.yml" for name in ("ViSA", "VDT", "SVPR-ReID", "TAG-CLIP")
)
BATCH = to_host(
    Batch(
        images=torch.rand(4, 3, 64, 32, generator=torch.Generator().manual_seed(0)) * 255,
        pids=torch.tensor([0, 0, 1, 1]),
        views=torch.tensor([0, 1, 0, 1]),
        cameras=torch.zeros(4).long(),
        attributes=torch.zeros(4, 3).long(),
        tokens=tokenize(["a man in red", "a person", "a woman", "two shoes"], 16),
    )
)
SIZE = ("INPUT.SIZE_TRAIN", "[64, 32]", "INPUT.SIZE_TEST", "[64, 32]", "MODEL.BACKBONE.STRIDE_SIZE", "[16, 16]")
SMALL = (*SIZE, "MODEL.VISA.EXPERTS", "2", "MODEL.VISA.TOKENS", "2", "MODEL.VISA.NEIGHBORS", "2")


def external(owner: str, name: str, *options: str, output: str = "token") -> tuple[str, ...]:
    node = "MODEL.BACKBONE.EXTERNAL"
    return (
        *("MODEL.BACKBONE.NAME", f"build_{owner}_backbone", f"{node}.NAME", name, f"{node}.OUTPUT", output),
        *(f"{node}.OPTIONS", str(list(options)), "MODEL.HEADS.POOL_LAYER", "GlobalAvgPool"),
    )


TIMM = external("timm", "vit_tiny_patch16_224", "depth=2", "embed_dim=24", "num_heads=3")
OPEN_CLIP = external("open_clip", "ViT-B-16", "width=24", "layers=2", "head_width=8", "embed_dim=16")
MMPRETRAIN = external(
    "mmpretrain",
    "VisionTransformer",
    "arch={'embed_dims': 24, 'num_layers': 2, 'num_heads': 3, 'feedforward_channels': 48}",
)
PLAIN = ("MODEL.BACKBONE.NAME", "build_plain_vit_backbone", "MODEL.VIT.WIDTH", "24", "MODEL.VIT.HEADS", "3")
RESNET = ("MODEL.BACKBONE.NAME", "build_resnet_backbone", "MODEL.BACKBONE.DEPTH", "18x", "MODEL.VISA.VAB", "False")
CONVNEXT = (
    *external("timm", "convnext_atto", "dims=[8, 8, 16, 24]", "depths=[1, 1, 1, 1]", output="map"),
    *("MODEL.VISA.VAB", "False"),
)


def losses(path, *overrides: str) -> dict[str, float]:
    """Take a step from a seed; every parameter that is trained has a gradient."""
    torch.manual_seed(0)
    model = built(path, *overrides).train()
    with EventStorage():
        terms = model(BATCH)
    sum(terms.values()).backward()
    assert not [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None]
    assert torch.isfinite(model.eval()(BATCH)).all()
    return {name: float(value) for name, value in terms.items()}


@pytest.mark.parametrize(
    "network", [TIMM, OPEN_CLIP, MMPRETRAIN, PLAIN], ids=["timm", "open_clip", "mmpretrain", "ours"]
)
def test_visa_on_a_vit_of_others_has_all_its_terms(network):
    terms = losses(VISA, *SMALL, *network)
    assert {"loss_cls_local", "loss_view", "loss_orthogonal", "loss_balance", "loss_view_predictor"} <= set(terms)


def test_vdt_sheds_a_view_token_of_a_vit_of_others():
    assert {"loss_view", "loss_orthogonal"} <= set(losses(VDT, *SIZE, *TIMM))


@pytest.mark.parametrize("network", [RESNET, CONVNEXT], ids=["fast-reid", "timm"])
def test_experts_and_graphs_work_on_the_map_of_a_cnn(network):
    terms = losses(VISA, *SMALL, *network)
    assert "loss_view" not in terms
    assert {"loss_cls_local", "loss_balance", "loss_view_predictor"} <= set(terms)


def test_each_part_is_in_use():
    """The losses differ without view tokens, without the experts, and with other numbers of patches."""
    found = [losses(VISA, *SMALL, *TIMM)]
    for switch in (("MODEL.VISA.VAB", "False"), ("MODEL.VISA.ETGM", "False"), ("MODEL.VISA.NEIGHBORS", "8")):
        found.append(losses(VISA, *SMALL, *TIMM, *switch))
    assert len({terms["loss_cls_local"] for terms in found}) == 4
    assert len(found[0]) > len(losses(VISA, *SMALL, *TIMM, "MODEL.VISA.ETGM", "False", "MODEL.VISA.DLFM", "False"))


CLIP = ("WIDTH", "0", "LAYERS", "0", "HEADS", "0", "TEXT_WIDTH", "24", "EMBED_DIM", "16", "TEXT_HEADS", "2")
PAIR = (*SIZE, *(f"MODEL.CLIP.{each}" if each.isupper() else each for each in CLIP))
WITHOUT_ATTRIBUTES = (*PAIR, "MODEL.SVPR.ASMOE", "False")


@pytest.mark.parametrize(
    "network", [TIMM, OPEN_CLIP, MMPRETRAIN, PLAIN], ids=["timm", "open_clip", "mmpretrain", "ours"]
)
def test_svpr_has_a_vit_of_others_beside_the_text_tower(network):
    assert {"loss_cls", "loss_view", "loss_orthogonal"} <= set(losses(SVPR, *WITHOUT_ATTRIBUTES, *network))


@pytest.fixture
def attributes(monkeypatch) -> None:
    schema = AttributeSchema({"hair": ("long", "short"), "bag": ("none", "hand"), "hat": ("no", "yes")})
    monkeypatch.setattr("agreid_plugin.hosts.fastreid.models.svpr.get_schema", lambda _: schema)


@pytest.mark.usefixtures("attributes")
def test_each_module_of_svpr_is_in_use_on_a_vit_and_two_of_them_on_a_cnn():
    every = losses(SVPR, *PAIR, *TIMM)
    assert {"loss_cls", "loss_view", "loss_attributes"} <= set(every)
    without = [losses(SVPR, *PAIR, *TIMM, f"MODEL.SVPR.{name}", "False") for name in ("VDFE", "ASMOE", "CVPR")]
    assert len({terms["loss_cls"] for terms in (every, *without)}) == 4
    resnet = (*PAIR, *RESNET, "MODEL.SVPR.VDFE", "False")
    cnn = losses(SVPR, *resnet)
    assert "loss_attributes" in cnn
    assert cnn["loss_cls"] != losses(SVPR, *resnet, "MODEL.SVPR.CVPR", "False")["loss_cls"]


@pytest.mark.parametrize("network", [TIMM, OPEN_CLIP, PLAIN], ids=["timm", "open_clip", "ours"])
def test_experts_of_tag_clip_are_in_a_vit_of_others(network):
    small = (*PAIR, *network, "MODEL.TAG_CLIP.AT", "[0]", "MODEL.CLIP.TEXT_LENGTH", "16")
    terms = losses(TAG_CLIP, *small)
    assert {"loss_nitc", "loss_nitc_local", "loss_view", "loss_orthogonal"} <= set(terms)
    at_last = losses(TAG_CLIP, *small, "MODEL.TAG_CLIP.AT", "[1]")
    assert terms["loss_orthogonal"] != at_last["loss_orthogonal"]


@pytest.mark.parametrize(
    ("recipe", "overrides", "words"),
    [
        (SVPR, RESNET, "build_resnet_backbone does not suit .* SVPR: ResNet has no class token.*MODEL.SVPR.VDFE False"),
        (TAG_CLIP, RESNET, "does not suit MODEL.META_ARCHITECTURE TAGCLIP: ResNet has no class token"),
        (TAG_CLIP, (*MMPRETRAIN, "MODEL.TAG_CLIP.AT", "[1]"), "MODEL.TAG_CLIP: TransformerEncoderLayer has no mlp"),
        (SVPR, (*TIMM, "MODEL.CLIP.FREEZE", "[image.stem]"), "MODEL.CLIP.FREEZE has image.stem, but .*build_timm"),
        (SVPR, ("MODEL.BACKBONE.NAME", "build_vdt_backbone"), "build_vdt_backbone does not suit"),
        (VDT, RESNET, "build_resnet_backbone does not suit .* VDT: ResNet has no blocks that take tokens"),
    ],
)
def test_what_a_network_cannot_give_is_one_line(recipe, overrides, words):
    with pytest.raises(InputError, match=words) as caught:
        built(recipe, *PAIR, *overrides)
    assert "\n" not in str(caught.value)
