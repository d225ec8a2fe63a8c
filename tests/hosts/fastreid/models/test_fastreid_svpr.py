"""SVPR-ReID in fast-reid: trained, evaluated and asked for attributes by the host's own commands."""

import csv
import json
from pathlib import Path

import pytest
import torch
import yaml
from conftest import assert_one_line, recipes
from fastreid.utils.events import EventStorage
from small_fastreid import built, write_tiny

from agreid_plugin.data.attributes import CP2108_APPEARANCE
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data.batches import to_host
from agreid_plugin.nn.checkpoints import read_checkpoint
from agreid_plugin.types import Batch

RECIPES = recipes("SVPR-ReID")
TINY_CLIP = {
    "WIDTH": 16,
    "LAYERS": 2,
    "HEADS": 2,
    "PATCH_SIZE": 8,
    "TEXT_WIDTH": 16,
    "TEXT_LAYERS": 1,
    "TEXT_HEADS": 2,
    "EMBED_DIM": 16,
    "FREEZE": ["text"],
}
TINY = {
    "MODEL": {
        "META_ARCHITECTURE": "SVPR",
        "BACKBONE": {"NAME": "build_clip_backbone", "STRIDE_SIZE": [8, 8]},
        "CLIP": {**TINY_CLIP, "TEXT_LENGTH": 100},
        "HEADS": {"NAME": "BNNeckHead"},
        "LOSSES": {"NAME": ["CrossEntropyLoss", "TripletLoss"], "TRI": {"MARGIN": 0.0, "HARD_MINING": True}},
    },
    "INPUT": {"SIZE_TRAIN": [32, 16], "SIZE_TEST": [32, 16]},
    "DATASETS": {"NAMES": ["CP2108"], "TESTS": ["CP2108"], "ATTRIBUTES": ["appearance"]},
    "DATALOADER": {"SAMPLER_TRAIN": "ViewBalancedIdentitySampler", "NUM_INSTANCE": 4, "NUM_WORKERS": 0},
    "SOLVER": {"IMS_PER_BATCH": 16, "MAX_EPOCH": 1, "WARMUP_ITERS": 0, "STEPS": [30], "LOG_PERIOD": 1},
    "TEST": {"EVAL_PERIOD": 1, "IMS_PER_BATCH": 16, "PROTOCOLS": ["ALL", "A2G"]},
}
ROWS = "[['bag', ['none', 'backpack']], ['hat', ['no', 'yes', 'unknown']]]"
WITHOUT = ("MODEL.SVPR.VDFE", "False", "MODEL.SVPR.ASMOE", "False", "MODEL.SVPR.CVPR", "False")


@pytest.fixture
def tiny(tmp_path, described) -> Path:
    """A configuration that trains SVPR-ReID on AG-Synth in seconds."""
    return write_tiny(tmp_path, TINY, described)


def host_batch(size=(32, 16), attributes: int = 2, views=(0, 1, 0, 1)) -> dict:
    images = torch.rand(len(views), 3, *size, generator=torch.Generator().manual_seed(0)) * 255
    labels = torch.arange(len(views))
    batch = Batch(images=images, pids=labels // 2, cameras=0 * labels, views=torch.tensor(views))
    return to_host(batch.with_(platforms=torch.tensor(views), attributes=(labels % 2)[:, None].expand(-1, attributes)))


def logged(folder: Path) -> set[str]:
    return {key for line in (folder / "metrics.json").read_text().splitlines() for key in json.loads(line)}


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_builds_a_model_that_takes_a_step(path):
    """At its own settings but for the size of the network and of the images."""
    shape = {key: value for key, value in TINY_CLIP.items() if key not in ("FREEZE", "PATCH_SIZE")}
    small = [str(part) for key, value in shape.items() for part in (f"MODEL.CLIP.{key}", value)]
    small += ["MODEL.BACKBONE.PRETRAIN", "False", "MODEL.BACKBONE.PRETRAIN_PATH", "", "DATASETS.ATTRIBUTES", "[]"]
    model = built(path, *small, "MODEL.SVPR.ATTRIBUTES", ROWS).train()
    with EventStorage():
        losses = model(host_batch(load_config(path).INPUT.SIZE_TRAIN))
    sum(losses.values()).backward()
    assert all(name.startswith("loss_") and torch.isfinite(value) for name, value in losses.items())
    assert ("loss_attributes" in losses) == (path.stem not in ("cargo", "lagper"))
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_trains_evaluates_and_tells_attributes(tiny, tmp_path, fastreid_command, variant):
    run = tmp_path / "run"
    outcome = fastreid_command("train", "--config", tiny, "MODEL.SVPR.VARIANT", variant)
    assert outcome.code == 0, outcome.err
    assert {"loss_attributes", "loss_view", "loss_orthogonal", "loss_view_predictor"} <= logged(run)
    kept = yaml.safe_load((run / "config.yaml").read_text())
    assert tuple(name for name, _ in kept["MODEL"]["SVPR"]["ATTRIBUTES"]) == CP2108_APPEARANCE

    table = tmp_path / "seen.csv"
    options = ["--weights", run / "model_final.pth", "--save-attributes", table, "--output", tmp_path / "eval"]
    outcome = fastreid_command("eval", "--config", run / "config.yaml", *options)
    assert outcome.code == 0, outcome.err
    assert "attributes that are right" in outcome.out
    assert results(tmp_path / "eval") == results(run)
    rows = list(csv.DictReader(table.open()))
    images = {row["image"] for row in rows}
    assert len(rows) == 12 * len(images)
    assert {row["attribute"] for row in rows} == set(CP2108_APPEARANCE)
    assert_one_line(fastreid_command("eval", "--config", run / "config.yaml", *options), "seen.csv exists already")


def test_a_run_is_evaluated_where_its_training_set_is_not(tiny, tmp_path, fastreid_command):
    assert fastreid_command("train", "--config", tiny).code == 0
    options = ["--weights", tmp_path / "run" / "model_final.pth", "--output", tmp_path / "eval"]
    elsewhere = ["DATASETS.NAMES", "('AG_ReID_v2',)", "DATASETS.TESTS", "('CARGO',)", "DATASETS.ATTRIBUTES", "[]"]
    outcome = fastreid_command("eval", "--config", tmp_path / "run" / "config.yaml", *options, *elsewhere)
    assert outcome.code == 0, outcome.err
    assert "CARGO" in results(tmp_path / "eval")


def test_frozen_text_stays_and_is_kept_once(tiny, tmp_path, fastreid_command):
    assert fastreid_command("train", "--config", tiny).code == 0
    first = read_checkpoint(tmp_path / "run" / "model_final.pth")["model"]
    more = ["--resume", "SOLVER.MAX_EPOCH", 2]
    assert fastreid_command("train", "--config", tiny, *more).code == 0
    second = read_checkpoint(tmp_path / "run" / "model_final.pth")["model"]
    text = [name for name in first if ".tower." in name]
    assert len([name for name in text if name.endswith("token_embedding.weight")]) == 1
    assert all(torch.equal(first[name], second[name]) for name in text)
    shapes = [value.shape for name, value in first.items() if name not in text]
    assert first["backbone.text.tower.text.token_embedding.weight"].shape not in shapes
    changed = [name for name in first if not torch.equal(first[name], second[name])]
    for part in ("backbone.text.view_prompts", "backbone.text.attribute_prompts", "backbone.cvpr.scores.query.weight"):
        assert part in changed
    stages = {name.split(".")[2] for name in first if name.startswith("backbone.cvpr.") and "block" in name}
    assert stages == {"block"}  # one for all stages


@pytest.mark.parametrize("names", [["CARGO"], ["AG_ReID_v2"]], ids=["no attributes", "three platforms"])
def test_other_datasets(tiny, tmp_path, fastreid_command, names):
    tests = f"('{names[0]}',)"
    words = ["MODEL.SVPR.VIEW_WORDS.WEARABLE", "wearable"] if names == ["AG_ReID_v2"] else []
    keys = ["DATASETS.NAMES", tests, "DATASETS.TESTS", tests, "DATASETS.ATTRIBUTES", "[]", "TEST.PROTOCOLS", "[]"]
    outcome = fastreid_command("train", "--config", tiny, *keys, *words, "DATALOADER.SAMPLER_TRAIN", "TrainingSampler")
    assert outcome.code == 0, outcome.err
    assert ("loss_attributes" in logged(tmp_path / "run")) == (names != ["CARGO"])


def test_the_own_attributes_of_agsynth(tiny, tmp_path, described, fastreid_command):
    tests = "('csv',)"
    keys = ["DATASETS.NAMES", tests, "DATASETS.TESTS", tests, "DATASETS.ATTRIBUTES", "[]", "TEST.PROTOCOLS", "[]"]
    keys += ["DATASETS.ROOT", described / "AG-Synth", "MODEL.CLIP.TEXT_LENGTH", 160]
    outcome = fastreid_command("train", "--config", tiny, *keys)
    assert outcome.code == 0, outcome.err
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["MODEL"]["SVPR"]["ATTRIBUTES"]
    assert {"umbrella", "hair style", "facing"} <= {name for name, _ in kept}
    assert "loss_attributes" in logged(tmp_path / "run")


def test_views_may_be_predicted(tiny, tmp_path, fastreid_command):
    assert fastreid_command("train", "--config", tiny, "MODEL.VIEW", "predicted").code == 0
    model = built(tmp_path / "run" / "config.yaml").eval()
    model.load_state_dict(read_checkpoint(tmp_path / "run" / "model_final.pth")["model"])
    batch = host_batch()
    flipped = {**batch, "views": 1 - batch["views"]}
    with torch.no_grad():
        assert torch.equal(model(batch), model(flipped))  # nothing of the given view is seen


def test_nothing_of_test_labels_is_seen(tiny):
    model = built(tiny, "MODEL.SVPR.ATTRIBUTES", ROWS, "DATASETS.ATTRIBUTES", "[]").eval()
    batch = host_batch()
    other = {**batch, "attributes": 1 - batch["attributes"], "targets": batch["targets"] + 1}
    with torch.no_grad():
        assert torch.equal(model(batch), model(other))
        assert not torch.equal(model(batch), model({**batch, "views": 1 - batch["views"]}))
        guesses = model.describe(batch)
    assert [guess.name for guess in guesses[0]] == ["bag", "hat"]
    assert all(0 < guess.confidence <= 1 for row in guesses for guess in row)


def test_without_its_modules_it_is_the_baseline(tiny):
    plain = built(tiny, *WITHOUT).eval()
    baseline = built(tiny, "MODEL.META_ARCHITECTURE", "CLIPBaseline").eval()
    baseline.load_state_dict(
        {name.replace("backbone.image.", "image."): value for name, value in plain.state_dict().items()}
    )
    batch = host_batch()
    with torch.no_grad():
        assert torch.allclose(plain(batch), baseline(batch))
    assert plain.backbone.text is None


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["MODEL.BACKBONE.NAME", "build_vdt_backbone", "MODEL.BACKBONE.DEPTH", "tiny"],
            ["does not suit", "SVPR", "build_clip_backbone"],
        ),
        (["MODEL.SVPR.VARIANT", "papr"], ["MODEL.SVPR", "did you mean paper"]),
        (["MODEL.SVPR.SENTENCES", "realeased"], ["MODEL.SVPR", "did you mean released"]),
        (["MODEL.VIEW", "guessed"], ["MODEL.VIEW", "given"]),
        (["MODEL.SVPR.STAGES", "0"], ["MODEL.SVPR", "stages=0"]),
        (["MODEL.SVPR.INJECT_AT", "9"], ["MODEL.SVPR", "inject_at=9", "0 .. 1"]),
        (["MODEL.SVPR.VIEW_WORDS.UAV", "ground"], ["MODEL.SVPR", "words", "'ground'"]),
        (["MODEL.CLIP.TEXT_LENGTH", "40"], ["tokens", "40", "text_length"]),
        (["DATASETS.ATTRIBUTES", "['Uper Color']"], ["DATASETS.ATTRIBUTES", "did you mean Upper Color"]),
        (["MODEL.LOSSES.NAME", "('CrossEntropyLoss', 'AttributeLoss')"], ["built into SVPR", "ATTRIBUTE_WEIGHT"]),
    ],
)
def test_bad_settings_are_one_line(tiny, fastreid_command, overrides, words):
    assert_one_line(fastreid_command("train", "--config", tiny, *overrides), *words)


def test_attributes_of_a_model_without_any(tiny, tmp_path, fastreid_command):
    assert fastreid_command("train", "--config", tiny, *WITHOUT).code == 0
    options = ["--weights", tmp_path / "run" / "model_final.pth", "--save-attributes", tmp_path / "seen.csv"]
    assert_one_line(
        fastreid_command("eval", "--config", tmp_path / "run" / "config.yaml", *options), "no attributes", "ASMoE"
    )
    assert not (tmp_path / "seen.csv").exists()
