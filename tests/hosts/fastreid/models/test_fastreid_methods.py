"""ViSA, VDT and VIF-AGReID inside the host: recipes, training, evaluation, views, and what is refused."""

import inspect
import json
from pathlib import Path

import pytest
import torch
from conftest import RESNET, ROOT, assert_one_line, recipes
from fastreid.modeling import backbones
from fastreid.utils.events import EventStorage
from small_fastreid import VISA, built, train_once, write_tiny

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config.checks import DEPTHS, check_config
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data.batches import to_host
from agreid_plugin.losses import VIAL
from agreid_plugin.methods.visa import ViSA, build_backbone
from agreid_plugin.nn.checkpoints import read_checkpoint
from agreid_plugin.types import Batch

RECIPES = recipes("ViSA", "VDT", "VIF-AGReID")
VDT = ("MODEL.META_ARCHITECTURE", "VDT", "MODEL.BACKBONE.NAME", "build_vdt_backbone")


@pytest.fixture
def tiny(tmp_path, agsynth) -> Path:
    """A configuration that trains ViSA on `agsynth` in seconds."""
    return write_tiny(tmp_path, VISA, agsynth)


@pytest.fixture(scope="module")
def weights(tmp_path_factory, agsynth) -> Path:
    """What an epoch of it ends with."""
    config = write_tiny(tmp_path_factory.mktemp("methods"), VISA, agsynth)
    train_once(config)
    return config.parent / "run" / "model_final.pth"


def host_batch(views=(0, 1, 0, 1)) -> dict:
    images = torch.rand(len(views), 3, 32, 16, generator=torch.Generator().manual_seed(0)) * 255
    pids = torch.arange(len(views)) // 2
    return to_host(Batch(images=images, pids=pids, views=torch.tensor(views), cameras=torch.zeros(len(views)).long()))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recipe_builds_a_model_that_takes_a_step(path):
    """At its own settings but for the size of the network and of the images."""
    small = ["MODEL.BACKBONE.DEPTH", "tiny", "MODEL.VIT.WIDTH", "16", "MODEL.VIT.LAYERS", "2", "MODEL.VIT.HEADS", "2"]
    small += ["MODEL.BACKBONE.PRETRAIN", "False", "MODEL.BACKBONE.FEAT_DIM", "16"]
    model = built(path, *small).train()
    size = load_config(path).INPUT.SIZE_TRAIN
    inputs = {**host_batch(), "images": torch.rand(4, 3, *size) * 255}
    with EventStorage():
        losses = model(inputs)
    sum(losses.values()).backward()
    assert all(name.startswith("loss_") and torch.isfinite(value) for name, value in losses.items())
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


@pytest.mark.parametrize("overrides", [(), VDT], ids=["ViSA", "VDT"])
def test_trains_and_evaluates_by_one_command(tiny, tmp_path, fastreid_command, overrides):
    outcome = fastreid_command("train", "--config", tiny, *overrides)
    assert outcome.code == 0, outcome.err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert set(results["CARGO"]) == {"ALL", "A2G"}
    assert results["CARGO"]["A2G"]["views"] == ("given" if not overrides else "")

    outcome = fastreid_command(
        "eval", "--config", tiny, "--weights", tmp_path / "run" / "model_final.pth", "--output", tmp_path / "again",
        *overrides,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert json.loads((tmp_path / "again" / "results.json").read_text())["CARGO"] == results["CARGO"]


def test_predicted_views_need_none_and_results_say_so(tiny, weights, tmp_path, fastreid_command):
    outcome = fastreid_command("eval", "--config", tiny, "--weights", weights, "MODEL.VIEW", "predicted")
    assert outcome.code == 0, outcome.err
    results = json.loads((tmp_path / "run" / "eval" / "results.json").read_text())
    assert results["CARGO"]["ALL"]["views"] == "predicted"

    model = built(tiny, "MODEL.VIEW", "predicted").eval()
    model.load_state_dict(read_checkpoint(weights)["model"])
    with torch.no_grad():
        given, none = model(host_batch()), model({"images": host_batch()["images"]})
    torch.testing.assert_close(given, none, rtol=0, atol=0)


def test_agsynth_is_made_when_it_is_missing(tiny, tmp_path, fastreid_command):
    root = tmp_path / "made"
    synth = ["DATASETS.ROOT", root, "DATASETS.AGSYNTH.IDS", 8, "DATASETS.AGSYNTH.SIZE", "[32, 16]"]
    assert fastreid_command("train", "--config", tiny, *synth).code == 0
    made = json.loads((root / "CARGO" / "agsynth.json").read_text())
    assert made == {"ids": 8, "images_per_id": 12, "size": [32, 16], "layout": "cargo", "seed": 0, "world": "easy"}

    again = fastreid_command("train", "--config", tiny, "--output", tmp_path / "again", *synth)
    assert again.code == 0, again.err
    other = fastreid_command("train", "--config", tiny, "--output", tmp_path / "b", *synth, "DATASETS.AGSYNTH.SEED", 1)
    assert_one_line(other, str(root / "CARGO"), "seed 0 instead of 1")
    world = fastreid_command(
        "train", "--config", tiny, "--output", tmp_path / "c", *synth, "DATASETS.AGSYNTH.WORLD", "gap"
    )
    assert_one_line(world, str(root / "CARGO"), "world easy instead of gap")


def test_a_model_normalizes_a_copy_of_the_images(tiny):
    inputs = host_batch()
    before = inputs["images"].clone()
    with torch.no_grad():
        built(tiny).eval()(inputs)
    torch.testing.assert_close(inputs["images"], before, rtol=0, atol=0)


@pytest.mark.parametrize("overrides", [(), VDT], ids=["ViSA", "VDT"])
def test_identities_and_cameras_do_not_reach_a_test_feature(tiny, overrides):
    model = built(tiny, *overrides).eval()
    inputs = host_batch()
    with torch.no_grad():
        features = model(inputs)
        shuffled = model({**inputs, "targets": inputs["targets"].flip(0), "camids": inputs["camids"] + 5})
    torch.testing.assert_close(features, shuffled, rtol=0, atol=0)


@pytest.mark.parametrize("head", ["BNNeckHead", "EmbeddingHead"])
def test_heads_of_both_owners_fit(tiny, head):
    model = built(tiny, "MODEL.HEADS.NAME", head, "MODEL.HEADS.WITH_BNNECK", "True").train()
    with EventStorage():
        sum(model(host_batch()).values()).backward()
    assert model.eval()(host_batch()).shape == (4, 32)


@pytest.mark.parametrize("name", sorted(DEPTHS))
def test_depths_of_the_hosts_networks_are_those_that_it_builds(tiny, name):
    overrides = ["MODEL.META_ARCHITECTURE", "Baseline", "MODEL.BACKBONE.NAME", name, "MODEL.BACKBONE.DEPTH"]
    for depth in DEPTHS[name]:
        with torch.device("cpu" if name == "build_vit_backbone" else "meta"):  # it reads numbers of a tensor
            backbones.build_backbone(load_config(tiny, [*overrides, depth]))
    with pytest.raises(InputError, match=f"MODEL.BACKBONE.DEPTH of {name} '{depth}q' unknown .did you mean {depth}"):
        check_config(load_config(tiny, [*overrides, f"{depth}q"]))


def test_vdts_backbone_serves_the_hosts_baseline_and_circle_loss(tiny):
    losses = "('CrossEntropyLoss', 'CircleLoss')"
    model = built(tiny, "MODEL.META_ARCHITECTURE", "Baseline", *VDT[2:], "MODEL.LOSSES.NAME", losses).train()
    with EventStorage():
        found = model(host_batch())
    assert set(found) == {"loss_cls", "loss_circle"}
    assert model.eval()(host_batch()).shape == (4, 16)


def test_visa_takes_other_losses_too(tiny):
    model = built(tiny, "MODEL.LOSSES.NAME", "('CrossEntropyLoss', 'CircleLoss', 'VIAL')").train()
    with EventStorage():
        found = model(host_batch())
    assert {f"loss_{name}_{part}" for name in ("cls", "circle", "vial") for part in ("id", "local")} <= set(found)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("MODEL.VISA.NEIGHBORS", 9), ("MODEL.VISA", "neighbors=9", "8")),
        (("MODEL.VISA.TOP_K", 4), ("MODEL.VISA", "top_k=4", "3")),
        (("MODEL.VISA.VARIANT", "papr"), ("MODEL.VISA", "papr", "did you mean paper")),
        (("MODEL.VIEW", "predict"), ("MODEL.VIEW", "did you mean predicted")),
        (("MODEL.VISA.DLFM", False), ("MODEL.VISA", "etgm=True needs dlfm=True")),
        (("MODEL.BACKBONE.DEPTH", "bse"), ("MODEL.BACKBONE.DEPTH", "did you mean base")),
        (("MODEL.BACKBONE.NAME", "build_resnet_backbone"), ("MODEL.BACKBONE.DEPTH", "tiny", "18x")),
        (
            ("MODEL.BACKBONE.NAME", "build_resnet_backbone", "MODEL.BACKBONE.DEPTH", "18x"),
            ("build_resnet_backbone does not suit", "no blocks that take tokens", "MODEL.VISA.VAB False"),
        ),
        (("MODEL.BACKBONE.NAME", "build_vdt_backbone"), ("build_vdt_backbone does not suit", "a ViT")),
        (("MODEL.META_ARCHITECTURE", "Visa"), ("MODEL.META_ARCHITECTURE", "did you mean ViSA")),
        (("MODEL.LOSSES.NAME", "('Vial',)"), ("MODEL.LOSSES.NAME", "did you mean VIAL")),
        (("INPUT.SIZE_TEST", "[64, 32]"), ("64x32", "32x16")),
        (("MODEL.BACKBONE.PRETRAIN", True, "MODEL.BACKBONE.PRETRAIN_PATH", "none.pth"), ("none.pth", "not exist")),
        (("MODEL.VIT.HEADS", 3), ("heads=3", "width=16")),
        (("MODEL.META_ARCHITECTURE", "Baseline"), ("the view of each image is needed",)),
    ],
)
def test_bad_settings_are_one_line(tiny, fastreid_command, overrides, words):
    assert_one_line(fastreid_command("train", "--config", tiny, *overrides), *words)


def test_a_pretrained_file_of_another_architecture_is_refused(tiny, tmp_path, fastreid_command):
    path = tmp_path / "resnet.pth"
    torch.save({"conv1.weight": torch.zeros(64, 3, 7, 7), "layer1.0.conv1.weight": torch.zeros(64, 64, 1, 1)}, path)
    pretrain = ("MODEL.BACKBONE.PRETRAIN", True, "MODEL.BACKBONE.PRETRAIN_PATH", path)
    assert_one_line(fastreid_command("train", "--config", tiny, *pretrain), "resnet.pth")


def test_images_without_a_view_are_refused_before_training(tiny, market, fastreid_command):
    names = ("DATASETS.ROOT", market, "DATASETS.NAMES", "('Market1501',)", "DATASETS.TESTS", "('Market1501',)")
    outcome = fastreid_command("train", "--config", tiny, *names, "TEST.PROTOCOLS", "[]")
    assert_one_line(outcome, "ViSA", "view of every image", "48 of 48", ".jpg")


def test_test_images_without_a_view_can_be_predicted(tiny, weights, market, tmp_path, fastreid_command):
    names = ("DATASETS.ROOT", market, "DATASETS.TESTS", "('Market1501',)", "TEST.PROTOCOLS", "[]")
    evaluate = ("eval", "--config", tiny, "--weights", weights, *names)
    assert_one_line(fastreid_command(*evaluate), "view of every test image", "MODEL.VIEW predicted")
    outcome = fastreid_command(*evaluate, "MODEL.VIEW", "predicted")
    assert outcome.code == 0, outcome.err
    results = json.loads((tmp_path / "run" / "eval" / "results.json").read_text())
    assert results["Market1501"]["ALL"]["views"] == "predicted"


def test_every_key_of_visa_is_at_the_constructors_default():
    cfg = load_config(ROOT / "projects" / "ViSA" / "visa.yml")
    defaults = {name: p.default for f in (build_backbone, ViSA) for name, p in inspect.signature(f).parameters.items()}
    for name, value in cfg.MODEL.VISA.items():
        assert value == defaults[name.lower()], name


@pytest.mark.parametrize("architecture", ["Baseline", "MoCo", "MGN"])
def test_the_hosts_architectures_take_our_losses(config_file, architecture):
    names = (*RESNET, "MODEL.META_ARCHITECTURE", architecture, "MODEL.QUEUE_SIZE", "32")
    if architecture == "MGN":  # made for a ResNet-50
        names += ("MODEL.BACKBONE.DEPTH", "50x", "MODEL.BACKBONE.FEAT_DIM", "2048")
    overrides = (*names, "MODEL.LOSSES.VIAL.WEIGHT", "3.0", "MODEL.LOSSES.NAME", "('TripletLoss', 'VIAL')")
    model = built(config_file, *overrides).train()
    features = []
    names = [f"b{branch}_head" for branch in (1, 2, 21, 22, 3, 31, 32, 33)] if architecture == "MGN" else ["heads"]
    for head in map(model.get_submodule, names):
        head.register_forward_hook(lambda _, __, outputs: features.append(outputs["features"]))
    inputs = {**host_batch(), "images": torch.rand(4, 3, 128, 32) * 255}
    with EventStorage():
        found = model({key: value.clone() for key, value in inputs.items()})
    assert any(name.startswith("loss_triplet") for name in found)
    terms = [3 * VIAL()(each, inputs["targets"]) for each in features]
    assert len(terms) == (8 if architecture == "MGN" else 1)
    torch.testing.assert_close(found["loss_vial"], sum(terms) / len(terms))


def test_two_processes_train_visa(tiny, tmp_path, fastreid_command):
    outcome = fastreid_command("train", "--config", tiny, "--num-processes", 2)
    assert outcome.code == 0, outcome.err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["CARGO"]["ALL"]["queries"] == 12
