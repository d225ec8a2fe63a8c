"""Parts of ours and of mmpretrain in one model, put together by configuration alone."""

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import BaseDataElement
from mmpretrain.registry import MODELS as their_models
from mmpretrain.structures import DataSample
from small_mmengine import BACKBONES, CLIP, IDENTITIES, OBJECTIVES, PIDS, RESNET, VIF, batch, loaded, run

from agreid_plugin import losses
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.data.batches import to_batch
from agreid_plugin.hosts.mmengine.models.losses import IdentityLoss
from agreid_plugin.types import UNKNOWN, View

THEIR_VIT = {
    "type": "mmpretrain.VisionTransformer",
    "arch": {"embed_dims": 16, "num_layers": 2, "num_heads": 2, "feedforward_channels": 32},
    "img_size": (32, 16),
    "patch_size": 8,
}
PLAIN_VISA = {**BACKBONES["ViSA"], "vab": False, "etgm": False}
CLIP_BACKBONE = {"type": "agreid_plugin.CLIPBackbone", "clip": CLIP}
LOSSES = {**OBJECTIVES, "vial": {"type": "agreid_plugin.VIAL", "lambda_": 0.7}}
OURS = {"ViT": (BACKBONES["ViT"], 16), "VDT": (BACKBONES["VDT"], 16), "ViSA": (PLAIN_VISA, 32)}
OURS["CLIP"] = (CLIP_BACKBONE, 16)


def built(config: dict):
    torch.manual_seed(0)
    return MODELS.build(config)


def classifier(backbone: dict, head: dict):
    return built({"type": "mmpretrain.ImageClassifier", "backbone": backbone, "head": head})


def linear(width: int, **loss) -> dict:
    head = {"type": "mmpretrain.LinearClsHead", "in_channels": width, "num_classes": IDENTITIES}
    return {**head, "loss": loss} if loss else head


def reid_head(width: int) -> dict:
    return {"type": "agreid_plugin.ReIDHead", "in_channels": width, "num_classes": IDENTITIES, "objectives": LOSSES}


def their_data() -> dict:
    return {"inputs": list(batch().images), "data_samples": [DataSample().set_gt_label(pid) for pid in PIDS]}


def learns(model, data: dict) -> dict:
    """Take a backward pass, and return the losses; every parameter that is to be trained gets a gradient."""
    model.train()
    losses = run(model, data, "loss")
    total, _ = model.parse_losses(losses)
    total.backward()
    trained = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert [name for name, gradient in trained.items() if gradient is None] == []
    assert any(
        gradient.abs().sum() > 0 for name, gradient in trained.items() if "backbone" in name or "encoder" in name
    )
    return losses


@pytest.mark.parametrize("scope", [None, "agreid_plugin", "mmpretrain"])
@pytest.mark.parametrize(("backbone", "width"), [(RESNET, 512), (THEIR_VIT, 16)], ids=["ResNet", "VisionTransformer"])
def test_their_backbone_in_vif(backbone, width, scope):
    config = {**VIF, "num_ids": IDENTITIES, "backbone": backbone, "width": width}
    with DefaultScope.overwrite_default_scope(scope):
        model = built(config)
    losses = learns(model, loaded(batch()))
    assert set(losses) == {"loss_cls", "loss_triplet", "loss_vial", "cls_accuracy"}
    model.eval()
    features = [sample.feature for sample in run(model, loaded(batch()), "predict")]
    assert torch.stack(features).shape == (6, width)


def test_their_samples_tell_the_identity_to_vif():
    model = built({**VIF, "num_ids": IDENTITIES, "backbone": BACKBONES["ViT"]}).train()
    found, wanted = run(model, their_data(), "loss"), run(model, loaded(batch()), "loss")
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)


def test_a_part_of_theirs_finds_its_own_parts_in_a_run_of_ours(monkeypatch):
    """Their registry has names that ours has not."""

    class WithParts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part = their_models.build({"type": "GRN", "in_channels": 3})

        def forward(self, images):
            return (self.part(images),)

    monkeypatch.setitem(their_models._module_dict, "WithParts", WithParts)
    config = {"type": "agreid_plugin.VIF", "num_ids": 3, "width": 3, "backbone": {"type": "mmpretrain.WithParts"}}
    with DefaultScope.overwrite_default_scope("agreid_plugin"):
        with pytest.raises(KeyError):
            WithParts()
        assert isinstance(built(config).method.backbone.core, WithParts)


def test_weights_of_their_backbone_are_loaded_by_its_own_words(tmp_path):
    donor = built(RESNET)
    torch.save({"state_dict": donor.state_dict()}, tmp_path / "resnet.pth")
    given = {**RESNET, "init_cfg": {"type": "Pretrained", "checkpoint": str(tmp_path / "resnet.pth")}}
    torch.manual_seed(1)
    model = MODELS.build({"type": "agreid_plugin.VIF", "num_ids": 3, "backbone": given, "width": 512})
    core = model.method.backbone.core
    assert not torch.equal(core.conv1.weight, donor.conv1.weight)
    model.init_weights()  # as the Runner does
    assert torch.equal(core.conv1.weight, donor.conv1.weight)


@pytest.mark.parametrize(
    ("width", "words"), [(None, "width=None"), (256, r"width=256, but the features of the backbone have 512")]
)
def test_the_width_of_their_features_has_to_be_said(width, words):
    config = {"type": "agreid_plugin.VIF", "num_ids": 3, "backbone": RESNET, "width": width}
    with pytest.raises(InputError, match=words):
        run(built(config), loaded(batch()), "loss")


def test_tokens_are_no_feature():
    config = {"type": "agreid_plugin.VIF", "num_ids": 3, "backbone": {**THEIR_VIT, "out_type": "raw"}, "width": 16}
    with pytest.raises(InputError, match=r"features=\(6, 9, 16\) should be one vector"):
        run(built(config), loaded(batch()), "loss")


@pytest.mark.parametrize("name", OURS)
def test_our_backbone_in_their_classifier(name):
    backbone, width = OURS[name]
    model = classifier(backbone, linear(width))
    assert model.backbone.out_channels == width
    if name == "CLIP":  # its class token tells the rest; the text tower is not there
        assert not any("text" in key for key in model.state_dict())
    losses = learns(model, their_data())
    assert set(losses) == {"loss"}
    model.eval()
    found = run(model, their_data(), "predict")
    assert [sample.pred_score.shape for sample in found] == [(IDENTITIES,)] * 6
    assert model.extract_feat(batch().images)[-1].shape == (6, width)


@pytest.mark.parametrize("name", OURS)
def test_our_backbone_in_their_retriever(name):
    backbone, width = OURS[name]
    prototype = torch.randn(5, width)
    config = {"type": "mmpretrain.ImageToImageRetriever", "image_encoder": [backbone], "head": reid_head(width)}
    model = built({**config, "prototype": prototype})
    assert set(learns(model, their_data())) == {"loss_cls", "loss_triplet", "loss_vial", "cls_accuracy"}
    model.eval()
    model.prepare_prototype()
    scores = torch.stack([sample.pred_score for sample in run(model, their_data(), "predict")])
    feature = model.extract_feat(model.data_preprocessor(their_data())["inputs"])[-1]
    torch.testing.assert_close(scores, torch.cosine_similarity(feature[:, None], prototype[None], dim=2))


def test_a_backbone_that_needs_views_says_so():
    with pytest.raises(InputError, match=r"ViSABackbone needs the view of each image.*vab=False"):
        run(classifier(BACKBONES["ViSA"], linear(32)), their_data(), "loss")


def test_our_loss_on_their_head():
    ours = classifier(BACKBONES["ViT"], linear(16, type="agreid_plugin.IdentityLoss", weight=2.0)).train()
    theirs = classifier(BACKBONES["ViT"], linear(16, type="mmpretrain.CrossEntropyLoss", loss_weight=2.0)).train()
    theirs.load_state_dict(ours.state_dict())
    found, wanted = learns(ours, their_data())["loss"], learns(theirs, their_data())["loss"]
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", ["TripletLoss", "VIAL"])
def test_losses_of_features_refuse_the_logits_of_their_head(name):
    model = classifier(BACKBONES["ViT"], linear(16, type=f"agreid_plugin.{name}"))
    with pytest.raises(InputError, match=f"{name} compares features.*objectives of agreid_plugin.ReIDHead"):
        learns(model, their_data())


def test_a_sum_is_divided_by_what_a_head_says():
    logits, pids = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    plain = losses.IdentityLoss()(logits, pids)
    torch.testing.assert_close(IdentityLoss()(logits, pids), plain)
    torch.testing.assert_close(IdentityLoss()(logits, pids, avg_factor=4), plain)
    torch.testing.assert_close(IdentityLoss()(logits, pids, avg_factor=8), plain / 2)


@pytest.mark.parametrize("backbone", [RESNET, BACKBONES["ViT"]], ids=["ResNet", "ViT"])
def test_our_head_in_their_classifier(backbone):
    width = 512 if backbone is RESNET else 16
    model = classifier(backbone, reid_head(width))
    losses = learns(model, their_data())
    assert set(losses) == {"loss_cls", "loss_triplet", "loss_vial", "cls_accuracy"}
    assert 0 <= losses["cls_accuracy"] <= 1
    model.eval()
    found = run(model, their_data(), "predict")
    images = model.data_preprocessor(their_data())["inputs"]
    logits = model(images, mode="tensor")
    torch.testing.assert_close(torch.stack([sample.pred_score for sample in found]), logits.softmax(dim=1))
    assert [int(sample.pred_label) for sample in found] == logits.argmax(dim=1).tolist()
    torch.testing.assert_close(
        model.extract_feat(images, stage="pre_logits"), model.head.pre_logits(model.extract_feat(images))
    )


def test_our_head_is_that_of_vif():
    """The same losses, whether the head stands in our model or in theirs."""
    theirs = classifier(BACKBONES["ViT"], reid_head(16))
    ours = built({**VIF, "num_ids": 3, "backbone": BACKBONES["ViT"]})
    stored = {name.replace(".core", "").replace(".neck", ""): value for name, value in theirs.state_dict().items()}
    ours.load_state_dict({f"method.{name}": value for name, value in stored.items()})
    preprocessed = ours.data_preprocessor(loaded(batch()), True)
    wanted = ours.train()(**preprocessed, mode="loss")
    samples = their_data()["data_samples"]
    found = theirs.train()(preprocessed["inputs"], samples, mode="loss")
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)


def test_a_loss_of_theirs_says_what_it_is_computed_on():
    base = {"type": "agreid_plugin.VIF", "num_ids": 3, "backbone": BACKBONES["ViT"]}
    loss = {"type": "mmpretrain.LabelSmoothLoss", "label_smooth_val": 0.1, "mode": "original"}
    with pytest.raises(InputError, match=r"on=None should say what mmpretrain\.LabelSmoothLoss is computed on"):
        built({**base, "objectives": {"cls": loss}})
    model = built({**base, "objectives": {"cls": {**loss, "on": "logits"}, "triplet": OBJECTIVES["triplet"]}})
    assert {"loss_cls", "loss_triplet"} < set(learns(model, loaded(batch())))


def test_samples_may_name_their_view():
    samples = [BaseDataElement(metainfo={"view": view}) for view in ("aerial", View.GROUND, 1, None)]
    assert to_batch(torch.zeros(4, 3, 8, 8), samples).views.tolist() == [0, 1, 1, UNKNOWN]
    with pytest.raises(InputError, match=r"view 'areal' unknown \(did you mean aerial\?\)"):
        to_batch(torch.zeros(1, 3, 8, 8), [BaseDataElement(metainfo={"view": "areal"})])
