"""The learning guard in fast-reid's trainer: losses that are not finite, features that collapse, idle experts."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from conftest import assert_one_line
from poison import Poison
from processes import in_processes
from small_fastreid import train_in_group

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data import transforms
from agreid_plugin.hosts.fastreid.engine.hooks import ExpertUsage, LearningGuard
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer
from agreid_plugin.hosts.fastreid.models.losses import LOSSES, LossEntry
from agreid_plugin.losses import FeatureLoss
from agreid_plugin.types import View

CONFIG = {
    "MODEL": {
        "META_ARCHITECTURE": "ViSA",
        "DEVICE": "cpu",
        "BACKBONE": {"NAME": "build_visa_backbone", "DEPTH": "tiny", "STRIDE_SIZE": [8, 8], "FEAT_DIM": 16},
        "VIT": {"PATCH_SIZE": 8, "WIDTH": 16, "LAYERS": 2, "HEADS": 2},
        "HEADS": {"NAME": "BNNeckHead"},
        "LOSSES": {"NAME": ["CrossEntropyLoss", "TripletLoss", "Poison"]},
        "VISA": {"EXPERTS": 3, "TOKENS": 2, "NEIGHBORS": 3},
    },
    "INPUT": {"SIZE_TRAIN": [32, 16], "SIZE_TEST": [32, 16], "FLIP": {"ENABLED": True}},
    "DATASETS": {"NAMES": ["CARGO"], "TESTS": ["CARGO_A2G"]},
    "DATALOADER": {"SAMPLER_TRAIN": "ViewBalancedIdentitySampler", "NUM_INSTANCE": 4, "NUM_WORKERS": 0},
    "SOLVER": {"IMS_PER_BATCH": 8, "MAX_EPOCH": 1, "WARMUP_ITERS": 0, "STEPS": [30], "BASE_LR": 1e-3, "LOG_PERIOD": 1},
    "TEST": {"EVAL_PERIOD": 0, "IMS_PER_BATCH": 16},
}


@pytest.fixture
def poison(monkeypatch):
    """Register the loss `Poison`, which ViSA calls twice a step; call it to say when and where it strikes."""

    def strikes(step: int, **options) -> None:
        monkeypatch.setitem(
            LOSSES, "Poison", LossEntry("poison", "CE", lambda _: FeatureLoss(Poison(2 * step - 1, **options)))
        )

    return strikes


@pytest.fixture
def config(tmp_path, agsynth) -> Path:
    path = tmp_path / "visa.yml"
    path.write_text(yaml.safe_dump({**CONFIG, "DATASETS": {**CONFIG["DATASETS"], "ROOT": str(agsynth)}}))
    return path


def test_a_loss_that_is_nan_stops_the_run(fastreid_command, config, tmp_path, poison):
    poison(3)
    outcome = fastreid_command("train", "--config", config, "--output", tmp_path / "run")
    assert_one_line(
        outcome,
        "iteration 3: loss_poison_id is nan (loss_cls_id ",
        "8 images, all finite; weights finite; ",
        "gradients not finite, first ",
        "lower the learning rate",
    )


def test_an_infinite_loss_is_no_better_and_the_guard_may_be_off(fastreid_command, config, tmp_path, poison):
    poison(2, value=float("inf"))
    command = ["train", "--config", config, "--output", tmp_path / "run", "SOLVER.LEARNING_GUARD", False]
    outcome = fastreid_command(*command)
    assert_one_line(outcome, "iteration 2: loss_poison_id is inf (loss_cls_id ")


def test_images_that_are_not_finite_are_named(fastreid_command, config, tmp_path, poison, monkeypatch):
    poison(0)
    spoilt = []

    class Spoil:
        def __call__(self, image: torch.Tensor) -> torch.Tensor:
            spoilt.append(len(spoilt))
            return image * float("nan") if len(spoilt) == 6 else image  # one is taken to try the pipeline

    monkeypatch.setitem(transforms.TRANSFORMS, "Spoil", lambda _: [Spoil()])
    pipeline = ["INPUT.PIPELINE", "['host', 'Spoil']"]
    outcome = fastreid_command("train", "--config", config, "--output", tmp_path / "run", *pipeline)
    assert_one_line(outcome, "iteration 1: loss_", "8 images, 1 of them not finite, first ", "; weights finite")
    assert Path(outcome.err.partition("not finite, first ")[2].partition(";")[0]).is_file()


def test_all_processes_stop_with_one_message_where_one_has_a_bad_loss(config, tmp_path, poison):
    poison(2, process=1)
    run = tmp_path / "run"
    run.mkdir()
    cfg = load_config(config, ["OUTPUT_DIR", str(run)])
    told = in_processes(2, lambda: train_in_group(cfg))
    assert told[0] == told[1]
    assert told[0].startswith("NonFiniteLossError: iteration 2: loss_poison_id is nan (")
    assert " in process 1; 4 images, all finite; weights finite; " in told[0]


def collapsed(cfg) -> Trainer:
    """A trainer whose model gives every image the same feature, though it goes on learning."""
    trainer = Trainer(cfg)
    method = trainer.model
    embed = method.embed
    method.embed = lambda outputs: torch.ones_like(embed(outputs)) + 1e-6 * embed(outputs)
    return trainer


def test_features_that_are_alike_twice_stop_the_run(config, tmp_path, poison):
    poison(0)
    options = ["OUTPUT_DIR", str(tmp_path), "SOLVER.MAX_EPOCH", "4"]
    trainer = collapsed(load_config(config, options))
    with pytest.raises(InputError, match=r"features of 8 different images are all alike .* has collapsed"):
        trainer.train()
    assert trainer.epoch == 1  # the second epoch
    trainer = collapsed(load_config(config, [*options, "SOLVER.WARMUP_ITERS", "7"]))
    with pytest.raises(InputError, match="has collapsed"):
        trainer.train()
    assert trainer.epoch == 2  # the first one is warm-up


def test_alike_features_of_a_test_are_warned_of(config, tmp_path, poison, caplog):
    poison(0)
    collapsed(load_config(config, ["OUTPUT_DIR", str(tmp_path)])).train()
    assert "CARGO: the features of 20 different images are all alike" in caplog.text


@pytest.mark.parametrize("guarded", [True, False])
def test_experts_are_counted_with_and_without_the_guard(config, tmp_path, poison, guarded):
    poison(0)
    trainer = Trainer(load_config(config, ["OUTPUT_DIR", str(tmp_path), "SOLVER.LEARNING_GUARD", str(guarded)]))
    found = [type(hook) for hook in trainer._hooks if isinstance(hook, LearningGuard | ExpertUsage)]
    assert found == ([LearningGuard, ExpertUsage] if guarded else [ExpertUsage])


def test_an_expert_that_is_never_chosen_is_warned_of(config, tmp_path, poison, caplog):
    poison(0)
    trainer = Trainer(load_config(config, ["OUTPUT_DIR", str(tmp_path)]))
    with torch.no_grad():
        trainer.model.backbone.queries.view_router.bias[View.AERIAL, 2] = -1e3
    trainer.train()
    (warning,) = [record.getMessage() for record in caplog.records if "never chosen" in record.getMessage()]
    router = "backbone.queries.view_router"
    assert warning.startswith("epoch 1: backbone.queries.")
    assert "MODEL.VISA.ROUTING centered" in warning
    shares = json.loads((tmp_path / "metrics.json").read_text().splitlines()[-1])
    assert shares[f"experts/{router}/aerial/2"] == 0.0
