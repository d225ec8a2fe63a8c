"""fast-reid's own `tools/train_net.py` and `DefaultTrainer` with configurations of ours, and with the host's own."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from conftest import ROOT, SMALL_CONFIG, slow
from fastreid.config import get_cfg
from fastreid.data import build_reid_test_loader, build_reid_train_loader
from fastreid.engine import DefaultTrainer, default_argument_parser, default_setup, hooks, launch
from fastreid.evaluation import ReidEvaluator
from small_fastreid import forget_keys
from small_runs import RANDOM, final, same

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import load_results
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data.batches import from_host
from agreid_plugin.hosts.fastreid.engine.default_trainer import ScriptTrainer, find_reason
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer

SCRIPT = """
import agreid_plugin

import sys

sys.path.append(".")

from fastreid.config import get_cfg
from fastreid.engine import DefaultTrainer, default_argument_parser, default_setup, launch
from fastreid.utils.checkpoint import Checkpointer


def setup(args):
    cfg = get_cfg()
    cfg.merge_from_file(args.config_file)
    cfg.merge_from_list(args.opts)
    cfg.freeze()
    default_setup(cfg, args)
    return cfg


def main(args):
    cfg = setup(args)
    if args.eval_only:
        cfg.defrost()
        cfg.MODEL.BACKBONE.PRETRAIN = False
        model = DefaultTrainer.build_model(cfg)
        Checkpointer(model).load(cfg.MODEL.WEIGHTS)
        return DefaultTrainer.test(cfg, model)
    trainer = DefaultTrainer(cfg)
    trainer.resume_or_load(resume=args.resume)
    return trainer.train()


if __name__ == "__main__":
    args = default_argument_parser().parse_args()
    print("Command Line Args:", args)
    launch(
        main,
        args.num_gpus,
        num_machines=args.num_machines,
        machine_rank=args.machine_rank,
        dist_url=args.dist_url,
        args=(args,),
    )
"""
"""fast-reid 1.4.0's tools/train_net.py (Apache-2.0, its comments left out), with our import above it."""

SMALLER = ("DATALOADER.NUM_WORKERS", 0, "SOLVER.IMS_PER_BATCH", 16, "SOLVER.MAX_EPOCH", 1, "SOLVER.WARMUP_ITERS", 0)


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "train_net.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def tiny(tmp_path, agsynth) -> Path:
    """A ViSA whose periods are 0, as in our recipes."""
    path = tmp_path / "tiny.yml"
    solver = {**RANDOM["SOLVER"], "CHECKPOINT_PERIOD": 0, "MAX_EPOCH": 2}
    test = {**RANDOM["TEST"], "EVAL_PERIOD": 0, "PROTOCOLS": []}
    datasets = {**RANDOM["DATASETS"], "ROOT": str(agsynth)}
    content = {**RANDOM, "DATASETS": datasets, "SOLVER": solver, "TEST": test, "OUTPUT_DIR": str(tmp_path / "run")}
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def run_script(script):
    """Run the script's `main` in this process."""

    def run(*arguments: object):
        args = default_argument_parser().parse_args([str(each) for each in arguments])
        return runpy.run_path(str(script))["main"](args)

    yield run
    ScriptTrainer.request = type(ScriptTrainer.request)("")


def start(script: Path, *arguments: object) -> subprocess.CompletedProcess:
    """Run a script with one thread, as `fastreid_command` runs: numbers shall be the same to the last bit."""
    command = [sys.executable, script, *arguments]
    options = {"cwd": script.parent, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    return subprocess.run([str(each) for each in command], capture_output=True, text=True, **options)


def test_the_script_trains_as_the_command_does(script, tiny, fastreid_command, tmp_path):
    made = ("DATASETS.ROOT", tmp_path / "made", "DATASETS.AGSYNTH.IDS", 8, "DATASETS.AGSYNTH.SIZE", "[32, 16]")
    done = start(script, "--config-file", tiny, "--num-gpus", 0, *made, "SEED", 3)
    assert done.returncode == 0, done.stderr
    assert "MODEL.DEVICE is cuda, but there is no GPU: the CPU is used" in done.stdout + done.stderr
    run, other = tmp_path / "run", tmp_path / "other"
    outcome = fastreid_command("train", "--config", tiny, "--output", other, *made, "SEED", 3)
    assert outcome.code == 0, outcome.err
    assert (run / "results.json").read_text() == (other / "results.json").read_text()
    assert len(load_results(run)["CARGO"]) == 7
    assert same(final(run), final(other))
    cards = [json.loads((folder / "run_card.json").read_text()) for folder in (run, other)]
    changed = {key for key in cards[0]["config"] if cards[0]["config"][key] != cards[1]["config"][key]}
    assert changed == {"OUTPUT_DIR"}
    assert {card["recipe"] for card in cards} == {str(tiny)}


@pytest.mark.slow
@pytest.mark.parametrize("project", ["ViSA", "SVPR-ReID", "VIF-AGReID", "TAG-CLIP"])
def test_recipes_give_the_same_numbers(project, script, fastreid_command, tmp_path):
    recipe = ROOT / "projects" / project / "agsynth.yml"
    options = ("DATASETS.ROOT", tmp_path / "made", "DATASETS.AGSYNTH.IDS", 16, "SEED", 5, *SMALLER)
    done = start(script, "--config-file", recipe, *options, "OUTPUT_DIR", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    outcome = fastreid_command("train", "--config", recipe, "--output", tmp_path / "other", *options)
    assert outcome.code == 0, outcome.err
    one, other = ((tmp_path / name / "results.json").read_text() for name in ("run", "other"))
    assert one == other
    weights = ("MODEL.WEIGHTS", tmp_path / "run" / "model_final.pth")
    written = ("--config-file", tmp_path / "run" / "config.yaml")
    done = start(script, *written, "--eval-only", *weights)
    assert done.returncode == 0, done.stderr
    evaluation = ("eval", "--config", tmp_path / "run" / "config.yaml", "--weights", weights[1])
    assert fastreid_command(*evaluation, "OUTPUT_DIR", tmp_path / "other").code == 0
    one, other = ((tmp_path / name / "eval" / "results.json").read_text() for name in ("run", "other"))
    assert one == other


@pytest.mark.slow
def test_two_processes_on_a_cpu(script, tiny, fastreid_command, tmp_path):
    done = start(script, "--config-file", tiny, "--num-gpus", 2)
    assert done.returncode == 0, done.stderr
    other = tmp_path / "other"
    assert fastreid_command("train", "--config", tiny, "--output", other, "--num-processes", 2).code == 0
    assert (tmp_path / "run" / "results.json").read_text() == (other / "results.json").read_text()
    done = start(script, "--config-file", tiny, "--num-gpus", 2, "OUTPUT_DIR", "bad", "INPUT.PIPELINE", "['PLMR']")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: INPUT.PIPELINE 'PLMR' unknown (did you mean PLRM?)")


def test_evaluation_and_resume(run_script, tiny, fastreid_command, tmp_path):
    run_script("--config-file", tiny, "SOLVER.MAX_EPOCH", 1)
    with pytest.raises(InputError, match="holds a run already"):
        run_script("--config-file", tiny)
    run_script("--config-file", tiny, "--resume")
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert fastreid_command("train", "--config", tiny, "--output", whole).code == 0
    assert same(final(run)["model"], final(whole)["model"])

    before, weights = (run / "results.json").read_text(), run / "model_final.pth"
    results = run_script("--config-file", tiny, "--eval-only", "MODEL.WEIGHTS", weights)
    assert (run / "results.json").read_text() == before
    assert "A2G/mAP" in results["CARGO"]
    assert fastreid_command("eval", "--config", tiny, "--weights", weights, "OUTPUT_DIR", whole).code == 0
    assert (run / "eval" / "results.json").read_text() == (whole / "eval" / "results.json").read_text()
    assert json.loads((run / "eval" / "run_card.json").read_text())["task"] == "eval"
    torch.save({"state_dict": {f"method.{name}": value for name, value in final(run)["model"].items()}}, weights)
    with pytest.raises(InputError, match="fits 0 of the model's"):  # as mmengine's, of which the host loads nothing
        run_script("--config-file", tiny, "--eval-only", "MODEL.WEIGHTS", weights)
    with pytest.raises(InputError, match=r"--eval-only: MODEL\.WEIGHTS '' does not exist"):
        run_script("--config-file", tiny, "--eval-only")


def test_a_refusal_is_one_line(run_script, tiny, monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(InputError) as refused:
        launch(run_script, 1, args=("--config-file", tiny, "DATALOADER.SAMPLER_TRAIN", "ViewBalanced"))
    with pytest.raises(SystemExit, match="2"):  # an interpreter takes the exit code of its hook
        sys.excepthook(refused.type, refused.value, refused.tb)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: DATALOADER.SAMPLER_TRAIN 'ViewBalanced' unknown (did you mean ViewBalancedIdent")
    sys.excepthook(KeyError, KeyError("x"), None)
    assert "KeyError" in capsys.readouterr().err


def plain(tmp_path, *overrides: object):
    """A configuration that asks for nothing of ours."""
    cfg = get_cfg()
    content = {
        **SMALL_CONFIG,
        "SOLVER": {**SMALL_CONFIG["SOLVER"], "LOG_PERIOD": 20},
        "OUTPUT_DIR": str(tmp_path / "run"),
    }
    cfg.merge_from_other_cfg(type(cfg)(content))
    cfg.merge_from_list([str(each) for each in ("MODEL.DEVICE", "cpu", "SEED", 1, *overrides)])
    return cfg


def test_a_configuration_of_the_hosts_stays_with_the_host(tmp_path, market, monkeypatch):
    monkeypatch.setattr("fastreid.data.build._root", str(market))
    cfg = plain(tmp_path, "SOLVER.CHECKPOINT_PERIOD", 0, "TEST.EVAL_PERIOD", 0)
    assert not find_reason(cfg)
    default_setup(cfg, None)
    trainer = DefaultTrainer(cfg)
    assert type(trainer) is DefaultTrainer
    assert not {type(hook).__module__ for hook in trainer._hooks} - {hooks.__name__}
    results = trainer.train()
    assert set(results) >= {"Rank-1", "mAP", "mINP"}, "a last evaluation"
    assert {path.name for path in (tmp_path / "run").glob("*.pth")} == {"model_final.pth"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("DATASETS.ROOT", "elsewhere"),
        ("SOLVER.WARMUP_EPOCHS", 1),
        *slow(
            ("INPUT.PIPELINE", ["host"]),
            ("TEST.PROTOCOLS", ["A2G"]),
            ("DATALOADER.SAMPLER_TRAIN", "ViewBalancedIdentitySampler"),
            ("DATASETS.TESTS", ("CARGO_A2G",)),
            ("MODEL.META_ARCHITECTURE", "VIF"),
        ),
    ],
)
def test_what_asks_for_ours(tmp_path, key, value):
    cfg = plain(tmp_path)
    group, name = key.rsplit(".", 1) if "." in key else ("", key)
    (cfg[group] if group else cfg)[name] = value
    assert find_reason(cfg).startswith(key)
    assert not find_reason(cfg.DATASETS)


def test_a_subclass_keeps_what_it_has(tiny):
    steps = []

    class Mine(DefaultTrainer):
        def __init__(self, cfg, more):
            super().__init__(cfg)
            self.more = more

        def run_step(self):
            steps.append(self.iter)
            super().run_step()

        @classmethod
        def build_optimizer(cls, cfg, model):
            optimizer, wrapper = super().build_optimizer(cfg, model)
            optimizer.mine = True
            return optimizer, wrapper

        @classmethod
        def build_evaluator(cls, cfg, dataset_name, output_dir=None):
            loader, number = build_reid_test_loader(cfg, dataset_name=dataset_name)
            return loader, ReidEvaluator(cfg, number, output_dir)

    cfg = load_config(tiny, ["SOLVER.MAX_EPOCH", "1", "MODEL.DEVICE", "cpu"])
    trainer = Mine(cfg, more=1)
    assert isinstance(trainer, Trainer)
    assert (trainer.more, trainer.optimizer.mine, type(trainer).__name__) == (1, True, "Mine")
    assert "Rank-1" in trainer.train(), "the host's evaluator, by the protocol that it can compute"
    assert steps == list(range(6))


def test_what_a_subclass_cannot_have_is_refused(tiny):
    class Tests(DefaultTrainer):
        @classmethod
        def build_test_loader(cls, cfg, dataset_name):
            raise AssertionError

    class Fixed(DefaultTrainer):
        def __init__(self):
            super().__init__(cfg)

    cfg = load_config(tiny, ["MODEL.DEVICE", "cpu"])
    with pytest.raises(InputError, match=r"Tests\.build_test_loader is not asked .* override build_evaluator"):
        Tests(cfg)
    with pytest.raises(InputError, match=r"Fixed: its constructor has to take the configuration, as DATASETS\.ROOT"):
        Fixed()
    with pytest.raises(InputError, match="build_reid_train_loader takes no sampler with "):
        build_reid_train_loader(cfg, sampler=[])


def test_the_hosts_loaders_give_views(tiny):
    cfg = load_config(tiny, ["MODEL.DEVICE", "cpu"])
    assert from_host(next(iter(build_reid_train_loader(cfg)))).views is not None
    loader, queries = build_reid_test_loader(cfg, dataset_name="CARGO_A2G")
    batches = [from_host(batch) for batch in loader]
    assert torch.cat([batch.views for batch in batches])[:queries].unique().tolist() == [0]


def test_class_methods_read_our_keys(tiny):
    cfg = load_config(tiny, ["MODEL.DEVICE", "cpu", "SOLVER.BETAS", "[0.5, 0.6]"])
    optimizer, _ = DefaultTrainer.build_optimizer(cfg, torch.nn.Linear(2, 2))
    assert {group["betas"] for group in optimizer.param_groups} == {(0.5, 0.6)}
    loader, evaluator = DefaultTrainer.build_evaluator(cfg, "CARGO_A2G")
    assert list(evaluator.test_set.protocols) == ["A2G"]
    assert len(loader.dataset) == len(evaluator.test_set.records)


def test_the_hosts_reader_imports_what_a_configuration_names(tmp_path, monkeypatch):
    forget_keys(monkeypatch)
    monkeypatch.setattr(sys, "path", list(sys.path))
    cfg = get_cfg()
    code = "from agreid_plugin.hosts.fastreid.config.loading import Key, declare\n"
    code += 'declare([Key("MODEL.MINE.WIDTH", 3, "A width of my own.")])\n'
    (tmp_path / "my_parts.py").write_text(code)
    path = tmp_path / "mine.yml"
    path.write_text("CUSTOM_IMPORTS: [my_parts.py]\nMODEL: {MINE: {WIDTH: 4}}")
    cfg.merge_from_file(str(path))
    sys.modules.pop("my_parts")
    assert cfg.MODEL.MINE.WIDTH == 4
    assert [str(tmp_path / "my_parts.py")] == cfg.CUSTOM_IMPORTS
