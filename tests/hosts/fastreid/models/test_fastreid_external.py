"""Backbones of timm, mmpretrain and open_clip inside the host, and the width of features that is asked for."""

import logging

import pytest
import torch
from conftest import assert_one_line
from fastreid.modeling.backbones import BACKBONE_REGISTRY, build_backbone
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from fastreid.utils.events import EventStorage
from torch import nn

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer
from agreid_plugin.hosts.fastreid.models.base import with_feature_width
from agreid_plugin.hosts.fastreid.models.external import read_options

SWIN = ["arch={'embed_dims': 24, 'depths': [1, 1], 'num_heads': [2, 2]}", "out_indices=(1,)"]
MM_VIT = [{"arch": {"embed_dims": 24, "num_layers": 2, "num_heads": 2, "feedforward_channels": 48}}, "patch_size=16"]
CLIP = ["width=32", "layers=2", "head_width=16", "embed_dim=24"]
SQUARE = ("INPUT.SIZE_TRAIN", [64, 64], "INPUT.SIZE_TEST", [64, 64])
CLIP_OF_TIMM = ["timm_model_name=test_vit", "timm_pool=token", "timm_proj=linear", "embed_dim=24"]
# library, name, options, output, stride -> width, rows and columns of a map of 64x32 images
MODELS = {
    "timm ViT": ("timm", "test_vit", [], "token", 16, (64, 1, 1)),
    "timm ViT map": ("timm", "test_vit", [], "map", 12, (64, 5, 2)),
    "timm ResNet": ("timm", "resnet18", [], "map", 16, (512, 2, 1)),
    "timm ResNet token": ("timm", "resnet18", [], "token", 16, (512, 1, 1)),
    "timm ConvNeXt": ("timm", "test_convnext", [], "map", 16, (64, 2, 1)),
    "timm Swin": ("timm", "swin_tiny_patch4_window7_224", ["embed_dim=24", "depths=(1, 1)", "num_heads=(2, 2)"], "map",
                  16, (48, 8, 4)),
    "mmpretrain Swin": ("mmpretrain", "SwinTransformer", SWIN, "map", 16, (48, 8, 4)),
    "mmpretrain Swin token": ("mmpretrain", "SwinTransformer", SWIN, "token", 16, (48, 1, 1)),
    "mmpretrain ViT": ("mmpretrain", "VisionTransformer", MM_VIT, "token", 16, (24, 1, 1)),
    "mmpretrain ViT map": ("mmpretrain", "VisionTransformer", MM_VIT, "map", 12, (24, 5, 2)),
    "open_clip": ("open_clip", "ViT-B-16-quickgelu", CLIP, "token", 12, (24, 1, 1)),
    "open_clip of timm": ("open_clip", "ViT-B-16-SigLIP", CLIP_OF_TIMM, "token", 16, (24, 1, 1)),
    "open_clip map": ("open_clip", "ViT-B-16", CLIP, "map", 12, (32, 5, 2)),
}  # fmt: skip


@pytest.fixture
def configured(config_file):
    """Load the small configuration with a backbone of another library in it."""

    def load(library, name, options=(), output="token", stride=16, *overrides):
        node = "MODEL.BACKBONE.EXTERNAL"
        settings = {
            "MODEL.DEVICE": "cpu",
            "MODEL.HEADS.NUM_CLASSES": 4,
            "MODEL.BACKBONE.NAME": f"build_{library}_backbone",
            "MODEL.BACKBONE.FEAT_DIM": 0,
            "MODEL.BACKBONE.STRIDE_SIZE": [stride, stride],
            "INPUT.SIZE_TRAIN": [64, 32],
            "INPUT.SIZE_TEST": [64, 32],
            f"{node}.NAME": name,
            f"{node}.OPTIONS": list(options),
            f"{node}.OUTPUT": output,
        }
        given = [str(each) for pair in settings.items() for each in pair]
        return load_config(config_file, [*given, *map(str, overrides)])

    return load


@pytest.mark.parametrize("model", MODELS)
def test_a_model_of_another_library_learns_in_the_hosts_baseline(configured, model):
    *named, shape = MODELS[model]
    net = Trainer.build_model(configured(*named))
    images = torch.rand(4, 3, 64, 32) * 255
    assert net.backbone(images).shape == (4, *shape)
    with EventStorage():
        losses = net.train()({"images": images.clone(), "targets": torch.tensor([0, 0, 1, 1])})
    sum(losses.values()).backward()
    assert all(torch.isfinite(value) for value in losses.values())
    assert not [name for name, p in net.named_parameters() if p.requires_grad and p.grad is None]
    with torch.no_grad():
        net.eval()
        assert net({"images": images}).shape == (4, shape[0])


@pytest.mark.parametrize("model", ["timm ConvNeXt", "timm ResNet token"])
def test_a_model_of_another_library_learns_in_vif(configured, model):
    *chosen, shape = MODELS[model]
    cfg = configured(*chosen, "MODEL.META_ARCHITECTURE", "VIF", "MODEL.HEADS.NAME", "BNNeckHead")
    built = Trainer.build_model(cfg).train()
    assert built.width == shape[0]
    with EventStorage():
        terms = built({"images": torch.rand(4, 3, 64, 32) * 255, "targets": torch.tensor([0, 0, 1, 1])})
    assert set(terms) == {"loss_cls", "loss_triplet", "loss_vial"}
    sum(terms.values()).backward()
    assert all(each.grad is not None for each in built.backbone.parameters() if each.requires_grad)


@pytest.mark.parametrize("model", ["timm ViT", "timm ResNet", "mmpretrain Swin", "mmpretrain ViT", "open_clip"])
def test_weights_come_back_from_a_file(configured, tmp_path, caplog, model):
    *named, _ = MODELS[model]
    first = build_backbone(configured(*named)).eval()
    path = tmp_path / "weights.pth"
    prefix = {"open_clip": "visual.", "mmpretrain": "backbone."}.get(named[0], "")
    state = {prefix + name: value for name, value in first.core.state_dict().items()}
    torch.save({"state_dict": {**state, "head.weight": torch.zeros(9, 3)}}, path)
    pretrained = ("MODEL.BACKBONE.PRETRAIN", True, "MODEL.BACKBONE.PRETRAIN_PATH", path)
    with caplog.at_level(logging.INFO, logger="fastreid.backbone"):
        second = build_backbone(configured(*named, *pretrained)).eval()
    count = sum(not name.endswith("num_batches_tracked") for name in state)
    assert f"{count} of {count} tensors from {path}" in caplog.text
    images = torch.rand(2, 3, 64, 32)
    with torch.no_grad():
        torch.testing.assert_close(first(images), second(images), rtol=0, atol=0)


@pytest.mark.parametrize("model", ["timm ViT map", "mmpretrain ViT map", "open_clip"])
def test_positions_of_a_square_grid_are_resized(configured, tmp_path, model):
    *named, _ = MODELS[model]
    library, name, options, output, _ = named
    state = build_backbone(configured(library, name, options, output, 16, *SQUARE)).core.state_dict()
    path = tmp_path / "weights.pth"
    torch.save(state, path)
    pretrained = ("MODEL.BACKBONE.PRETRAIN", True, "MODEL.BACKBONE.PRETRAIN_PATH", path)
    core = build_backbone(configured(*named, *pretrained)).core
    key = "positional_embedding" if library == "open_clip" else "pos_embed"
    found, stored = core.state_dict()[key].reshape(-1, state[key].shape[-1]), state[key].flatten(0, -2)
    assert (len(stored), len(found)) == (17, 11)
    torch.testing.assert_close(found[0], stored[0], rtol=0, atol=0)


class Half(nn.Module):
    """Tensors under the names of a CLIP, in half precision, with what OpenAI's files have besides."""

    def __init__(self, visual: nn.Module):
        super().__init__()
        self.visual = Names(visual.state_dict())
        self.register_buffer("input_resolution", torch.tensor(224))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images


class Names(nn.Module):
    """A module with these tensors, at any depth."""

    def __init__(self, state: dict[str, torch.Tensor]):
        super().__init__()
        for name in {name.split(".")[0] for name in state}:
            below = {key.partition(".")[2]: value for key, value in state.items() if key.split(".")[0] == name}
            if "" in below:
                self.register_buffer(name, below[""].half())
            else:
                self.add_module(name, Names(below))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images


def test_a_torchscript_archive_of_clip_is_read(configured, tmp_path):
    *named, _ = MODELS["open_clip"]
    first = build_backbone(configured(*named[:4], 16, *SQUARE)).core
    path = tmp_path / "ViT.pt"
    torch.jit.trace(Half(first), torch.zeros(1)).save(str(path))
    second = build_backbone(
        configured(*named, "MODEL.BACKBONE.PRETRAIN", True, "MODEL.BACKBONE.PRETRAIN_PATH", path)
    ).core
    assert second.proj.dtype == torch.float32
    torch.testing.assert_close(second.proj, first.proj.half().float(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"state_dict": {"stem.weight": torch.zeros(2)}}, ["fits 0 of the model's", "another model"]),
        ("another width", ["another model", "size mismatch"]),
    ],
)
def test_weights_of_another_model_are_refused(configured, tmp_path, content, words):
    *named, _ = MODELS["timm ViT"]
    if content == "another width":
        content = build_backbone(configured("timm", "test_vit", ["embed_dim=32"])).core.state_dict()
    path = tmp_path / "weights.pth"
    torch.save(content, path)
    with pytest.raises(InputError) as refused:
        build_backbone(configured(*named, "MODEL.BACKBONE.PRETRAIN", True, "MODEL.BACKBONE.PRETRAIN_PATH", path))
    for word in [str(path), *words]:
        assert word in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("timm", "resnet_18"), ["EXTERNAL.NAME of timm 'resnet_18' unknown", "did you mean resnet18?"]),
        (("mmpretrain", "SwinTransformr"), ["EXTERNAL.NAME of mmpretrain", "did you mean SwinTransformer?"]),
        (("open_clip", "ViT-B16"), ["EXTERNAL.NAME of open_clip", "did you mean ViT-B-16?"]),
        (("timm", "resnet18", ["depht=3"]), ["timm cannot build resnet18", "depht"]),
        (("mmpretrain", "ResNet", ["depth=17"]), ["mmpretrain cannot build ResNet", "17"]),
        (("open_clip", "ViT-B-16", ["widht=3"]), ["OPTIONS of open_clip", "did you mean width?"]),
        (("timm", "resnet18", ["pretrained=True"]), ["OPTIONS has pretrained", "PRETRAIN_PATH only"]),
        (("timm", "resnet18", ["depth"]), ["key=value", "'depth'"]),
        (("timm", "resnet18", [], "tokens"), ["EXTERNAL.OUTPUT 'tokens' unknown", "did you mean token?"]),
        (("timm", "resnet18", [], "map", 12), ["STRIDE_SIZE is [12, 12]", "resnet18 cannot take a stride"]),
        (("timm", "test_vit", [], "token", 20), ["STRIDE_SIZE is [20, 20]", "patches of 16x16"]),
        (("open_clip", "RN50"), ["RN50 of open_clip takes square images only", "[64, 32]"]),
        (("open_clip", "RN50", [], "map", 16, *SQUARE), ["OUTPUT is map", "set OUTPUT token"]),
        (("timm", "test_vit", [], "token", 16, "INPUT.SIZE_TEST", [64, 64]), ["one image size"]),
        (("timm", "resnet18", [], "map", 16, "MODEL.HEADS.POOL_LAYER", "Identity"), ["POOL_LAYER Identity"]),
    ],
)
def test_what_cannot_be_built_is_one_line(configured, arguments, words):
    with pytest.raises(InputError) as refused:
        build_backbone(configured(*arguments))
    for word in words:
        assert word in str(refused.value)
    assert "\n" not in str(refused.value)


def test_options_are_texts_or_mappings(configured):
    options = ["depth=18", "name = avg", "rates=[0.1, 1e-4]", {"arch": {"width": 3}}]
    assert read_options(configured("timm", "resnet18", options)) == {
        "depth": 18,
        "name": "avg",
        "rates": [0.1, 1e-4],
        "arch": {"width": 3},
    }


@pytest.mark.parametrize(
    ("backbone", "width"),
    [
        (("build_resnet_backbone", "18x"), 512),
        (("build_vit_backbone", "small"), 768),
        (("build_plain_vit_backbone", "tiny"), 16),
    ],
)
def test_width_zero_asks_the_hosts_backbones_and_ours(configured, backbone, width):
    name, depth = backbone
    overrides = ("MODEL.BACKBONE.NAME", name, "MODEL.BACKBONE.DEPTH", depth)
    cfg = configured("timm", "", [], "token", 16, *overrides)
    cfg.freeze()
    torch.manual_seed(0)
    found = with_feature_width(cfg)
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(1))
    assert width == found.MODEL.BACKBONE.FEAT_DIM
    assert found.is_frozen()
    assert cfg.MODEL.BACKBONE.FEAT_DIM == 0


def test_width_zero_of_an_architecture_that_a_function_builds(configured, monkeypatch):
    monkeypatch.setitem(META_ARCH_REGISTRY._obj_map, "build_own", lambda cfg: nn.Identity())  # noqa: ARG005
    cfg = configured("timm", "resnet18", [], "map", 16, "MODEL.META_ARCHITECTURE", "build_own")
    assert with_feature_width(cfg).MODEL.BACKBONE.FEAT_DIM == 512


def test_a_backbone_made_by_the_width_cannot_be_asked_for_it(configured, monkeypatch):
    def build(cfg) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, cfg.MODEL.BACKBONE.FEAT_DIM or 1, 3), nn.Linear(1, 1))

    monkeypatch.setitem(BACKBONE_REGISTRY._obj_map, "build_own_backbone", build)
    cfg = configured("timm", "", [], "token", 16, "MODEL.BACKBONE.NAME", "build_own_backbone")
    with pytest.raises(InputError, match="FEAT_DIM is 0, but build_own_backbone cannot be asked for its width"):
        with_feature_width(cfg)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("timm", "resnet18", ["global_pool=avg"], "map"), ["OUTPUT is map", "resnet18 gives features of shape"]),
        (("mmpretrain", "VisionTransformer", [*MM_VIT, "out_type=raw"]), ["OUTPUT is token", "(1, 9, 24)"]),
    ],
)
def test_features_of_another_shape_are_refused(configured, arguments, words):
    with pytest.raises(InputError) as refused:
        Trainer.build_model(configured(*arguments))
    for word in words:
        assert word in str(refused.value)


def test_trains_and_evaluates_by_one_command(config_file, tmp_path, fastreid_command):
    chosen = ["MODEL.BACKBONE.NAME", "build_timm_backbone", "MODEL.BACKBONE.EXTERNAL.NAME", "test_vit"]
    chosen += ["MODEL.BACKBONE.FEAT_DIM", 0, "SOLVER.MAX_EPOCH", 1]
    outcome = fastreid_command("train", "--config", config_file, "--output", tmp_path / "run", *chosen)
    assert outcome.code == 0, outcome.err
    weights = ["--weights", tmp_path / "run" / "model_final.pth"]
    outcome = fastreid_command("eval", "--config", config_file, "--output", tmp_path / "again", *weights, *chosen)
    assert outcome.code == 0, outcome.err
    first, again = ((tmp_path / name / "results.json").read_text() for name in ("run", "again"))
    assert again == first
    chosen[3] = "test_vt"
    wrong = fastreid_command("train", "--config", config_file, "--output", tmp_path / "wrong", *chosen)
    assert_one_line(wrong, "EXTERNAL.NAME", "did you mean test_vit?")
