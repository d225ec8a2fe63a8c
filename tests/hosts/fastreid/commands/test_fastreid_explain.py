"""`fastreid explain` tells what a configuration builds, from the real host, and agrees with what is built."""

import math
from pathlib import Path

import pytest
import torch
from conftest import RESNET, assert_one_line, recipes, slow
from fastreid.solver import build_lr_scheduler
from fastreid.utils.events import EventStorage
from small_fastreid import VISA, built, write_tiny

from agreid_plugin.data.datasets import load
from agreid_plugin.hosts.fastreid.commands.explain import explain
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.engine.solver import cosine_by_iteration
from agreid_plugin.types import View

RECIPES = [path for path in recipes("*") if path.parent.name not in ("Mixed", "Example")]
ONE_A_PROJECT = list({path.parent: path for path in RECIPES}.values())
SMALL = (
    *("MODEL.BACKBONE.FEAT_DIM", "16", "MODEL.VIT.WIDTH", "16", "MODEL.VIT.LAYERS", "2", "MODEL.VIT.HEADS", "2"),
    *("MODEL.CLIP.WIDTH", "16", "MODEL.CLIP.HEADS", "2", "MODEL.CLIP.EMBED_DIM", "16", "MODEL.CLIP.TEXT_WIDTH", "16"),
    *("MODEL.CLIP.TEXT_HEADS", "2", "MODEL.CLIP.TEXT_LAYERS", "1"),
)
TINY = VISA | {
    "MODEL": {**VISA["MODEL"], "LOSSES": {"NAME": ["CrossEntropyLoss", "VIAL"], "VIAL": {"WEIGHT": 0.25}}},
    "INPUT": {**VISA["INPUT"], "PIPELINE": ["host", {"PLRM": {"n": 4}}]},
    "DATASETS": {"NAMES": ["CARGO"], "TESTS": ["CARGO_A2G", "CARGO_ALL"]},
    "SOLVER": {**VISA["SOLVER"], "MAX_EPOCH": 6, "STEPS": [2, 30]},
    "TEST": {},
}
OWN_TERMS = {
    "view_loss": "loss_view",
    "orthogonal_loss": "loss_orthogonal",
    "predictor_loss": "loss_view_predictor",
    "balance_loss": "loss_balance",
}


@pytest.fixture
def tiny(tmp_path, agsynth) -> Path:
    """A configuration of ViSA on `agsynth`."""
    return write_tiny(tmp_path, TINY, agsynth)


def told(path: Path, *overrides: str) -> dict[str, dict[str, str]]:
    return {title: dict(rows) for title, rows in explain(path, overrides).items()}


def numbers(sections: dict) -> dict[str, tuple[int, float]]:
    """Read module -> parameters and GFLOPs."""
    rows = {name: text.split() for name, text in list(sections.values())[-1].items()}
    return {name: (int(row[0].replace(",", "")), float(row[1])) for name, row in rows.items() if name != "trainable"}


def test_it_tells_the_whole_of_a_method(tiny, agsynth, tmp_path):
    found = told(tiny)
    model = found["model"]
    assert model["architecture"] == "ViSA (agreid_plugin)"
    assert model["backbone"] == "build_visa_backbone (agreid_plugin)"
    for words in ("width 16, 2 blocks, 2 heads", "patch 8, stride 8x8", "grid 4x2 = 8 patches of 32x16", "10 tokens"):
        assert words in model["ViT"]
    assert model["heads"] == "BNNeckHead (agreid_plugin), 4 classes"
    assert model["pretrained"] == model["weights"] == "none"
    assert found["losses"]["VIAL"].startswith("weight 0.25, LAMBDA 0.5")
    assert found["losses"]["balance_loss"] == "weight 0.001, of ViSA itself"
    transforms = list(found["training images"].values())
    assert transforms[0].startswith("Resize(size=[32, 16]")
    assert transforms[-1].startswith("PLRM(p_img=0.5, p_0=0.3, n=4")
    assert [text.partition("(")[0] for text in found["test images"].values()] == ["Resize", "ToTensor"]
    assert found["training sets"]["CARGO"] == "48 images (24 aerial, 24 ground), 4 identities, 13 cameras"
    assert found["training sets"]["sampler"] == "ViewBalancedIdentitySampler, 4 identities x 4 images = 16 a batch"
    assert "refused" not in found["training sets"]
    query, gallery = (load("CARGO", agsynth).split(side) for side in ("query", "gallery"))
    aerial, ground = (sum(r.view == view for r in side) for view, side in zip(View, (query, gallery), strict=True))
    assert found["test sets"]["CARGO/A2G"] == f"{aerial} queries, {ground} gallery images"
    assert found["test sets"]["CARGO/ALL"] == f"{len(query)} queries, {len(gallery)} gallery images"
    assert found["test sets"]["views"] == "given with every test image"
    assert found["optimizer"]["Adam"].startswith("6 epochs of 3 iterations, lr 0.0003 to 3e-05 (MultiStepLR at 2, 30)")
    assert not (tmp_path / "run").exists()


def test_parameters_are_those_of_the_built_model(tiny):
    found = told(tiny)
    model = built(tiny)
    counted = {name: parameters for name, (parameters, _) in numbers(found).items()}
    assert counted["total"] == sum(p.numel() for p in model.parameters())
    assert counted["local_head"] == sum(p.numel() for p in model.local_head.parameters())
    assert counted["total"] == sum(counted.values()) - counted["total"]
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert list(found.values())[-1]["trainable"].split()[0] == f"{learning:,}"


def test_operations_of_a_plain_vit_by_hand(tiny):
    """Two multiply-adds a pixel of a patch and number of a token, and so on; the last block sees one query."""
    sizes = ("MODEL.VIT.WIDTH", "128", "INPUT.SIZE_TEST", "[128, 64]", "INPUT.SIZE_TRAIN", "[128, 64]")
    plain = ("MODEL.META_ARCHITECTURE", "Baseline", "MODEL.BACKBONE.NAME", "build_plain_vit_backbone")
    counted = numbers(told(tiny, *plain, *sizes, "MODEL.BACKBONE.FEAT_DIM", "128"))
    patches, width = 16 * 8, 128
    tokens = patches + 1

    def block(queries: int) -> int:
        attention = queries * width**2 + tokens * 2 * width**2 + 2 * queries * tokens * width + queries * width**2
        return attention + 2 * queries * 4 * width**2

    flops = 2 * (patches * width * 3 * 8 * 8 + block(tokens) + block(1))
    assert counted["backbone"][1] == pytest.approx(flops / 1e9, abs=5e-4)
    assert counted["total"][1] == counted["backbone"][1]


ABLATIONS = [(), ("VAB",), ("ETGM",), ("ETGM", "DLFM"), ("VAB", "ETGM"), ("VAB", "ETGM", "DLFM")]


@pytest.mark.parametrize("without", ABLATIONS, ids=lambda names: "-".join(names) or "whole")
def test_own_losses_are_those_that_training_computes(tiny, without):
    overrides = [word for name in without for word in (f"MODEL.VISA.{name}", "False")]
    model = built(tiny, *overrides).train()
    inputs = {"images": torch.rand(4, 3, 32, 16), "targets": torch.arange(4) // 2, "views": torch.arange(4) % 2}
    with EventStorage():
        computed = set(model(inputs)) & set(OWN_TERMS.values())
    assert {OWN_TERMS[name] for name in told(tiny, *overrides)["losses"] if name in OWN_TERMS} == computed


@pytest.mark.parametrize(
    "path",
    [*ONE_A_PROJECT, *slow(*(path for path in RECIPES if path not in ONE_A_PROJECT))],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_every_recipe_can_be_explained_without_its_data(path, tmp_path):
    found = told(path, *SMALL, "DATASETS.ROOT", str(tmp_path / "no"))
    assert numbers(found)["total"][0] > 0
    assert "which are not there" in found["model"]["heads"]
    cfg = load_config(path)
    assert all("not there" in found["training sets"][name] for name in cfg.DATASETS.NAMES)
    if cfg.MODEL.BACKBONE.PRETRAIN:
        assert found["model"]["pretrained"].endswith("(is not there)")


def test_the_hosts_own_model_and_data(config_file):
    found = told(config_file, *RESNET)
    assert found["model"]["architecture"] == "Baseline (fast-reid)"
    assert found["model"]["backbone"] == "build_resnet_backbone (fast-reid), depth 18x"
    assert found["model"]["heads"] == "EmbeddingHead (fast-reid), 8 classes"
    assert found["losses"]["TripletLoss"] == "weight 1, MARGIN 0.3, NORM_FEAT False, HARD_MINING False"
    assert found["training sets"]["Market1501"].startswith("48 images, 8 identities")
    assert found["test sets"]["Market1501/ALL"] == "16 queries, 32 gallery images"
    assert found["test sets"]["views"] == "not needed at test time"
    assert numbers(found)["heads"][0] == 512 + 512 + 8 * 512  # norm and classifier


def test_transforms_without_a_text_of_their_own_are_named(config_file):
    switches = ("INPUT.AUGMIX.ENABLED", "True", "INPUT.AUTOAUG.ENABLED", "True")
    shown = list(told(config_file, *switches)["training images"].values())
    assert "AutoAugment" in shown[0]
    assert "AugMix" in shown
    assert not any("0x" in text for text in shown)


def test_what_training_would_refuse_is_told(tiny):
    refused = told(tiny, "SOLVER.IMS_PER_BATCH", "32")["training sets"]["refused"]
    assert "takes 8 identities, the training set has 4" in refused


def test_a_weight_file_that_is_there(tiny, tmp_path):
    (tmp_path / "vit.pth").touch()
    pretrain = ("MODEL.BACKBONE.PRETRAIN", "True", "MODEL.BACKBONE.PRETRAIN_PATH", str(tmp_path / "vit.pth"))
    assert told(tiny, *pretrain)["model"]["pretrained"] == f"{tmp_path / 'vit.pth'} (is there)"


@pytest.mark.parametrize("warmup", [0, 2, 3, 7])
@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("schedule", ["MultiStepLR", "CosineAnnealingLR"])
def test_the_last_learning_rate_is_the_hosts(tiny, schedule, delay, warmup):
    overrides = ["SOLVER.SCHED", schedule, "SOLVER.WARMUP_ITERS", str(warmup), "SOLVER.DELAY_EPOCHS", str(delay)]
    cfg = load_config(tiny, [*overrides, "SOLVER.STEPS", "[1, 3, 4]"])
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=cfg.SOLVER.BASE_LR)
    schedules, iteration = build_lr_scheduler(cfg, optimizer, 3), 0
    for epoch in range(cfg.SOLVER.MAX_EPOCH):  # as the host's hook steps them
        for _ in range(3):
            last = optimizer.param_groups[0]["lr"]
            optimizer.step()
            iteration += 1
            if iteration <= warmup:
                schedules["warmup_sched"].step()
        if iteration + 1 > warmup and epoch + 1 > delay:
            schedules["lr_sched"].step()
    text = told(tiny, *overrides, "SOLVER.STEPS", "[1, 3, 4]")["optimizer"]["Adam"]
    assert math.isclose(float(text.split(" to ")[1].split()[0]), last, rel_tol=1e-4)


@pytest.mark.parametrize("warmup", [0, 7])
def test_the_last_learning_rate_of_a_cosine_by_iteration(tiny, warmup):
    by_iteration = ["SOLVER.SCHED", "CosineAnnealingLR", "SOLVER.SCHED_STEP", "iteration"]
    cfg = load_config(tiny, [*by_iteration, "SOLVER.WARMUP_ITERS", str(warmup)])
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=cfg.SOLVER.BASE_LR)
    schedule = cosine_by_iteration(cfg, optimizer, 3)["lr_sched"]
    for _ in range(cfg.SOLVER.MAX_EPOCH * 3 - warmup - 1):
        optimizer.step()
        schedule.step()
    text = told(tiny, *by_iteration, "SOLVER.WARMUP_ITERS", str(warmup))["optimizer"]["Adam"]
    rate, _, kind = text.split(" to ")[1].partition(" ")
    assert math.isclose(float(rate), optimizer.param_groups[0]["lr"], rel_tol=1e-4)
    assert kind.startswith("(CosineAnnealingLR by iteration), ")


def test_rates_and_decays_of_parts(tiny):
    decays = ["SOLVER.WEIGHT_DECAY", "0.02", "SOLVER.WEIGHT_DECAY_NORM", "0.01", "SOLVER.WEIGHT_DECAY_BIAS", "0.005"]
    assert "weight decay 0.02, of norms 0.01, of biases 0.005" in told(tiny, *decays)["optimizer"]["Adam"]
    parts = [*decays, "SOLVER.DECAY_VECTORS", "False", "SOLVER.LR_FACTORS", "[['local_head', 10]]"]
    text = told(tiny, *parts)["optimizer"]["Adam"]
    assert ", 10 times that for local_head, no warm-up, weight decay 0.02, of matrices only" in text


def test_a_warm_up_in_epochs_of_unknown_length(tiny, tmp_path):
    overrides = ["SOLVER.WARMUP_EPOCHS", "2", "DATASETS.ROOT", str(tmp_path / "no")]
    assert "warm-up 2 epochs from" in told(tiny, *overrides)["optimizer"]["Adam"]


def test_a_warm_up_counted_in_epochs(tiny):
    shared = ["SOLVER.STEPS", "[1, 3, 4]"]
    iterations = told(tiny, *shared, "SOLVER.WARMUP_ITERS", "6")["optimizer"]["Adam"]
    epochs = told(tiny, *shared, "SOLVER.WARMUP_EPOCHS", "2", "SOLVER.WARMUP_ITERS", "99")["optimizer"]["Adam"]
    assert "of 3 iterations" in epochs
    assert epochs.replace("warm-up 2 epochs", "warm-up 6 iterations") == iterations


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("SOLVER.WARMUP_EPOCHS", "-1"), ("SOLVER.WARMUP_EPOCHS is -1",)),
        (("MODEL.FOO", 1), ("key MODEL.FOO unknown",)),
        (("MODEL.META_ARCHITECTURE", "Visa"), ("did you mean ViSA",)),
        (("MODEL.LOSSES.NAME", "('Vial',)"), ("MODEL.LOSSES.NAME", "did you mean VIAL")),
        (("TEST.PROTOCOLS", "['A2X']"), ("'A2X' unknown (did you mean A2G?)",)),
        (("TEST.PROTOCOLS", "['A2X']", "DATASETS.ROOT", "/nowhere"), ("'A2X' unknown (did you mean A2G?)",)),
        (("INPUT.PIPELINE", "['PLMR']"), ("INPUT.PIPELINE", "did you mean PLRM")),
        (("MODEL.VISA.TOP_K", 4), ("MODEL.VISA", "top_k=4")),
        (("INPUT.SIZE_TEST", "[64, 32]"), ("64x32", "32x16")),
        (("SOLVER.MAX_EPOCH",), ("has no value",)),
    ],
)
def test_bad_settings_are_one_line(tiny, fastreid_command, overrides, words):
    assert_one_line(fastreid_command("explain", "--config", tiny, *overrides), *words)


def test_a_size_the_host_does_not_know_is_one_line(config_file, fastreid_command):
    outcome = fastreid_command("explain", "--config", config_file, *RESNET, "MODEL.BACKBONE.DEPTH", "19x")
    assert_one_line(outcome, "MODEL.BACKBONE.DEPTH of build_resnet_backbone '19x' unknown (did you mean 18x?)")


def test_the_command_prints_titles_and_rows(tiny, fastreid_command):
    outcome = fastreid_command("explain", "--config", tiny, "MODEL.VIEW", "predicted")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[:2] == ["model:", "  architecture  ViSA (agreid_plugin)"]
    assert "  views        predicted from the image" in lines
    assert outcome.err == ""
