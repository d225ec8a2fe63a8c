"""`fastreid train` and `fastreid eval` with configurations of mmengine's, in one process and in two."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from conftest import assert_one_line

from agreid_plugin.engine.checks import MARKER
from agreid_plugin.engine.run import Request
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import load_features
from agreid_plugin.hosts.mmengine import host
from agreid_plugin.hosts.mmengine.config.loading import load_config
from agreid_plugin.hosts.mmengine.engine.metrics import MultiProtocolMetric

AVERAGED = 'custom_hooks.append(dict(type="EMAHook", momentum=0.5))\n'
THE_SAME_IN_FASTREID = {
    "MODEL": {
        "META_ARCHITECTURE": "VDT",
        "BACKBONE": {"NAME": "build_vdt_backbone", "DEPTH": "tiny", "STRIDE_SIZE": [8, 8], "FEAT_DIM": 16},
        "VIT": {"PATCH_SIZE": 8, "WIDTH": 16, "LAYERS": 2, "HEADS": 2},
        "HEADS": {"NAME": "BNNeckHead", "NUM_CLASSES": 4},
        "PIXEL_MEAN": [127.5] * 3,
        "PIXEL_STD": [127.5] * 3,
    },
    "INPUT": {"SIZE_TRAIN": [32, 16], "SIZE_TEST": [32, 16]},
    "DATALOADER": {"SAMPLER_TRAIN": "ViewBalancedIdentitySampler", "NUM_WORKERS": 0},
    "SOLVER": {"IMS_PER_BATCH": 8, "MAX_EPOCH": 1, "WARMUP_ITERS": 0, "STEPS": [30], "CHECKPOINT_PERIOD": 1},
    "TEST": {"IMS_PER_BATCH": 16},
}
ITERATIONS = 6  # 48 training images in batches of 8


def precisions(folder: Path) -> dict[str, float]:
    """The mAP of every protocol of a run."""
    return {name: entry["mAP"] for name, entry in json.loads((folder / "results.json").read_text())["CARGO"].items()}


def test_a_run_goes_on_with_its_own_model_and_optimizer_alone(fastreid_command, tiny_py, tmp_path):
    train = ["train", "--config", tiny_py, "--output", tmp_path / "run"]
    assert fastreid_command(*train).code == 0
    for key, value, told in (
        ("model.backbone.vit.depth", 3, "another model (missing keys in source state_dict: "),
        ("model.backbone.vit.width", 32, "another model (size mismatch for "),
        ("optim_wrapper.optimizer.type", "AdamW", "another optimizer (it has no betas)"),
        ("optim_wrapper.paramwise_cfg", "{'bias_lr_mult': 2.0}", "another optimizer (loaded state dict has a "),
    ):
        outcome = fastreid_command(*train, "--resume", "train_cfg.max_epochs", 2, key, value)
        assert outcome.code == 2, outcome
        assert f"error: the checkpoint to resume from is of {told}" in outcome.err.splitlines()[-1]
        assert "Traceback" not in outcome.err


@pytest.mark.parametrize("content", [{"state_dict": {}}, {"state_dict": {"conv.weight": torch.ones(2)}}, {"model": {}}])
def test_weights_that_fit_nothing_are_refused(fastreid_command, tiny_py, tmp_path, content):
    torch.save({**content, "meta": {}}, tmp_path / "other.pth")
    argv = ["train", "--config", tiny_py, "--output", tmp_path / "run", "load_from", tmp_path / "other.pth"]
    outcome = fastreid_command(*argv)
    assert outcome.code == 2, outcome
    assert outcome.err.splitlines()[-1].startswith("fastreid: error: load_from fits 0 of the model's ")
    assert "Traceback" not in outcome.err


def test_train_resume_and_evaluate(fastreid_command, tiny_py, tmp_path):
    folder = tmp_path / "run"
    train = ["train", "--config", tiny_py, "--output", folder]
    outcome = fastreid_command(*train, "optim_wrapper.optimizer.lr", "0.01")
    assert outcome.code == 0, outcome.err
    assert "lr: 1.0000e-02" in outcome.out
    assert "DEBUG" not in outcome.out
    assert "System environment" not in outcome.out  # in the log file alone
    assert json.loads((folder / "run_card.json").read_text())["host_fixes"]["safe_checkpoints"]

    assert_one_line(fastreid_command(*train), f"{folder} holds a run already: continue it with --resume")
    outcome = fastreid_command(*train, "--resume", "train_cfg.max_epochs", 2)
    assert outcome.code == 0, outcome.err
    assert "resumed epoch: 1, iter: 6" in outcome.out
    assert (folder / "epoch_2.pth").exists()

    features = tmp_path / "features.npz"
    outcome = fastreid_command(
        *["eval", "--config", folder / "tiny.py", "--weights", folder / "epoch_2.pth", "--save-features", features],
        *["--protocols", "A2G", "ALL", "--bootstrap", 10],
    )
    assert outcome.code == 0, outcome.err
    assert "loaded 43 of 43 tensors" in outcome.out
    assert outcome.out.count("| CARGO/A2G") == 2  # numbers, and their confidence
    assert "CARGO/G2A" not in outcome.out
    first = precisions(folder / "eval")
    assert set(first) == {"A2G", "ALL"}
    assert len(load_features(features).records) == 48

    outcome = fastreid_command("eval", "--config", tiny_py, "--features", features, "--output", tmp_path / "again")
    assert outcome.code == 0, outcome.err
    again = precisions(tmp_path / "again")
    assert {name: again[name] for name in first} == pytest.approx(first)

    reranked = ["eval", "--config", tiny_py, "--features", features, "--rerank", "--protocols", "ALL"]
    outcome = fastreid_command(*reranked, "--output", tmp_path / "reranked")
    assert outcome.code == 0, outcome.err
    assert "re-ranked" in outcome.out


def test_a_file_may_ask_to_resume_as_mmengines_do(fastreid_command, tiny_py, tmp_path):
    """The folder's own run, else the checkpoint that `load_from` names; neither is passed over in silence."""
    first, second = tmp_path / "first", tmp_path / "second"
    assert fastreid_command("train", "--config", tiny_py, "--output", first).code == 0
    tiny_py.write_text(tiny_py.read_text() + f"resume = True\nload_from = {str(first / 'epoch_1.pth')!r}\n")
    for folder, epochs in ((first, 2), (second, 2), (second, 3)):
        train = ["train", "--config", tiny_py, "--output", folder, "train_cfg.max_epochs", epochs]
        outcome = fastreid_command(*train)
        assert outcome.code == 0, outcome.err
        assert f"resumed epoch: {epochs - 1}, iter: {(epochs - 1) * ITERATIONS}" in outcome.out


def test_a_validation_tells_its_numbers_alone(fastreid_command, tiny_py, tmp_path):
    tests = ("dataloader", "cfg", "evaluator")
    tiny_py.write_text(tiny_py.read_text() + "".join(f"val_{part} = test_{part}\n" for part in tests))
    outcome = fastreid_command("train", "--config", tiny_py, "--output", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert "CARGO/A2G/mAP: " in outcome.out
    assert "validated" not in outcome.out  # a record of the loop's, which mmengine took for a number


def test_averaged_weights_and_accumulated_gradients(fastreid_command, tiny_py, tmp_path):
    tiny_py.write_text(tiny_py.read_text() + AVERAGED)
    outcome = fastreid_command(
        *["train", "--config", tiny_py, "--output", tmp_path / "run"],
        *["optim_wrapper.optimizer.type", "AdamW", "optim_wrapper.accumulative_counts", 2],
    )
    assert outcome.code == 0, outcome.err
    kept = torch.load(tmp_path / "run" / "epoch_1.pth", weights_only=False)
    assert {state["step"].item() for state in kept["optimizer"]["state"].values()} == {ITERATIONS / 2}
    name = next(key for key in kept["state_dict"] if key.endswith("proj.weight"))
    assert not torch.equal(kept["ema_state_dict"][f"module.{name}"], kept["state_dict"][name])
    evaluate = ["eval", "--config", tiny_py, "--weights", tmp_path / "run" / "epoch_1.pth"]
    outcome = fastreid_command(*evaluate, "--output", tmp_path / "eval")
    assert outcome.code == 0, outcome.err
    assert "loaded 43 of 43 tensors" in outcome.out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["modle.type", "x"], ["command line: key modle.type unknown (did you mean model?)"]),
        (["model.type"], ["'model.type' has no value"]),
        (["train_cfg.max_epochs=60"], ["write 'train_cfg.max_epochs 60' instead"]),
        (["train_cfg.max_epochs=60", "optim_wrapper.optimizer.lr=1e-3"], ["write 'train_cfg.max_epochs 60' instead"]),
        (["epoch_1.pth"], ["continues the run in work_dir", "write load_from epoch_1.pth"]),
        (["model.type", "agreid_plugin.VTD"], ["'agreid_plugin.VTD' unknown (did you mean agreid_plugin.VDT?)"]),
        (
            ["optim_wrapper.optimizer.lrr", "1"],
            ["optim_wrapper.optimizer: argument of SGD 'lrr' unknown (did you mean lr?)"],
        ),
        (["train_dataloader.dataset.name", "CRGO"], ["'CRGO' unknown (did you mean CARGO?)"]),
        (["train_dataloader.dataset.data_root", "nowhere"], ["nowhere"]),
        (["train_dataloader", "None"], ["has no train_dataloader"]),
        (["test_cfg", "None"], ["test_dataloader, test_cfg, and test_evaluator should be either all None"]),
        (["images.x", "1"], ["command line: images.x 1 does not fit"]),
        (["param_scheduler", "{'type': 'LinearLR', 'begn': 1}"], ["'begn' unknown (did you mean begin?)"]),
    ],
)
def test_what_is_wrong_is_one_line(fastreid_command, tiny_py, tmp_path, change, words):
    assert_one_line(fastreid_command("train", "--config", tiny_py, "--output", tmp_path / "run", *change), *words)


def test_mixed_precision_without_a_gpu(fastreid_command, tiny_py, monkeypatch, tmp_path):
    monkeypatch.setattr(host, "get_device", lambda: "cpu")
    train = ["train", "--config", tiny_py, "--output", tmp_path / "run", "optim_wrapper.type"]
    outcome = fastreid_command(*train, "mmengine.AmpOptimWrapper")
    assert_one_line(outcome, "AmpOptimWrapper needs a GPU", "optim_wrapper.type agreid_plugin.AmpOptimWrapper")
    assert fastreid_command(*train, "AmpOptimWrapper").code == 0  # ours, in our scope


@pytest.mark.usefixtures("tiny_py")
def test_files_that_are_no_configurations(fastreid_command, tmp_path):
    assert_one_line(
        fastreid_command("train", "--config", tmp_path / "tini.py"), "does not exist (did you mean tiny.py?)"
    )
    for text, word in (
        ("model = dict(", "was never closed"),
        ("_base_ = ['nothing.py']", "nothing.py"),
        ("model = undefined", "name 'undefined' is not defined"),
        ("custom_imports = dict(imports=['no_such_module'])", "custom_imports: "),
        ("optim_wraper = dict()", "key optim_wraper unknown (did you mean optim_wrapper?)"),
    ):
        broken = tmp_path / "broken.py"
        broken.write_text(text)
        assert_one_line(fastreid_command("train", "--config", broken), str(broken), word)


def test_values_are_read_as_python(tiny_py):
    overrides = ["train_cfg.max_epochs", "7", "work_dir", "some/where", "model.backbone.vit.image_size", "(64, 32)"]
    cfg = load_config(tiny_py, overrides)
    assert (cfg.train_cfg.max_epochs, cfg.work_dir, cfg.model.backbone.vit.image_size) == (7, "some/where", (64, 32))


def test_evaluation_that_cannot_be(fastreid_command, tiny_py, tmp_path):
    evaluate = ["eval", "--config", tiny_py, "--output", tmp_path / "eval"]
    assert_one_line(fastreid_command(*evaluate), "weight file '' does not exist; name it with --weights")
    assert_one_line(fastreid_command(*evaluate, "--save-attributes", "a.csv"), "--save-attributes", ".yml")
    torch.save({"state_dict": {"other": torch.ones(1)}}, tmp_path / "other.pth")
    outcome = fastreid_command(*evaluate, "--weights", tmp_path / "other.pth")
    assert_one_line(outcome, "fits 0 of the model's 43 tensors")
    outcome = fastreid_command(*evaluate, "--weights", tmp_path / "other.pth", "test_dataloader", "None")
    assert_one_line(outcome, "has no test_dataloader")


@pytest.mark.parametrize(
    "option", [["--rerank"], ["--save-features", "features.npz"], ["--calibrate"], ["--bootstrap", 10]]
)
def test_options_that_no_metric_heeds_are_refused(fastreid_command, tiny_py, tmp_path, option):
    evaluate = ["eval", "--config", tiny_py, "--output", tmp_path / "eval", *option]
    other = "{'type': 'mmengine.DumpResults', 'out_file_path': 'x.pkl'}"
    outcome = fastreid_command(*evaluate, "test_evaluator", other)
    words = "needs agreid_plugin.MultiProtocolMetric in test_evaluator: add it, or leave"
    assert_one_line(outcome, f"error: {option[0]} {words} {option[0]} out")


def test_protocols_of_another_dataset_are_refused(fastreid_command, tiny_py, tmp_path):
    evaluate = ["eval", "--protocols", "A2G", "--config", tiny_py, "--output", tmp_path / "eval"]
    outcome = fastreid_command(
        *evaluate, "test_dataloader.dataset", "{'_delete_': True, 'type': 'mmengine.dataset.BaseDataset'}"
    )
    assert_one_line(outcome, "--protocols needs agreid_plugin.ReIDDataset in test_dataloader: add it, or leave")


def test_a_metric_made_of_ours_heeds_the_options(tiny_py):
    made = type("Mine", (MultiProtocolMetric,), {})
    for kind in (made, MultiProtocolMetric, "agreid_plugin.MultiProtocolMetric", "MultiProtocolMetric"):
        cfg = load_config(tiny_py)
        cfg.test_evaluator = [{"type": "mmengine.DumpResults", "out_file_path": "x.pkl"}, {"type": kind}]
        assert [part["type"] for part in host.find_metrics(cfg)] == [kind]


def test_two_processes(fastreid_command, tiny_py, tmp_path):
    """Two processes train; two and one evaluate what they trained alike."""
    folder = tmp_path / "run"
    outcome = fastreid_command("train", "--config", tiny_py, "--output", folder, "--num-processes", 2)
    assert outcome.code == 0, outcome.err
    assert json.loads((folder / "run_card.json").read_text())["processes"] == 2
    evaluate = ["eval", "--config", tiny_py, "--weights", folder / "epoch_1.pth"]
    for name, more in (("two", ["--num-processes", 2]), ("one", [])):
        outcome = fastreid_command(*evaluate, "--output", tmp_path / name, *more)
        assert outcome.code == 0, outcome.err
    assert precisions(tmp_path / "one") == precisions(tmp_path / "two")
    wrong = ["train", "--config", tiny_py, "--output", tmp_path / "wrong", "--num-processes", 2]
    assert_one_line(fastreid_command(*wrong, "model.num_ids", 5), "num_ids is 5, but CARGO has 4")


@pytest.mark.slow
def test_mmpretrains_own_tool_by_torchrun(tiny_py, tmp_path):
    """The configuration runs where our command is not used at all, in two processes without a GPU."""
    import mmpretrain

    tool = Path(mmpretrain.__file__).parent / ".mim" / "tools" / "train.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, tool, tiny_py, "--work-dir", tmp_path / "run", "--launcher", "pytorch"]
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert json.loads((tmp_path / "run" / "run_card.json").read_text())["processes"] == 2
    assert (tmp_path / "run" / "epoch_1.pth").exists()


@pytest.mark.both_hosts
@pytest.mark.parametrize("trained_in", ["mmengine", "fastreid"])
def test_a_checkpoint_goes_from_host_to_host(fastreid_command, tiny_py, tmp_path, agsynth, trained_in):
    """Trained in one host, evaluated in both with the same numbers."""
    folder, theirs = tmp_path / "run", tmp_path / "small.yml"
    data = {"ROOT": str(agsynth), "NAMES": ["CARGO"], "TESTS": ["CARGO"]}
    theirs.write_text(yaml.safe_dump({**THE_SAME_IN_FASTREID, "DATASETS": data}))
    configs = {"mmengine": tiny_py, "fastreid": theirs}
    outcome = fastreid_command("train", "--config", configs[trained_in], "--output", folder)
    assert outcome.code == 0, outcome.err
    weights = folder / {"mmengine": "epoch_1.pth", "fastreid": "model_final.pth"}[trained_in]
    for name, file in configs.items():
        outcome = fastreid_command("eval", "--config", file, "--weights", weights, "--output", tmp_path / name)
        assert outcome.code == 0, outcome.err
    assert precisions(tmp_path / "mmengine") == pytest.approx(precisions(tmp_path / "fastreid"))


def test_a_checkpoint_is_evaluated_with_the_activation_it_was_trained_with(tiny_py):
    towers = {"name": "ViT-B-16", "pretrained": "gone.pt", "quick_gelu": "yes"}
    overrides = ["model.clip", str(towers), "model.backbone.vit.pretrained", "gone.pth"]
    request = Request(tiny_py, overrides, eval_only=True, weights="w.pth")
    model = host.resolve(host.read(request)).model
    assert model.clip == {**towers, "pretrained": None}
    assert model.backbone.vit.pretrained is None
    overrides[1] = str({**towers, "quick_gelu": "auto"})
    with pytest.raises(InputError, match=r"gone.pt is not there to tell which activation"):
        host.resolve(host.read(request))


def test_a_run_that_a_launcher_restarts_goes_on_without_being_asked_to(tiny_py, tmp_path):
    restarted = replace(host.read(Request(str(tiny_py), output=str(tmp_path))), resume=True)
    assert not host.resolve(restarted).resume  # no checkpoint was written
    (tmp_path / MARKER).write_text("epoch_1.pth")
    cfg = host.resolve(restarted)
    assert (cfg.resume, cfg.load_from) == (True, None)
    assert not host.resolve(replace(restarted, resume=False)).resume
