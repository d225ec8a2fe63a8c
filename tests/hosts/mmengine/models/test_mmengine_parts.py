"""Parts of methods on networks of mmpretrain, timm and open_clip in mmengine: all learn, or one line says why."""

import pytest
import small_mmengine
from small_mmengine import CLIP, batch, loaded, run

from agreid_plugin.errors import InputError

SIZE = (32, 16)
SMALL = {"experts": 2, "tokens": 2, "neighbors": 1}
VIT = {
    "type": "mmpretrain.VisionTransformer",
    "arch": {"embed_dims": 24, "num_layers": 2, "num_heads": 3, "feedforward_channels": 48},
    "img_size": SIZE,
    "patch_size": 8,
}
TIMM = {"type": "mmpretrain.TIMMBackbone", "model_name": "vit_tiny_patch16_224", "img_size": SIZE, "patch_size": 8}
TIMM |= {"embed_dim": 24, "depth": 2, "num_heads": 3}
TOWER = {"type": "agreid_plugin.CLIPBackbone", "clip": CLIP}
RESNET = {"type": "mmpretrain.ResNet", "depth": 18, "strides": [1, 1, 1, 1], "image_size": SIZE}


def build(vit: dict, **options):
    backbone = {"type": "agreid_plugin.ViSABackbone", "vit": vit, **SMALL, **options}
    return small_mmengine.model("ViSA", backbone=backbone).train()


@pytest.mark.parametrize(
    ("vit", "options"),
    [(VIT, {}), (TIMM, {}), (TOWER, {}), (RESNET, {"vab": False})],
    ids=["mmpretrain", "timm", "open_clip", "CNN"],
)
def test_visa_on_a_network_of_others(vit, options):
    model = build(vit, **options)
    terms = run(model, loaded(batch()), "loss")
    assert ("loss_view" in terms) == (not options)
    assert {"loss_cls_local", "loss_balance"} <= set(terms)
    model.parse_losses(terms)[0].backward()
    assert [key for key, each in model.named_parameters() if each.requires_grad and each.grad is None] == []


def test_vdt_on_a_network_of_others():
    model = small_mmengine.model("VDT", backbone={"type": "agreid_plugin.VDTBackbone", "vit": VIT}).train()
    assert {"loss_view", "loss_orthogonal"} <= set(run(model, loaded(batch()), "loss"))


TEXT = {name: value for name, value in CLIP.items() if name.startswith("text_") or name == "embed_dim"}
BIG = {**TIMM, "embed_dim": 48}


@pytest.mark.parametrize(
    ("name", "image", "options"),
    [
        ("SVPR-attributes", BIG, {}),
        ("SVPR-attributes", RESNET, {"vdfe": False}),
        ("TAGCLIP", TIMM, {}),
    ],
)
def test_svpr_and_tag_clip_have_another_network_beside_the_text_tower(name, image, options):
    model = small_mmengine.model(name, clip={**TEXT, "freeze": ["text"]}, image=image, **options).train()
    terms = run(model, loaded(batch()), "loss")
    model.parse_losses(terms)[0].backward()
    assert [key for key, each in model.named_parameters() if each.requires_grad and each.grad is None] == []
    assert {"SVPR-attributes": "loss_attributes", "TAGCLIP": "loss_orthogonal"}[name] in terms


@pytest.mark.parametrize(
    ("clip", "image", "words"),
    [
        (CLIP, BIG, "clip: image_size is of CLIP's image tower, but image='mmpretrain.TIMMBackbone' takes its place"),
        (TEXT, RESNET, "vdfe=True, but the network has no class token"),
    ],
)
def test_what_a_pair_of_towers_cannot_be_is_one_line(clip, image, words):
    with pytest.raises(InputError, match=words):
        small_mmengine.model("SVPR", clip=clip, image=image)


@pytest.mark.parametrize(
    ("vit", "words"),
    [
        (RESNET, "vit mmpretrain.ResNet: ResNet has no blocks that take tokens.*view token"),
        ({**VIT, "image_size": (64, 32)}, "VisionTransformer does not run on images of 64x32"),
    ],
)
def test_what_a_network_cannot_give_is_one_line(vit, words):
    if "arch" in vit:
        vit = {**vit, "interpolate_mode": "none"}
    with pytest.raises(InputError, match=words):
        build(vit)
