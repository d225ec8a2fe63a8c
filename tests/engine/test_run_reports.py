"""Run cards of real runs of both hosts, and `fastreid report` on them."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import yaml
from conftest import assert_one_line
from small_mmengine import CONFIGS

from agreid_plugin.data.protocols import protocols
from agreid_plugin.evaluation import NUMBERS
from agreid_plugin.evaluation.results import read_run_card

pytestmark = pytest.mark.both_hosts

FASTREID = {
    "MODEL": {
        "META_ARCHITECTURE": "VDT",
        "BACKBONE": {"NAME": "build_vdt_backbone", "DEPTH": "tiny", "STRIDE_SIZE": [8, 8], "FEAT_DIM": 16},
        "VIT": {"PATCH_SIZE": 8, "WIDTH": 16, "LAYERS": 2, "HEADS": 2},
        "HEADS": {"NAME": "BNNeckHead"},
    },
    "INPUT": {"SIZE_TRAIN": [32, 16], "SIZE_TEST": [32, 16]},
    "DATALOADER": {"SAMPLER_TRAIN": "ViewBalancedIdentitySampler", "NUM_INSTANCE": 4, "NUM_WORKERS": 0},
    "DATASETS": {"NAMES": ["CARGO"], "TESTS": ["CARGO"]},
    "SOLVER": {"IMS_PER_BATCH": 16, "MAX_EPOCH": 1, "WARMUP_ITERS": 0, "STEPS": [30], "OPT": "SGD", "BASE_LR": 0.05},
    "TEST": {"IMS_PER_BATCH": 16},
}
IMAGES = 48  # to train on, and as many to test with


def of_mmengine(path: Path, root: Path) -> Path:
    """Write the same for mmengine, but with 8 images at a time."""
    images = [{"type": f"agreid_plugin.{name}"} for name in ("ReadImage", "Resize", "Pack")]
    images[1]["size"] = [32, 16]
    people = {"type": "agreid_plugin.ReIDDataset", "name": "CARGO", "data_root": str(root), "pipeline": images}
    loader = {"num_workers": 0, "persistent_workers": False, "collate_fn": {"type": "pseudo_collate"}}
    sampler = {"type": "agreid_plugin.ViewBalancedIdentitySampler", "batch_size": 8, "per_identity": 4}
    in_turn = {"type": "DefaultSampler", "shuffle": False}
    content = {
        "custom_imports": {"imports": ["agreid_plugin"]},
        "default_scope": "agreid_plugin",
        "model": {**CONFIGS["VDT"], "num_ids": 4},
        "train_dataloader": {**loader, "batch_size": 8, "dataset": people, "sampler": sampler},
        "test_dataloader": {**loader, "batch_size": 16, "dataset": {**people, "split": "test"}, "sampler": in_turn},
        "test_evaluator": {"type": "agreid_plugin.MultiProtocolMetric"},
        "test_cfg": {},
        "train_cfg": {"by_epoch": True, "max_epochs": 1},
        "optim_wrapper": {
            "type": "OptimWrapper",
            "optimizer": {"type": "SGD", "lr": 0.05},
            "accumulative_counts": 2,
        },
        "custom_hooks": [{"type": f"agreid_plugin.{name}"} for name in ("RunCard", "LearningGuard")],
        "randomness": {"seed": 5},
    }
    path.write_text(json.dumps(content))
    return path


PAPER = {
    "paper": {"title": "Mine", "venue": "V", "year": 2030},
    "method": "VDT",
    "setting": {"views": "", "input": [32, 16]},
    "tables": [
        {
            "table": "Table 9",
            "columns": [{"printed": "A<->G", "protocol": "CARGO/A2G", "metrics": ["mAP"]}],
            "rows": {"VDT": [55.5], "Other": [44.4]},
            "except": [{"rows": ["Other"], "printed": "A<->G", "protocol": "CARGO/AG-both", "note": "copied"}],
        }
    ],
}


@pytest.fixture
def recipe(tmp_path, agsynth) -> Path:
    """A configuration of fast-reid's in a project of its own."""
    path = tmp_path / "projects" / "Mine" / "small.yml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump({**FASTREID, "DATASETS": {**FASTREID["DATASETS"], "ROOT": str(agsynth)}}))
    return path


@pytest.fixture
def train(fastreid_command, recipe, tmp_path):
    """Train by the recipe into a folder of this name."""

    def run(name: str, *changes: object, code: int = 0) -> Path:
        outcome = fastreid_command("train", "--config", recipe, "--output", tmp_path / name, *changes)
        assert outcome.code == code, outcome.err
        return tmp_path / name

    return run


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def told_of(path: Path) -> dict[str, object]:
    """What a card has of a file."""
    return {"path": str(path), "sha256": digest(path), "bytes": path.stat().st_size}


def test_the_card_of_a_run_its_resume_and_its_evaluation(train, fastreid_command, recipe, tmp_path):
    run = train("run")
    card = read_run_card(run)
    assert (card["host"], card["task"], card["recipe"]) == ("fast-reid", "train", str(recipe))
    assert card["batch"] == {"per_process": 16, "processes": 1, "accumulation": 1, "global": 16}
    assert card["protocols"] == [str(each) for each in protocols("CARGO").values()]
    assert (card["synthetic"], card["weights"]) == (["CARGO"], {})
    assert card["setup"] == {
        "architecture": "VDT",
        "variant": "",
        "input": [32, 16],
        "epochs": 1,
        "optimizer": "SGD",
        "learning_rate": 0.05,
    }
    (session,) = card["sessions"]
    assert (session["outcome"], session["images"]) == ("finished", IMAGES)

    train("run", "--resume", "SOLVER.MAX_EPOCH", 3)
    card = read_run_card(run)
    assert [each["images"] for each in card["sessions"]] == [IMAGES, 2 * IMAGES]
    assert card["sessions"][0] == session
    assert card["setup"]["epochs"] == 3

    weights, features = run / "model_final.pth", tmp_path / "features.npz"
    evaluation = ["eval", "--config", run / "config.yaml", "--protocols", "A2G"]
    assert fastreid_command(*evaluation, "--weights", weights, "--save-features", features).code == 0
    tested = read_run_card(run / "eval")
    assert (tested["task"], tested["recipe"], tested["protocols"]) == ("eval", str(recipe), ["CARGO/A2G"])
    assert tested["datasets"] == card["datasets"]
    assert tested["weights"] == {"evaluated": told_of(weights)}
    assert tested["sessions"][0]["outcome"] == "finished"
    assert 0 < tested["sessions"][0]["images"] < IMAGES  # aerial queries, ground gallery

    again = tmp_path / "again"
    assert fastreid_command(*evaluation, "--features", features, "--output", again).code == 0
    kept = read_run_card(again)
    assert kept["weights"] == {"features": told_of(features)}
    assert (kept["protocols"], kept["datasets"]) == (["CARGO/A2G"], {})


def test_a_run_that_is_stopped_says_by_what(train):
    run = train("run", "SOLVER.BASE_LR", 0.0, code=2)
    (session,) = read_run_card(run)["sessions"]
    assert (session["outcome"], session["ended"] is None) == ("InputError", False)


def test_two_runs_are_compared(train, fastreid_command, tmp_path):
    a = train("a")
    b = train("b", "SEED", 3, "SOLVER.IMS_PER_BATCH", 8, "MODEL.WEIGHTS", a / "model_final.pth")
    outcome = fastreid_command("report", a, b, "--draws", 10)
    assert outcome.code == 0, outcome.err
    numbers, _, told = outcome.out.partition("what the runs differ in\n")
    assert numbers.count("| A a ") == numbers.count("| B b ") == len(protocols("CARGO"))
    assert numbers.count("with p=") == len(NUMBERS) * len(protocols("CARGO"))
    groups = [line.partition(":")[0] for line in told.splitlines() if line and not line.startswith(" ")]
    assert groups == ["weights", "batch", "config", "seed"]
    assert "learning rates are not scaled" in outcome.out
    assert "SOLVER.IMS_PER_BATCH  16" in outcome.out

    outcome = fastreid_command("report", a, b / "results.json", "--json", "--draws", 10)
    everything = json.loads(outcome.out)
    map_of_a, map_of_b = (each["CARGO/A2G"]["mAP"] for each in everything["runs"].values())
    assert everything["b_against_a"]["CARGO/A2G"]["mAP"]["points"] == pytest.approx(map_of_b - map_of_a)
    told = everything["differences"]
    assert told["seed"] == {"seed": {"a": 0, "b": 3}}
    assert told["weights"] == {"initial": {"a": "not recorded", "b": digest(a / "model_final.pth")}}
    assert told["batch"] == {"per_process": {"a": 16, "b": 8}, "global": {"a": 16, "b": 8}}
    assert set(told["config"]) == {"MODEL.WEIGHTS", "SOLVER.IMS_PER_BATCH"}

    copy = shutil.copytree(a, tmp_path / "copy")
    assert "the runs are identical in everything recorded\n" in fastreid_command("report", a, copy).out
    assert json.loads(fastreid_command("report", a, copy, "--json").out)["differences"] == {}
    (copy / "run_card.json").write_text('{"versions": ')
    assert_one_line(fastreid_command("report", a, copy), "run_card.json", "not JSON")
    (copy / "run_card.json").unlink()
    assert "is not known: one of them has no run_card.json" in fastreid_command("report", a, copy).out

    outcome = fastreid_command("report", a, b, copy, "--protocol", "CARGO/A2G")
    rows = [line.split("|")[1].strip() for line in outcome.out.splitlines() if line.startswith("| ")]
    assert rows == ["run", "1 a", "2 b", "3 copy"]
    assert_one_line(fastreid_command("report", a, a), "one run is named twice")


def test_a_run_is_set_beside_the_paper_of_its_recipe_or_of_its_name(train, fastreid_command, recipe):
    run = train("run")
    unlike = "not comparable: CARGO of this run is AG-Synth, which no paper has\n"
    assert fastreid_command("report", run, "--paper").out == unlike
    card = json.loads((run / "run_card.json").read_text())
    (run / "run_card.json").write_text(json.dumps({**card, "synthetic": []}))
    outcome = fastreid_command("report", run, "--paper")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("VDT (CVPR 2024)"), "by the architecture"
    assert "not VDT's setting: images of 32x16 (there 256x128)" in outcome.out

    (recipe.parent / "paper.yml").write_text(yaml.safe_dump(PAPER, sort_keys=False))
    outcome = fastreid_command("report", run, "--paper", "--protocol", "CARGO/A2G")
    lines = outcome.out.splitlines()
    assert lines[0] == "Mine (V 2030): Mine", "beside the recipe"
    assert lines[1].startswith("not comparable, another dataset or copy: CARGO/A2G has ")
    measured = json.loads((run / "results.json").read_text())["CARGO"]["A2G"]["mAP"]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    assert rows[1:] == [
        ["this run", "", f"{measured:.2f}", "", ""],
        ["VDT", "Table 9, A<->G", "55.50", "", ""],
        ["Other", "Table 9, A<->G", "44.40", "CARGO/AG-both", "[1]"],
    ]
    for name in ("visa", str(recipe.parent), str(recipe.parent / "paper.yml")):
        assert fastreid_command("report", run / "results.json", "--paper", name).code == 0
    assert_one_line(fastreid_command("report", run, "--paper", "Visaa"), "did you mean ViSA")
    assert_one_line(fastreid_command("report", run, "--paper", "none.yml"), "none.yml does not exist")
    assert_one_line(
        fastreid_command("report", run, "--paper", "ViSA", "--protocol", "CARGO/A2"), "did you mean CARGO/A2G"
    )
    assert_one_line(fastreid_command("report", run, run, "--paper"), "leave the other runs and --json out")
    (run / "run_card.json").unlink()
    assert_one_line(fastreid_command("report", run, "--paper"), "which paper?", "ViSA")
    assert "Rank-1" in fastreid_command("report", run, "--paper", "VDT").out


def test_a_run_of_mmengine_has_a_card_too_and_compares_with_the_other_host(train, fastreid_command, agsynth, tmp_path):
    config, run = of_mmengine(tmp_path / "tiny.json", agsynth), tmp_path / "mm"
    outcome = fastreid_command("train", "--config", config, "--output", run)
    assert outcome.code == 0, outcome.err
    card = read_run_card(run)
    assert (card["host"], card["task"], card["recipe"], card["seed"]) == ("mmengine", "train", str(config), 5)
    assert card["batch"] == {"per_process": 8, "processes": 1, "accumulation": 2, "global": 16}
    (session,) = card["sessions"]
    assert (session["outcome"], session["images"]) == ("finished", IMAGES)

    weights = run / "epoch_1.pth"
    outcome = fastreid_command("eval", "--config", run / "tiny.json", "--weights", weights)
    assert outcome.code == 0, outcome.err
    tested = read_run_card(run / "eval")
    assert (tested["task"], tested["recipe"], tested["synthetic"]) == ("eval", str(config), ["CARGO"])
    assert tested["weights"]["evaluated"]["sha256"] == digest(weights)
    assert tested["protocols"] == [str(each) for each in protocols("CARGO").values()]
    other = train("fr", "SEED", 5)
    assert "B mm was not evaluated: it has no results\nwhat the runs" in fastreid_command("report", other, run).out
    assert_one_line(fastreid_command("report", run), "has no results.json: evaluate the run by `fastreid eval`")
    told = json.loads(fastreid_command("report", other, run, "--json").out)["differences"]
    assert told["run"] == {"host": {"a": "fast-reid", "b": "mmengine"}}
    assert told["batch"] == {"per_process": {"a": 16, "b": 8}, "accumulation": {"a": 1, "b": 2}}
    assert not {"datasets", "seed", "config", "host_fixes", "setup"} & set(told)


def test_a_run_of_mmengine_that_is_stopped_says_by_what(fastreid_command, agsynth, tmp_path):
    config = of_mmengine(tmp_path / "tiny.json", agsynth)
    lr = ["optim_wrapper.optimizer.lr", 0.0]
    outcome = fastreid_command("train", "--config", config, "--output", tmp_path / "run", *lr)
    assert outcome.code == 2, outcome.out
    (session,) = read_run_card(tmp_path / "run")["sessions"]
    assert (session["outcome"], session["ended"] is None) == ("InputError", False)
