"""The host's own models train, evaluate, resume and predict on a CPU, through the command and without it."""

import json
import logging
import math
from pathlib import Path

import pytest
import torch
from conftest import RESNET, SMALL_CONFIG, assert_one_line
from fastreid.engine import DefaultPredictor, DefaultTrainer, default_setup
from small_fastreid import train_once, write_tiny
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agreid_plugin.evaluation import load_results
from agreid_plugin.hosts.fastreid.config.loading import load_config

MAP = "Market1501/ALL/mAP"
VIT = [
    *("MODEL.BACKBONE.NAME", "build_vit_backbone", "MODEL.BACKBONE.DEPTH", "small", "MODEL.BACKBONE.FEAT_DIM", 768),
    *("MODEL.HEADS.POOL_LAYER", "Identity"),
]
PLAIN = ("DATASETS.ROOT", "", "SOLVER.LOG_PERIOD", "20")
"""No key of ours is set with them, so `DefaultTrainer` is the host's."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory, market) -> tuple[Path, str]:
    """The folder of a run of two epochs, which tests only read, and what it printed."""
    config = write_tiny(tmp_path_factory.mktemp("trained"), SMALL_CONFIG, market)
    return config.parent / "run", train_once(config, "TEST.EXPECTED_RESULTS", expected(50.0, within=50.0))


def expected(percent: float, within: float) -> str:
    """What `TEST.EXPECTED_RESULTS` says of the mAP."""
    return str([["Market1501/ALL", "mAP", percent, within]])


def metrics(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.json").read_text().splitlines()]


def losses(folder) -> list[float]:
    return [line["total_loss"] for line in metrics(folder) if "total_loss" in line]


def weights(path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)["model"]


@pytest.mark.parametrize(
    "model", [pytest.param(RESNET, id="resnet"), pytest.param(VIT, id="vit", marks=pytest.mark.slow)]
)
def test_training_through_the_command(fastreid_command, config_file, tmp_path, model):
    run = tmp_path / "run"
    options = ["SOLVER.MAX_EPOCH", 4, "SOLVER.CHECKPOINT_PERIOD", 0, *model]
    outcome = fastreid_command("train", "--config", config_file, "--output", run, *options)
    assert outcome.code == 0, outcome.err
    history = losses(run)
    assert len(history) == 12  # 4 epochs of 48 // 16 iterations
    assert sum(history[-3:]) < 0.9 * sum(history[:3])
    files = {path.name for path in run.iterdir()}
    assert {"config.yaml", "log.txt", "metrics.json", "run_card.json", "model_best.pth", "model_final.pth"} <= files


def test_every_weight_moves(trained):
    run, _ = trained
    first, last = weights(run / "model_0000.pth"), weights(run / "model_final.pth")
    still = {name for name in first if torch.equal(first[name], last[name])}
    assert still == {"heads.bottleneck.0.bias"}  # frozen by the host


def test_progress_lines_tell_loss_accuracy_rate_speed_and_time(trained):
    _, printed = trained
    lines = [line for line in printed.splitlines() if "iteration 6/6" in line]
    assert len(lines) == 1
    for word in ("epoch 2", "total_loss", "loss_cls", "loss_triplet", "accuracy", "lr 3.00e-04", "images/s", "left"):
        assert word in lines[0]


def test_run_card_tells_what_the_run_was_made_of(fastreid_command, config_file, tmp_path):
    run = tmp_path / "run"
    fastreid_command("train", "--config", config_file, "--output", run, "SEED", 11, "SOLVER.MAX_EPOCH", 1)
    card = json.loads((run / "run_card.json").read_text())
    assert card["seed"] == 11
    assert card["versions"]["torch"] == torch.__version__
    assert "optimizer_without_flat_buffer" in card["host_fixes"]
    assert card["config"]["SOLVER"]["MAX_EPOCH"] == 1
    assert card["config"]["MODEL"]["HEADS"]["NUM_CLASSES"] == 8
    assert card["processes"] == 1


def test_tensorboard_holds_losses_and_the_final_evaluation(trained):
    run, _ = trained
    events = EventAccumulator(str(run))
    events.Reload()
    assert len(events.Scalars("total_loss")) == 6
    assert [event.step for event in events.Scalars(MAP)] == [2, 5]


@pytest.mark.parametrize("on_cpu", [False, True])
def test_weights_move_with_mixed_precision(fastreid_command, config_file, tmp_path, on_cpu):
    run = tmp_path / "run"
    amp = ["SOLVER.AMP.ENABLED", True, "SOLVER.AMP.ON_CPU", on_cpu, "SOLVER.MAX_EPOCH", 1]
    outcome = fastreid_command("train", "--config", config_file, "--output", run, *amp)
    assert outcome.code == 0, outcome.err
    assert next(line["changed_weights"] for line in metrics(run) if "changed_weights" in line) > 30
    assert ("mixed precision is off" in outcome.out) == (not on_cpu)


def test_one_seed_one_result(fastreid_command, config_file, tmp_path):
    results = {}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        fastreid_command(
            "train", "--config", config_file, "--output", tmp_path / name, "SEED", seed, "SOLVER.MAX_EPOCH", 1
        )
        results[name] = losses(tmp_path / name)
    assert results["a"] == results["b"] != results["c"]


def test_resume_goes_on_where_the_run_stopped(fastreid_command, config_file, tmp_path):
    run = tmp_path / "run"
    train = ["train", "--config", config_file, "--output", run]
    assert fastreid_command(*train, "SOLVER.MAX_EPOCH", 1).code == 0
    assert_one_line(fastreid_command(*train), "holds a run already", "--resume")
    outcome = fastreid_command(*train, "--resume")
    assert outcome.code == 0, outcome.err
    assert "Starting training from epoch 1" in outcome.out
    assert [line["iteration"] for line in metrics(run) if "total_loss" in line] == [0, 1, 2, 3, 4, 5]
    assert weights(run / "model_final.pth")["heads.weight"].shape == (8, 16)


def test_evaluation_of_a_checkpoint_repeats_the_runs_result(fastreid_command, trained, tmp_path):
    run, _ = trained
    weights = ("--weights", run / "model_final.pth", "--output", tmp_path / "eval")
    outcome = fastreid_command("eval", "--config-file", run.parent / "tiny.yml", *weights)
    assert outcome.code == 0, outcome.err
    assert "loaded" in outcome.out
    first, again = (json.loads((folder / "results.json").read_text()) for folder in (run, tmp_path / "eval"))
    assert again == first
    assert f"{first['Market1501']['ALL']['mAP']:.2f}" in outcome.out


def test_evaluation_options_of_the_host_run(fastreid_command, config_file, tmp_path):
    run = tmp_path / "run"
    options = ["TEST.RERANK.ENABLED", True, "TEST.FLIP.ENABLED", True]
    options += ["TEST.AQE.ENABLED", True, "TEST.METRIC", "euclidean", "SOLVER.MAX_EPOCH", 1]
    assert fastreid_command("train", "--config", config_file, "--output", run, *options).code == 0
    last = [line for line in metrics(run) if MAP in line][-1]
    assert {f"Market1501/ALL/{name}" for name in ("Rank-1", "Rank-5", "Rank-10", "mINP", "queries")} <= set(last)
    (entry,) = load_results(run)["Market1501"].values()
    assert entry.distance == "euclidean, re-ranked (k1 20, k2 6, weight 0.3)"


def test_the_hosts_own_evaluator_runs_with_all_its_options(config_file, market, monkeypatch):
    monkeypatch.setattr("fastreid.data.build._root", str(market))
    options = ["TEST.RERANK.ENABLED", True, "TEST.ROC.ENABLED", True, "TEST.FLIP.ENABLED", True]
    options += ["TEST.AQE.ENABLED", True, "MODEL.DEVICE", "cpu", "MODEL.HEADS.NUM_CLASSES", 8]
    cfg = load_config(config_file, [str(option) for option in (*options, *PLAIN)])
    results = DefaultTrainer.test(cfg, DefaultTrainer.build_model(cfg))
    assert {"Rank-1", "Rank-5", "Rank-10", "mAP", "mINP", "TPR@FPR=1e-02"} <= set(results)
    assert 0 <= results["TPR@FPR=1e-02"] <= 1


@pytest.mark.parametrize(
    "name", ["TrainingSampler", "NaiveIdentitySampler", "BalancedIdentitySampler", "ImbalancedDatasetSampler"]
)
def test_samplers_of_the_host(fastreid_command, config_file, tmp_path, name):
    run = tmp_path / "run"
    options = ["DATALOADER.SAMPLER_TRAIN", name, "SOLVER.MAX_EPOCH", 1]
    assert fastreid_command("train", "--config", config_file, "--output", run, *options).code == 0
    assert len(losses(run)) == 3


def test_two_processes_train_and_evaluate(fastreid_command, config_file, tmp_path):
    run = tmp_path / "run"
    outcome = fastreid_command("train", "--config", config_file, "--output", run, "--num-processes", 2)
    assert outcome.code == 0, outcome.err
    assert json.loads((run / "run_card.json").read_text())["processes"] == 2
    assert len(losses(run)) == 6
    assert len([line for line in metrics(run) if MAP in line]) == 2
    assert "World size: 2" in (run / "log.txt.rank1").read_text()


def test_an_error_in_one_of_two_processes_is_one_line(fastreid_command, config_file, tmp_path):
    broken = tmp_path / "broken.pth"
    broken.write_bytes(b"no checkpoint")
    train = ["train", "--config", config_file, "--output", tmp_path / "run", "--num-processes", 2]
    assert_one_line(fastreid_command(*train, "MODEL.WEIGHTS", broken), str(broken))


def test_the_hosts_stock_trainer_learns_and_its_predictor_predicts(config_file, market, tmp_path, monkeypatch):
    monkeypatch.setattr("fastreid.data.build._root", str(market))
    logging.getLogger("fastreid").handlers.clear()
    cfg = load_config(config_file, ["OUTPUT_DIR", str(tmp_path / "run"), "MODEL.DEVICE", "cpu", *PLAIN])
    default_setup(cfg, None)
    trainer = DefaultTrainer(cfg)
    before = trainer.model.heads.weight.detach().clone()
    results = trainer.train()
    assert not torch.equal(before, trainer.model.heads.weight)
    assert set(results) >= {"Rank-1", "mAP", "mINP"}

    cfg.MODEL.HEADS.NUM_CLASSES = 8
    cfg.MODEL.WEIGHTS = str(tmp_path / "run" / "model_final.pth")
    predictor = DefaultPredictor(cfg)
    image = torch.full((1, 3, 32, 16), 100.0)
    first, second = predictor(image), predictor(image)
    assert first.shape == (1, 16)
    assert torch.equal(first, second)


def test_a_recipe_is_a_teacher(fastreid_command, config_file, trained, tmp_path):
    teacher = ["KD.MODEL_CONFIG", [str(config_file)], "KD.MODEL_WEIGHTS", [str(trained[0] / "model_final.pth")]]
    student = ["MODEL.META_ARCHITECTURE", "Distiller", "MODEL.LOSSES.NAME", "('CrossEntropyLoss', 'FocalLoss')"]
    train = ["train", "--config", config_file, "--output"]
    keys = [*student, *teacher, "SOLVER.MAX_EPOCH", 1]
    outcome = fastreid_command(*train, tmp_path / "run", *keys)
    assert outcome.code == 0, outcome.err
    terms = metrics(tmp_path / "run")[0]
    assert terms["loss_jsdiv"] > 0
    assert terms["loss_focal"] > 0
    outcome = fastreid_command(*train, tmp_path / "others", *keys, "MODEL.HEADS.NUM_CLASSES", 9)
    assert_one_line(outcome, "KD.MODEL_WEIGHTS", "has no heads.weight of the teacher's shape, (9, 16)")


def test_the_mean_of_epochs_is_the_final_model(fastreid_command, config_file, tmp_path):
    run, parts = tmp_path / "run", tmp_path / "parts"
    train, keys = ["train", "--config", config_file, "--output"], ["SOLVER.MAX_EPOCH", 3, "SOLVER.KEEP_CHECKPOINTS", 0]
    assert fastreid_command(*train, parts, *keys).code == 0
    assert fastreid_command(*train, run, *keys, "SOLVER.SWA_EPOCH", 2).code == 0
    assert torch.equal(
        weights(run / "model_0001.pth")["heads.weight"], weights(parts / "model_0001.pth")["heads.weight"]
    )
    second, third = (weights(parts / f"{name}.pth") for name in ("model_0001", "model_final"))
    for name, value in weights(run / "model_final.pth").items():
        if value.is_floating_point():
            torch.testing.assert_close(value, (second[name] + third[name]) / 2)
    for path in (*run.glob("model_final.pth"), *run.glob("model_best.pth")):
        path.unlink()
    (run / "last_checkpoint").write_text("model_0001.pth")
    whole = (run / "results.json").read_text()
    assert fastreid_command(*train, run, "--resume", *keys, "SOLVER.SWA_EPOCH", 2).code == 0
    assert (run / "results.json").read_text() == whole, "a checkpoint keeps the mean so far"


def test_the_guard_names_a_learning_rate_of_zero(fastreid_command, config_file, tmp_path):
    outcome = fastreid_command("train", "--config", config_file, "--output", tmp_path / "run", "SOLVER.BASE_LR", 0)
    assert_one_line(outcome, "changed none of", "the learning rate is 0")


def test_the_guard_waits_for_a_warm_up_from_zero(fastreid_command, config_file, tmp_path):
    run = tmp_path / "run"
    warm_up = ["SOLVER.WARMUP_FACTOR", 0, "SOLVER.WARMUP_ITERS", 2, "SOLVER.MAX_EPOCH", 1]
    assert fastreid_command("train", "--config", config_file, "--output", run, *warm_up).code == 0
    assert [line["iteration"] for line in metrics(run) if "changed_weights" in line] == [1]


def test_a_warm_up_counted_in_epochs(fastreid_command, config_file, tmp_path):
    run, warm_up = tmp_path / "run", ["SOLVER.WARMUP_FACTOR", 0.5, "SOLVER.WARMUP_EPOCHS", 1, "SOLVER.MAX_EPOCH", 2]
    overrides = ["SOLVER.BASE_LR", 0.001, "SOLVER.STEPS", "[30]", "SOLVER.LOG_PERIOD", 1]
    assert fastreid_command("train", "--config", config_file, "--output", run, *warm_up, *overrides).code == 0
    rates = [line["lr"] for line in metrics(run) if "lr" in line]
    half = len(rates) // 2  # as many iterations in both epochs
    assert rates[0] < 0.001
    assert rates[:half] == sorted(rates[:half])
    assert all(math.isclose(rate, 0.001, rel_tol=1e-4) for rate in rates[half:])


def test_expected_results_are_verified(fastreid_command, config_file, tmp_path, trained):
    assert "Results verification passed" in trained[1]
    missed = ["TEST.EXPECTED_RESULTS", expected(-50.0, within=1.0), "SOLVER.MAX_EPOCH", 1]
    with pytest.raises(SystemExit, match="1"):
        fastreid_command("train", "--config", config_file, "--output", tmp_path / "run", *missed)
