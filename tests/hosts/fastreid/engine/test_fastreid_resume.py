"""What a run of fast-reid survives beside being killed: damaged files, a full disk, signals, other settings."""

import itertools
import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
import yaml
from conftest import assert_one_line, slow
from small_runs import final, logged, same, write_config
from small_text import TINY

from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data import loaders
from agreid_plugin.hosts.fastreid.engine.loop import list_checkpoints, make_checkpoint_name
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer
from agreid_plugin.synth import make_agsynth

SHORT = ("SOLVER.MAX_EPOCH", 2)


@pytest.fixture
def config(tmp_path, agsynth) -> Path:
    return write_config(tmp_path / "c.yml", agsynth)


@pytest.fixture(scope="module")
def straight(forked_command, tmp_path_factory, agsynth) -> Path:
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("straight")
    config = write_config(folder / "c.yml", agsynth)
    assert forked_command("train", "--config", config, "--output", folder / "run", *SHORT).code == 0
    return folder / "run"


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [flipped, *slow(halved, Path.unlink)])
def test_the_checkpoint_before_a_damaged_one_is_used(forked_command, config, straight, tmp_path, damage):
    run = tmp_path / "run"
    train = ("train", "--config", config, "--output", run, *SHORT, "--resume")
    forked_command(*train, at=("step", 11))
    assert (run / "last_checkpoint").read_text() == "model_0001_000002.pth"
    damage(run / "model_0001_000002.pth")
    outcome = forked_command(*train)
    assert outcome.code == 0, outcome.said
    told = [line for line in outcome.said.splitlines() if "model_0001_000002.pth is damaged" in line]
    assert len(told) == 1
    assert "resumed from model_0000.pth instead" in told[0]
    assert same(final(run), final(straight))


def test_with_no_good_checkpoint_a_run_does_not_start_anew_by_itself(fastreid_command, config, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "model_0000.pth").write_bytes(b"nothing")
    (run / "last_checkpoint").write_text("model_0000.pth")
    outcome = fastreid_command("train", "--config", config, "--output", run, "--resume")
    assert outcome.code == 2
    assert outcome.err.strip().splitlines()[-1].startswith("fastreid: error: ")
    assert "model_0000.pth is damaged" in outcome.err
    assert (run / "model_0000.pth").read_bytes() == b"nothing"


def test_a_full_disk_is_told_and_the_run_goes_on(forked_command, config, straight, tmp_path):
    run = tmp_path / "run"
    train = ("train", "--config", config, "--output", run, *SHORT, "--resume")
    forked_command(*train, at=("step", 6))
    kept = {path.name: path.read_bytes() for path in run.glob("model_*")}
    assert list(kept) == ["model_0000_000004.pth"]
    full = forked_command(*train, file_size=100_000)
    told = [line for line in full.said.splitlines() if "was not written: File too large" in line]
    assert all("MB are free; the run goes on" in line for line in told)
    for name in ("model_best", "model_0000", "model_0001_000002", "model_final"):
        assert sum(f"{name}.pth was not" in line for line in told) == 1
    assert {path.name: path.read_bytes() for path in run.glob("model_*")} == kept
    assert not list(run.glob(".model*"))
    assert full.code == 2
    assert "the final checkpoint was not written; make room and continue with --resume" in full.said
    assert forked_command(*train).code == 0
    assert same(final(run), final(straight))
    assert sorted(logged(run)) == sorted(logged(straight))


def test_the_last_checkpoints_are_kept(forked_command, config, tmp_path):
    train = ("train", "--config", config, "SOLVER.MAX_EPOCH", 4, "SOLVER.CHECKPOINT_ITERS", 0)
    for keep, names in ((2, ["model_0001", "model_0002"]), (0, ["model_0000", "model_0001", "model_0002"])):
        run = tmp_path / str(keep)
        assert forked_command(*train, "SOLVER.KEEP_CHECKPOINTS", keep, "--output", run).code == 0
        assert [path.stem for path in list_checkpoints(run)] == names
        assert (run / "model_best.pth").exists()
        assert (run / "last_checkpoint").read_text() == "model_final.pth"


def test_checkpoints_are_in_the_order_of_training(tmp_path):
    order = [(0, 0), (0, 3), (1, 0), (1, 2), (1, 10), (2, 0), (10, 1), (11, 0)]
    for epochs, iterations in reversed(order):
        (tmp_path / f"{make_checkpoint_name(epochs, iterations)}.pth").touch()
    (tmp_path / "model_best.pth").touch()
    assert [path.stem for path in list_checkpoints(tmp_path)] == [make_checkpoint_name(*each) for each in order]


@pytest.mark.parametrize("sent", [signal.SIGTERM, *slow(signal.SIGINT, signal.SIGHUP)])
def test_a_signal_ends_a_run_after_its_step(forked_command, config, straight, tmp_path, sent):
    run = tmp_path / "run"
    train = ("train", "--config", config, "--output", run, *SHORT, "DATALOADER.NUM_WORKERS", 1)
    first = forked_command(*train, at=("set up", 1), send=sent)
    assert first.code == 128 + sent, first.said
    assert not list(run.glob("model_*"))
    stopped = forked_command(*train, at=("step", 3), send=sent)
    assert stopped.code == 128 + sent, stopped.said
    assert [path.name for path in run.glob("model_*")] == ["model_0000_000003.pth"]
    last = stopped.said.strip().splitlines()[-1]
    assert last.startswith(f"fastreid: stopped by {sent.name}; continue with: fastreid train --resume --config ")
    command = last.partition("continue with: fastreid ")[2].split()
    evaluating = forked_command(*command, at=("evaluate", 1), send=sent)
    assert evaluating.code == 128 + sent, evaluating.said
    assert (run / "last_checkpoint").read_text() == "model_0000.pth"
    writing = forked_command(*command, at=("rename", 1), send=sent)
    assert writing.code == 128 + sent, writing.said
    assert forked_command(*command).code == 0
    assert same(final(run), final(straight))
    assert sorted(logged(run)) == sorted(logged(straight))


def test_two_processes_are_killed_stopped_and_resumed(forked_command, config, tmp_path):
    train = ("train", "--config", config, "--num-processes", 2, *SHORT, "DATALOADER.NUM_INSTANCE", 2)
    assert forked_command(*train, "--output", tmp_path / "straight").code == 0
    again = (*train, "--output", tmp_path / "run", "--resume")
    assert forked_command(*again, at=("step", 6)).code != 0
    stopped = forked_command(*again, at=("step", 4), send=signal.SIGTERM)
    assert stopped.code == 143, stopped.said
    assert stopped.said.count("continue with: fastreid train --resume") == 1
    assert (tmp_path / "run" / "last_checkpoint").read_text() == "model_0001_000002.pth"
    assert forked_command(*again).code == 0
    whole, patched = final(tmp_path / "straight"), final(tmp_path / "run")
    assert same(whole, patched)
    states = whole["random_states"]
    assert len(states) == 2
    assert not same(*states)


def test_the_best_model_stays_the_best(forked_command, config, tmp_path):
    run = tmp_path / "run"
    train = ("train", "--config", config, "--output", run, "SOLVER.CHECKPOINT_ITERS", 0)
    forked_command(*train, at=("step", 8))
    for name in ("model_0000.pth", "model_best.pth"):
        content = torch.load(run / name, weights_only=True)
        torch.save({**content, "best_metric": 1000.0}, run / name)
    best = (run / "model_best.pth").read_bytes()
    assert forked_command(*train, "--resume").code == 0
    assert (run / "model_best.pth").read_bytes() == best
    assert final(run)["best_metric"] == 1000


def test_another_seed_batch_or_number_of_processes_is_told(forked_command, config, tmp_path):
    train = ("train", "--config", config, "--output", tmp_path / "run", "--resume")
    forked_command(*train, *SHORT, at=("step", 8))
    resumed = forked_command(*train, "--num-processes", 2, *SHORT, "SEED", 5, "SOLVER.IMS_PER_BATCH", 16)
    assert resumed.code == 0, resumed.said
    told = [line for line in resumed.said.splitlines() if "not as an uninterrupted one would" in line]
    assert len(told) == 1
    changes = ("seed 5 in place of 0", "processes 2 in place of 1", "batch 16 in place of 8")
    assert f"resumed with {', '.join(changes)}, iterations an epoch 3 in place of 6" in told[0]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (("MODEL.VIT.LAYERS", 3), "another model (backbone.encoder.view_tokens is (2, 2, 16) there, (3, 2, 16) here)"),
        (("SOLVER.OPT", "SGD"), "another optimizer (it has no dampening)"),
        (
            ("SOLVER.SCHED", "CosineAnnealingLR", "SOLVER.SCHED_STEP", "iteration"),
            "another schedule (SOLVER.SCHED_STEP was epoch there, it is iteration here): continue with",
        ),
    ],
)
def test_another_model_optimizer_or_schedule_is_refused(forked_command, config, straight, tmp_path, other, told):
    shutil.copytree(straight, tmp_path / "run")
    train = ("train", "--config", config, "--output", tmp_path / "run", "--resume", "SOLVER.MAX_EPOCH", 3)
    outcome = forked_command(*train, *other)
    assert outcome.code == 2, outcome.said
    assert f"error: the checkpoint to resume from is of {told}" in outcome.said.splitlines()[-1]
    assert "Traceback" not in outcome.said


COSINE = ("SOLVER.SCHED", "CosineAnnealingLR", "SOLVER.ETA_MIN_LR", 1e-6)
STEPS = ("SOLVER.SCHED", "MultiStepLR", "SOLVER.STEPS", "[1, 3]")


@pytest.mark.parametrize(
    ("before", "after"), [(STEPS, COSINE), *slow((COSINE, COSINE), (COSINE, STEPS), (STEPS, STEPS))]
)
def test_a_run_that_is_made_longer_goes_by_its_new_schedule(forked_command, config, tmp_path, before, after):
    def train(run: str, *more: object) -> list[float]:
        outcome = forked_command("train", "--config", config, "--output", tmp_path / run, *more)
        assert outcome.code == 0, outcome.said
        said.append(outcome.said)
        lines = map(json.loads, (tmp_path / run / "metrics.json").read_text().splitlines())
        return [line["lr"] for line in lines if "lr" in line]

    said: list[str] = []
    train("run", *before, *SHORT)
    rates = train("run", "--resume", *after, "SOLVER.MAX_EPOCH", 4)
    expected = train("straight", *after, "SOLVER.MAX_EPOCH", 4)
    assert len(rates) == len(expected) == 24
    assert rates[12:] == pytest.approx(expected[12:], rel=1e-9)
    assert ("resumed with another schedule" in said[1]) is (before is not after or after is COSINE)


def test_a_drawn_seed_is_kept(forked_command, config, tmp_path):
    train = ("train", "--config", config, "--output", tmp_path / "run", "SEED", -1, "SOLVER.MAX_EPOCH", 1)
    forked_command(*train, at=("step", 2))
    seed = json.loads((tmp_path / "run" / "run_card.json").read_text())["seed"]
    assert forked_command(*train, "--resume").code == 0
    assert final(tmp_path / "run")["run"]["seed"] == seed


@pytest.mark.parametrize("name", loaders.SAMPLERS)
def test_every_sampler_goes_on_in_its_stream(config, name):
    weights = str([0] * 12 + [2])  # of CARGO's cameras, the last of which has seen all
    given = ["DATALOADER.SAMPLER_TRAIN", name, "DATALOADER.SET_WEIGHT", weights, "MODEL.DEVICE", "cpu"]
    cfg = load_config(config, given)
    whole, late = (loaders.build_train_loader(cfg) for _ in range(2))
    late.batch_sampler.sampler = whole.batch_sampler.sampler
    late.batch_sampler.start = 7
    expected = list(itertools.islice(iter(whole), 7, 9))
    found = list(itertools.islice(iter(late), 2))
    for one, other in zip(expected, found, strict=True):
        assert one["img_paths"] == other["img_paths"]
        assert torch.equal(one["images"], other["images"])  # augmentation included
    assert not torch.equal(found[0]["images"], found[1]["images"])


def test_the_scaler_of_mixed_precision_is_in_the_checkpoint(config, tmp_path):
    overrides = ["SOLVER.AMP.ENABLED", "True", "MODEL.DEVICE", "cpu", "OUTPUT_DIR", str(tmp_path)]
    trainers = [Trainer(load_config(config, overrides)) for _ in range(2)]
    for trainer, scale in zip(trainers, (1024.0, 2.0), strict=True):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        trainer._trainer.grad_scaler = trainer.checkpointer.checkpointables["grad_scaler"] = scaler
        trainer.iter = 0
    trainers[0].save("model_final")
    assert trainers[1].resume()
    assert trainers[1].grad_scaler.get_scale() == 1024


def test_a_run_that_wrote_no_checkpoint_starts_anew(forked_command, config, straight, tmp_path):
    train = ("train", "--config", config, "--output", tmp_path / "run", *SHORT, "--resume")
    forked_command(*train, at=("step", 3))
    assert not (tmp_path / "run" / "last_checkpoint").exists()
    assert forked_command(*train).code == 0
    assert same(final(tmp_path / "run"), final(straight))
    assert sorted(logged(tmp_path / "run")) == sorted(logged(straight))


def test_a_torn_line_of_metrics_is_dropped(forked_command, config, straight, tmp_path):
    train = ("train", "--config", config, "--output", tmp_path / "run", *SHORT, "--resume")
    forked_command(*train, at=("step", 8))
    with (tmp_path / "run" / "metrics.json").open("a") as file:
        file.write('{"iteration": 7, "total_l')
    assert forked_command(*train).code == 0
    assert sorted(logged(tmp_path / "run")) == sorted(logged(straight))


def test_the_keys_are_checked(fastreid_command, config):
    for key in ("SOLVER.KEEP_CHECKPOINTS", "SOLVER.CHECKPOINT_ITERS"):
        assert_one_line(fastreid_command("train", "--config", config, key, -1), key, "-1")


def test_captions_are_drawn_by_their_place_too(forked_command, tmp_path):
    make_agsynth(tmp_path, ids=8, images_per_id=8, size=(32, 16), layout="tag-pedes", workers=1, progress=False)
    path = tmp_path / "c.yml"
    path.write_text(yaml.safe_dump({**TINY, "DATASETS": {**TINY["DATASETS"], "ROOT": str(tmp_path)}}))
    options = ("INPUT.CAPTIONS", "one", "INPUT.TEXT.WORD_DELETION", 0.5, "DATALOADER.NUM_WORKERS", 1)
    train = ("train", "--config", path, *options, "SOLVER.CHECKPOINT_ITERS", 1)
    assert forked_command(*train, "--output", tmp_path / "straight").code == 0
    forked_command(*train, "--output", tmp_path / "run", at=("step", 2))
    assert forked_command(*train, "--output", tmp_path / "run", "--resume").code == 0
    assert same(final(tmp_path / "run"), final(tmp_path / "straight"))
