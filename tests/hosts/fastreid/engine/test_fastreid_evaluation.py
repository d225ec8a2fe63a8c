"""Evaluation through the host: one pass, every protocol, one process or two."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SMALL_CONFIG, assert_one_line
from fastreid.data import build_reid_test_loader
from fastreid.engine import DefaultTrainer
from fastreid.evaluation import ReidEvaluator, inference_on_dataset
from small_fastreid import train_once, write_tiny

from agreid_plugin.data.protocols import protocols
from agreid_plugin.evaluation import Calibration
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.engine.evaluator import MultiProtocolEvaluator, test_sets
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer
from agreid_plugin.synth import make_agsynth

test_sets.__test__ = False  # the function's name, not a test's


CONFIG = SMALL_CONFIG | {"DATASETS": {"NAMES": ["CARGO"], "TESTS": ["CARGO"]}}


@pytest.fixture(scope="module")
def cargo(tmp_path_factory) -> Path:
    """A small AG-Synth as CARGO with an odd number of test images, so that two processes get unequal shares."""
    root = tmp_path_factory.mktemp("cargo")
    folder = make_agsynth(root, ids=12, images_per_id=8, size=(32, 16), progress=False)
    min(folder.glob("gallery/*/*.jpg")).unlink()
    return root


@pytest.fixture(scope="module")
def config(tmp_path_factory, cargo) -> Path:
    """A configuration that trains and tests on `cargo`."""
    return write_tiny(tmp_path_factory.mktemp("evaluation"), CONFIG, cargo)


@pytest.fixture(scope="module")
def trained(config) -> tuple[Path, str]:
    """The folder of a run of one epoch, which tests only read, and what it printed."""
    return config.parent / "run", train_once(config, "SOLVER.MAX_EPOCH", 1)


@pytest.fixture
def evaluate(fastreid_command, config, trained, tmp_path):
    """Run `fastreid eval` on the trained weights; returns its outcome and results."""

    def run(*arguments: object, output: str = "eval", overrides: tuple = ()):
        folder = tmp_path / output
        base = ["eval", "--config", config, "--output", folder]
        if "--features" not in arguments:
            base += ["--weights", trained[0] / "model_final.pth"]
        # An option comes last, as --protocols would take overrides for more of its names.
        outcome = fastreid_command(*base, *arguments, "--num-machines", 1, *overrides)
        path = folder / "results.json"
        return outcome, json.loads(path.read_text()) if path.exists() else None

    return run


@pytest.fixture
def weights_alone(trained, tmp_path) -> Path:
    """The trained weights, in a folder of their own."""
    path = tmp_path / "alone" / "model_final.pth"
    path.parent.mkdir()
    path.symlink_to(trained[0] / path.name)
    return path


def configured(config: Path, *overrides: object):
    """Load it for a model that is built without the command."""
    fixed = ("MODEL.DEVICE", "cpu", "MODEL.HEADS.NUM_CLASSES", 8)
    return load_config(config, [str(part) for part in (*fixed, *overrides)])


def test_all_protocols_come_from_one_pass(trained):
    run, printed = trained
    assert printed.count("Start inference") == 1
    results = json.loads((run / "results.json").read_text())
    assert list(results) == ["CARGO"]
    assert list(results["CARGO"]) == list(protocols("CARGO"))
    for entry in results["CARGO"].values():
        assert {"Rank-1", "Rank-5", "Rank-10", "mAP", "mINP", "queries", "skipped_queries", "gallery"} <= set(entry)
    for protocol in protocols("CARGO").values():
        assert f"| {protocol} " in printed
        assert protocol.source in printed


def test_every_number_reaches_metrics_json_under_its_full_name(trained):
    lines = [json.loads(line) for line in (trained[0] / "metrics.json").read_text().splitlines()]
    results = json.loads((trained[0] / "results.json").read_text())["CARGO"]
    (line,) = [line for line in lines if "CARGO/A2G/mAP" in line]
    assert line["CARGO/A2G/mAP"] == pytest.approx(results["A2G"]["mAP"])
    assert line["CARGO/AG-both/Rank-1"] == pytest.approx(results["AG-both"]["Rank-1"])
    assert line["metric"] == pytest.approx((results["ALL"]["mAP"] + results["ALL"]["Rank-1"]) / 2)


def test_several_names_of_one_dataset_share_a_pass(evaluate):
    outcome, results = evaluate(overrides=("DATASETS.TESTS", "('CARGO_A2G', 'CARGO_ALL')"))
    assert outcome.out.count("Start inference") == 1
    assert list(results["CARGO"]) == ["A2G", "ALL"]


def test_ours_and_the_hosts_datasets_together(evaluate, cargo, market, tmp_path):
    both = tmp_path / "both"
    both.mkdir()
    for folder in (*cargo.iterdir(), *market.iterdir()):
        (both / folder.name).symlink_to(folder)
    _, results = evaluate(overrides=("DATASETS.ROOT", both, "DATASETS.TESTS", "('Market1501', 'CARGO_A2G')"))
    assert {name: list(entries) for name, entries in results.items()} == {"Market1501": ["ALL"], "CARGO": ["A2G"]}


def test_two_processes_give_the_numbers_of_one(evaluate):
    # 16 images a batch in each process both times
    _, one = evaluate(output="one", overrides=("TEST.IMS_PER_BATCH", 16))
    _, two = evaluate("--num-processes", 2, output="two", overrides=("TEST.IMS_PER_BATCH", 32))
    assert one["CARGO"]["ALL"]["gallery"] % 2 == 1
    assert two == one


@pytest.mark.parametrize("name", ["CARGO_ALL", "CARGO_A2G", "CARGO_G2A", "CARGO_AG_both", "Market1501"])
def test_equals_the_hosts_evaluator_where_its_rule_applies(config, cargo, market, tmp_path, name):
    root = market if name == "Market1501" else cargo
    cfg = configured(config, "DATASETS.ROOT", root, "DATASETS.TESTS", f"('{name}',)", "OUTPUT_DIR", tmp_path)
    torch.manual_seed(0)
    model = DefaultTrainer.build_model(cfg)
    loader, queries = build_reid_test_loader(cfg, dataset_name=name)
    stock = inference_on_dataset(model, loader, ReidEvaluator(cfg, queries))
    (ours,) = [numbers for key, numbers in Trainer.test(cfg, model).items() if key != "metric"]
    protocol = {name.partition("/")[0] for name in ours}.pop()
    for number in ("Rank-1", "Rank-5", "Rank-10", "mAP", "mINP"):
        assert ours[f"{protocol}/{number}"] == pytest.approx(stock[number], abs=1e-3)


def test_the_evaluator_serves_the_hosts_stock_test_loop(config):
    class Mine(DefaultTrainer):
        @classmethod
        def build_evaluator(cls, cfg, dataset_name, output_dir=None):
            (test_set,) = test_sets(cfg)
            return Trainer.build_evaluator(cfg, test_set)

    cfg = configured(config, "TEST.PROTOCOLS", "['A2G']")
    model = Mine.build_model(cfg)
    assert Mine.test(cfg, model) == Trainer.run_test_sets(cfg, model)["CARGO"].numbers


def test_true_positive_rates_when_asked_for(config):
    cfg = configured(config, "TEST.ROC.ENABLED", True, "TEST.PROTOCOLS", "['ALL']")
    evaluators = Trainer.run_test_sets(cfg, Trainer.build_model(cfg))
    rates = {name: value for name, value in evaluators["CARGO"].numbers.items() if "TPR@FPR" in name}
    assert "ALL/ground->aerial TPR@FPR=0.01" in rates
    assert all(0 <= value <= 100 for value in rates.values())


def test_flip_test_is_the_mean_of_an_image_and_its_mirror(config):
    cfg = configured(config)
    model = Trainer.build_model(cfg).eval()
    (test_set,) = test_sets(cfg)
    loader, evaluator = Trainer.build_evaluator(cfg, test_set)
    inference_on_dataset(model, loader, evaluator, flip_test=True)
    batch = next(iter(loader))
    with torch.no_grad():
        mirrored = {**batch, "images": batch["images"].flip(3)}
        expected = (model(batch) + model(mirrored)) / 2
    rows = [evaluator.evaluation.features._places[path] for path in batch["img_paths"]]
    np.testing.assert_allclose(evaluator.evaluation.features.images[0][rows], expected.numpy(), rtol=1e-4, atol=1e-5)


def test_features_are_kept_and_evaluated_without_the_network(evaluate, tmp_path):
    _, direct = evaluate("--protocols", "A2G", "AG-cross", "--save-features", tmp_path / "feats.npz")
    # all protocols were extracted for, so another can be computed later
    outcome, again = evaluate("--features", tmp_path / "feats.npz", "--protocols", "A2G", output="again")
    assert outcome.code == 0, outcome.err
    assert again["CARGO"]["A2G"] == direct["CARGO"]["A2G"]
    assert "Start inference" not in outcome.out
    outcome, reranked = evaluate(
        "--features", tmp_path / "feats.npz", "--protocols", "A2G", "--rerank", output="rerank"
    )
    assert "re-ranked" in reranked["CARGO"]["A2G"]["distance"]


def test_features_of_one_protocol_are_never_told_as_another(evaluate, tmp_path):
    only = ("DATASETS.TESTS", "('CARGO_A2G',)")
    _, direct = evaluate("--save-features", tmp_path / "feats.npz", overrides=only)
    outcome, again = evaluate("--features", tmp_path / "feats.npz", output="again")
    assert again == direct  # A2G, and nothing else under another name
    assert "features were not extracted for them: A2A, AG-both, AG-cross, ALL, G2A, G2G" in outcome.out
    outcome, _ = evaluate("--features", tmp_path / "feats.npz", "--protocols", "ALL", output="all")
    assert_one_line(outcome, "images have no feature")


def test_thresholds_of_the_one_protocol_that_was_asked_for(evaluate, weights_alone):
    only = ("DATASETS.TESTS", "('CARGO_G2A',)")
    outcome, _ = evaluate("--calibrate", "--weights", weights_alone, overrides=only)
    assert outcome.code == 0, outcome.err
    names = {path.name for path in weights_alone.parent.iterdir()}
    assert names == {"model_final.pth", "calibration_CARGO_G2A.json"}


@pytest.mark.parametrize(
    ("path", "overrides", "words"),
    [
        ("kept.npz", [], "exists already"),
        ("nowhere/feats.npz", [], "its folder does not exist"),
        ("feats.npz", ["DATASETS.TESTS", "('CARGO', 'Market1501')"], "keeps one dataset's features"),
    ],
)
def test_features_that_cannot_be_kept_are_refused_before_inference(evaluate, tmp_path, path, overrides, words):
    (tmp_path / "kept.npz").touch()
    outcome, _ = evaluate("--save-features", tmp_path / path, overrides=tuple(overrides))
    assert_one_line(outcome, words)


def test_evaluation_leaves_the_runs_own_files_alone(fastreid_command, trained):
    run, _ = trained
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    outcome = fastreid_command("eval", "--config", run / "config.yaml", "--weights", run / "model_final.pth")
    assert outcome.code == 0, outcome.err
    assert (run / "eval" / "results.json").exists()
    assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_bootstrap_prints_intervals(evaluate):
    outcome, results = evaluate("--protocols", "A2G", "--bootstrap", 200)
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("| CARGO/A2G") and "[" in line]
    assert f"{results['CARGO']['A2G']['mAP']:.2f}" in outcome.out
    assert "95 % confidence" in outcome.out
    assert line.count("[") == 6  # Rank-1, 5, 10, 20, mAP, mINP


def test_thresholds_are_saved_beside_the_checkpoint(evaluate, weights_alone):
    outcome, _ = evaluate("--protocols", "ALL", "--calibrate", "--weights", weights_alone)
    assert outcome.code == 0, outcome.err
    calibration = Calibration.load(weights_alone.parent / "calibration_CARGO_ALL.json")
    assert "ground->aerial" in calibration.directions


def test_best_model_is_chosen_by_a_named_number(fastreid_command, config, tmp_path):
    run = tmp_path / "run"
    best = ["TEST.BEST_METRIC", "CARGO/G2A/Rank-5", "SOLVER.MAX_EPOCH", 1]
    assert fastreid_command("train", "--config", config, "--output", run, *best).code == 0
    metric = torch.load(run / "model_final.pth", weights_only=True)["metric"]
    assert metric == pytest.approx(json.loads((run / "results.json").read_text())["CARGO"]["G2A"]["Rank-5"])
    other = ("--output", tmp_path / "b", "TEST.BEST_METRIC", "CARGO/A2G/map")
    outcome = fastreid_command("train", "--config", config, *other)
    assert_one_line(outcome, "TEST.BEST_METRIC 'CARGO/A2G/map' unknown (did you mean CARGO/A2G/mAP?)")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["TEST.PROTOCOLS", "['A2H']"], ["CARGO protocol 'A2H' unknown", "A2G"]),
        (["TEST.PROTOCOLS", "['AG']"], ["names three tasks", "AG-both", "AG-cross"]),
        (["DATASETS.TESTS", "('TAG_PEDES',)"], ["TAG-PEDES"]),
    ],
)
def test_protocols_that_cannot_be_computed(fastreid_command, config, tmp_path, overrides, words):
    outcome = fastreid_command("train", "--config", config, "--output", tmp_path / "run", *overrides)
    assert_one_line(outcome, *words)


def test_features_that_are_no_numbers_are_named(config):
    cfg = load_config(config)
    (test_set,) = test_sets(cfg)
    evaluator = MultiProtocolEvaluator(cfg, test_set)
    paths = [record.path for record in test_set.records]
    features = torch.ones(len(paths), 4)
    features[3, 1] = float("nan")
    evaluator.process({"img_paths": paths}, features)
    with pytest.raises(ValueError, match="1 of 47 image features have NaN") as error:
        evaluator.evaluate()
    assert paths[3] in str(error.value)


def test_report_compares_two_runs_and_refuses_other_protocols(evaluate, fastreid_command, tmp_path):
    evaluate("--protocols", "A2G", output="a")
    evaluate("--protocols", "A2G", "--rerank", output="b")
    evaluate("--protocols", "G2A", output="c")
    outcome = fastreid_command("report", tmp_path / "a", tmp_path / "b" / "results.json")
    assert outcome.code == 0, outcome.err
    assert "CARGO/A2G (SeCap and ViSA" in outcome.out
    assert "with p=" in outcome.out or "no difference shown" in outcome.out
    assert_one_line(fastreid_command("report", tmp_path / "a", tmp_path / "c"), "no protocol in common", "CARGO/G2A")
    assert_one_line(fastreid_command("report", tmp_path / "a", tmp_path / "nowhere"), "nowhere")


def test_report_shows_the_results_of_one_run_in_80_columns(evaluate, fastreid_command, tmp_path):
    evaluate(output="run")
    outcome = fastreid_command("report", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    head, *rows = map(str.split, outcome.out.splitlines())
    assert head == ["protocol", "Rank-1", "Rank-5", "Rank-10", "mAP", "mINP", "queries"]
    saved = json.loads((tmp_path / "run" / "results.json").read_text())["CARGO"]
    assert rows == [
        [f"CARGO/{name}", *(f"{each[key]:.2f}" for key in head[1:6]), str(each["queries"])]
        for name, each in saved.items()
    ]
    assert len(fastreid_command("report", tmp_path / "run", "--protocol", "CARGO/A2G").out.splitlines()) == 2
