"""mmpretrain's models trained on our dataset and evaluated by our metric, under every protocol."""

import json

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner
from small_mmengine_config import write_config

from agreid_plugin.evaluation import load_features

VIT = 'dict(type="agreid_plugin.ViTBackbone", vit=dict(image_size=size, patch_size=8, width=16, depth=2, heads=2))'
RESNET = 'dict(type="mmpretrain.ResNet_CIFAR", depth=18, base_channels=8, stem_channels=8)'
OUR_HEAD = 'dict(type="agreid_plugin.ReIDHead", in_channels=16, num_classes=4)'
THEIR_DATA = """
default_scope = "mmpretrain"
theirs = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(16, 32)),
    dict(type="PackInputs"),
]
train_dataloader["dataset"]["pipeline"] = test_dataloader["dataset"]["pipeline"] = theirs
"""
THEIR_PREPROCESSOR = 'dict(type="mmpretrain.ClsDataPreprocessor", mean=[127.5] * 3, std=[127.5] * 3, to_rgb=True)'
CLASSIFIER = """
model = dict(
    type="mmpretrain.ImageClassifier",
    backbone={backbone},
    head={head},
    data_preprocessor={preprocessor},
)
"""
LINEAR_HEAD = 'dict(type="mmpretrain.LinearClsHead", in_channels=64, num_classes=4)'
OUR_PREPROCESSOR = 'dict(type="agreid_plugin.ReIDPreprocessor")'
RETRIEVER = f"""
default_scope = "mmpretrain"
model = dict(
    type="mmpretrain.ImageToImageRetriever",
    image_encoder=[{RESNET}, dict(type="mmpretrain.GlobalAveragePooling")],
    head=dict(type="mmpretrain.ArcFaceClsHead", in_channels=64, num_classes=4),
    prototype=test_dataloader,
    data_preprocessor={OUR_PREPROCESSOR},
)
"""
MODELS_AND_DATA = {
    "classifier with their parts": THEIR_DATA
    + CLASSIFIER.format(
        backbone=RESNET,
        head=LINEAR_HEAD,
        preprocessor=THEIR_PREPROCESSOR,
    ).replace("head=", 'neck=dict(type="mmpretrain.GlobalAveragePooling"),\n    head='),
    "classifier with our parts": CLASSIFIER.format(backbone=VIT, head=OUR_HEAD, preprocessor=OUR_PREPROCESSOR),
    "retriever with their head": RETRIEVER,
}


@pytest.mark.parametrize("name", MODELS_AND_DATA)
def test_their_model_is_trained_and_evaluated_under_every_protocol(fastreid_command, tmp_path, agsynth, name):
    path = write_config(tmp_path / "mixed.py", agsynth, MODELS_AND_DATA[name])
    assert fastreid_command("train", "--config", path, "--output", tmp_path / "run").code == 0
    evaluate = ["eval", "--config", path, "--weights", tmp_path / "run/epoch_1.pth"]
    outcome = fastreid_command(*evaluate, "--output", tmp_path / "eval", "--save-features", tmp_path / "features.npz")
    assert outcome.code == 0, outcome.err
    found = json.loads((tmp_path / "eval/results.json").read_text())["CARGO"]
    assert {"ALL", "A2G", "G2A", "AG-both", "AG-cross"} <= set(found)

    cfg = Config.fromfile(path)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model).eval()
        loader = Runner.build_dataloader(cfg.test_dataloader)
    model.load_state_dict(torch.load(tmp_path / "run/epoch_1.pth", weights_only=True)["state_dict"])
    stored = load_features(tmp_path / "features.npz")
    by_path = {record.path: row for record, row in zip(stored.records, torch.as_tensor(stored.images[0]), strict=True)}
    with torch.no_grad():
        for batch in loader:
            images = model.data_preprocessor(batch, False)["inputs"]
            features = pre_logits(model, images)
            for sample, feature in zip(batch["data_samples"], features, strict=True):
                torch.testing.assert_close(by_path[sample.img_path], feature)


def pre_logits(model, images):
    """What a model classifies by; its logits are of the 4 identities of the training set."""
    if type(model).__name__ == "ImageToImageRetriever":
        found = model.extract_feat(images)
        found = found[-1] if isinstance(found, tuple) else found
    else:
        found = model.extract_feat(images, stage="pre_logits")
    assert found.shape[1] != 4
    return found
