"""One method, two hosts: same weights and same batch give the same features and the same losses."""

import pytest
import small_mmengine
import torch
import yaml
from fastreid.modeling import build_model
from fastreid.utils.events import EventStorage
from mmengine.runner.checkpoint import load_checkpoint
from mmengine.runner.checkpoint import load_state_dict as host_load
from small_mmengine import CLIP, IDENTITIES, ROWS, batch, loaded, run

from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data.batches import to_host
from agreid_plugin.inference.weights import load_weights, read_state

VIT = {"BACKBONE": {"DEPTH": "tiny", "STRIDE_SIZE": [8, 8], "FEAT_DIM": 16, "DROP_PATH_RATIO": 0.0}}
VIT["VIT"] = {"PATCH_SIZE": 8, "WIDTH": 16, "LAYERS": 2, "HEADS": 2}
COMMON = {
    "HEADS": {"NAME": "BNNeckHead", "NUM_CLASSES": IDENTITIES},
    "LOSSES": {
        "NAME": ["CrossEntropyLoss", "TripletLoss"],
        "CE": {"EPSILON": 0.0},
        "TRI": {"MARGIN": 0.0, "HARD_MINING": True},
    },
    "PIXEL_MEAN": [127.5] * 3,
    "PIXEL_STD": [127.5] * 3,
    "DEVICE": "cpu",
}
SHAPE = {name.upper(): value for name, value in CLIP.items() if name != "image_size"}
OF_CLIP = {"BACKBONE": {"NAME": "build_clip_backbone", "STRIDE_SIZE": [8, 8]}, "CLIP": SHAPE}


def of_vit(architecture: str, backbone: str, **more) -> dict:
    return {**VIT, "BACKBONE": {**VIT["BACKBONE"], "NAME": backbone}, "META_ARCHITECTURE": architecture, **more}


def of_svpr(attributes: list) -> dict:
    node = {"SVPR": {"ATTRIBUTES": attributes}, "CLIP": {**SHAPE, "FREEZE": ["text"]}}
    return {**OF_CLIP, **node, "META_ARCHITECTURE": "SVPR"}


RESNET = {"NAME": "ResNet", "OPTIONS": ["depth=18"]}
TAG_CLIP = {"AT": [1], "TSE_WIDTH": 10, "FREEZE_PATCHES": False}
FASTREID = {
    "VDT": of_vit("VDT", "build_vdt_backbone"),
    "ViSA": of_vit("ViSA", "build_visa_backbone", VISA={"EXPERTS": 3, "TOKENS": 2, "NEIGHBORS": 3}),
    "SVPR": of_svpr(["none"]),
    "SVPR-attributes": of_svpr(ROWS),
    "VIF": of_vit("VIF", "build_plain_vit_backbone", VIF={"LAMBDA": 0.7}),
    "ResNet": {
        "META_ARCHITECTURE": "VIF",
        "BACKBONE": {"NAME": "build_mmpretrain_backbone", "FEAT_DIM": 512, "EXTERNAL": RESNET},
        "VIF": {"LAMBDA": 0.7},
    },
    "TAGCLIP": {**OF_CLIP, "META_ARCHITECTURE": "TAGCLIP", "TAG_CLIP": TAG_CLIP, "LOSSES": {"NAME": []}},
}


def fastreid_model(name: str, folder):
    path = folder / "small.yml"
    sizes = {"SIZE_TRAIN": [32, 16], "SIZE_TEST": [32, 16]}
    path.write_text(yaml.safe_dump({"MODEL": {**COMMON, **FASTREID[name]}, "INPUT": sizes}))
    torch.manual_seed(7)
    return build_model(load_config(path))


def shaken(model):
    """Give every tensor values of its own, those that start at zero too, wide enough to matter."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point() and "logit_scale" not in name:
                noise = torch.randn(value.shape, generator=generator)
                value.add_(0.1 * (noise.abs() if "running_var" in name else noise))
    return model


@pytest.fixture(params=FASTREID)
def both(request, tmp_path):
    """The same method in both hosts, with the weights of fast-reid's loaded into ours."""
    theirs = shaken(fastreid_model(request.param, tmp_path))
    ours = small_mmengine.model(request.param)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def test_features_are_equal(both):
    theirs, ours = both[0].eval(), both[1].eval()
    with torch.no_grad():
        wanted = theirs(to_host(batch().with_(tokens=None)))
        found = run(ours, loaded(batch()), "predict")
    assert wanted.shape[1] > 1
    torch.testing.assert_close(torch.stack([sample.feature for sample in found]), wanted, rtol=1e-6, atol=1e-6)


def test_losses_gradients_and_statistics_are_equal(both):
    theirs, ours = both[0].train(), both[1].train()
    torch.manual_seed(5)
    with EventStorage() as storage:
        wanted = theirs(to_host(batch()))
    torch.manual_seed(5)
    found = run(ours, loaded(batch()), "loss")
    accuracies = {name: found.pop(name) for name in list(found) if "loss" not in name}
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6, msg=name)
    assert {name: float(value) for name, value in accuracies.items()} == pytest.approx(
        {name: storage.latest()[name][0] for name in accuracies}
    )

    sum(wanted.values()).backward()
    sum(found.values()).backward()
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    assert {f"method.{name}" for name in gradients} == {name for name, _ in ours.named_parameters()}
    for name, parameter in ours.named_parameters():
        theirs_grad = gradients[name.removeprefix("method.")]
        assert (parameter.grad is None) == (theirs_grad is None), name
        if theirs_grad is not None:
            torch.testing.assert_close(parameter.grad, theirs_grad, rtol=1e-5, atol=1e-6)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[f"method.{name}"], value, rtol=1e-6, atol=1e-6)


def test_sentences_are_equal(tmp_path):
    theirs, ours = shaken(fastreid_model("TAGCLIP", tmp_path)).eval(), small_mmengine.model("TAGCLIP").eval()
    ours.load_state_dict(theirs.state_dict())
    tokens = batch().tokens
    with torch.no_grad():
        wanted = theirs({"images": torch.zeros(0, 3, 32, 16), "tokens": tokens})
        found = run(ours, small_mmengine.sentences(tokens), "predict")
    torch.testing.assert_close(torch.stack([sample.feature for sample in found]), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", FASTREID)
def test_files_of_fastreid_load_by_all_ways_of_mmengine(name, tmp_path):
    theirs = shaken(fastreid_model(name, tmp_path))
    path = tmp_path / "theirs.pth"
    torch.save({"model": theirs.state_dict(), "iteration": 7, "optimizer": {"state": {}}}, path)
    wanted = {f"method.{key}": value for key, value in theirs.state_dict().items()}

    first, second, third = (small_mmengine.model(name) for _ in range(3))
    load_checkpoint(first, str(path), strict=True)
    assert load_weights(second, path) == []
    host_load(third, {f"module.{key}": value for key, value in theirs.state_dict().items()}, strict=True)
    for model in (first, second, third):
        for key, value in model.state_dict().items():
            assert torch.equal(value, wanted[key]), key


@pytest.mark.parametrize("name", FASTREID)
def test_files_of_mmengine_load_in_fastreid(name, tmp_path):
    ours, theirs = shaken(small_mmengine.model(name)), fastreid_model(name, tmp_path)
    path = tmp_path / "ours.pth"
    torch.save({"state_dict": ours.state_dict(), "meta": {"epoch": 1}}, path)
    assert set(read_state(path)) == set(theirs.state_dict())
    assert load_weights(theirs, path) == []
    for key, value in theirs.state_dict().items():
        assert torch.equal(value, ours.state_dict()[f"method.{key}"]), key


def test_a_file_of_another_model_is_told(tmp_path):
    with pytest.raises(RuntimeError, match="Missing key"):
        small_mmengine.model("VDT").load_state_dict(fastreid_model("VIF", tmp_path).state_dict())
