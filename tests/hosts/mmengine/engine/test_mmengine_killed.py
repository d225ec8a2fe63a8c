"""Runs of mmengine that are killed, stopped and damaged end with the weights of one that nothing happened to."""

import random
import signal
from pathlib import Path

import pytest
import torch
from small_recipes import small
from small_runs import same

MOMENTS = {"step": 4, "hooks": 3, "evaluate": 1, "torn": 2}
KILLS = 4


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    """VDT on AG-Synth: 3 epochs of 4 iterations, each validated, with augmentation, drop path and a data worker."""
    folder = tmp_path_factory.mktemp("killed")
    made = small("VDT", folder / "data", folder, epochs=3)
    made.train_cfg.val_interval = made.default_hooks.checkpoint.interval = 1
    made.train_dataloader.batch_size = made.train_dataloader.sampler.batch_size = 8
    made.train_dataloader.num_workers = 1
    made.model.backbone.vit.drop_path = 0.3
    made.pop("work_dir")
    made.dump(folder / "c.py")
    return folder / "c.py"


@pytest.fixture(scope="module")
def straight(forked_command, config) -> Path:
    """The folder of a run that nothing happened to."""
    ended = forked_command("train", "--config", config, "--output", config.parent / "straight")
    assert ended.code == 0, ended.said
    return config.parent / "straight"


def final(folder: Path) -> dict:
    checkpoint = torch.load(folder / "epoch_3.pth", weights_only=False)
    best = {name: checkpoint["message_hub"]["runtime_info"][name] for name in ("best_score", "epoch", "iter")}
    return {"best": best, **{name: checkpoint[name] for name in checkpoint if name not in ("meta", "message_hub")}}


def test_killed_at_random(forked_command, config, straight, tmp_path):
    chance, told = random.Random(10), []
    again = ("train", "--config", config, "--output", tmp_path, "--resume")
    for _ in range(KILLS):
        moment = chance.choice(list(MOMENTS))
        told.append((moment, chance.randint(1, MOMENTS[moment])))
        ended = forked_command(*again, at=told[-1])
        assert ended.code == -signal.SIGKILL, (told, ended.said)
    ended = forked_command(*again)
    assert ended.code == 0, ended.said
    assert same(final(tmp_path), final(straight)), told
    assert Path((tmp_path / "last_checkpoint").read_text()) == tmp_path / "epoch_3.pth"
    assert not [path for path in tmp_path.glob(".*") if path.is_file()]


def test_stopped_within_an_epoch_and_a_damaged_checkpoint(forked_command, config, straight, tmp_path):
    again = ("train", "--config", config, "--output", tmp_path, "--resume")
    stopped = forked_command(*again, at=("step", 6), send=signal.SIGTERM)
    assert stopped.code == 143, stopped.said
    assert stopped.said.strip().splitlines()[-1].startswith("fastreid: stopped by SIGTERM; continue with: fastreid tr")
    assert Path((tmp_path / "last_checkpoint").read_text()).name == "iter_6.pth"
    kept = (tmp_path / "iter_6.pth").read_bytes()
    (tmp_path / "iter_6.pth").write_bytes(kept[: len(kept) // 2])
    resumed = forked_command(*again, at=("evaluate", 1), send=signal.SIGINT)
    assert resumed.code == 130, resumed.said
    assert "iter_6.pth is damaged" in resumed.said
    assert "resumed from epoch_1.pth instead" in resumed.said
    assert forked_command(*again).code == 0
    assert same(final(tmp_path), final(straight))


def test_a_terminal_that_is_closed_ends_a_run_after_its_step(forked_command, config, tmp_path):
    hung_up = forked_command("train", "--config", config, "--output", tmp_path, at=("step", 2), send=signal.SIGHUP)
    assert hung_up.code == 129, hung_up.said
    assert hung_up.said.strip().splitlines()[-1].startswith("fastreid: stopped by SIGHUP; continue with: fastreid tra")
    assert Path((tmp_path / "last_checkpoint").read_text()) == tmp_path / "iter_2.pth"
    assert (tmp_path / "iter_2.pth").exists()


def test_a_full_disk_is_told_and_the_run_goes_on(forked_command, config, tmp_path):
    again = ("train", "--config", config, "--output", tmp_path, "--resume", "train_dataloader.num_workers", 0)
    assert forked_command(*again, at=("hooks", 6), send=signal.SIGKILL).code == -signal.SIGKILL
    before = (tmp_path / "epoch_1.pth").read_bytes()
    full = forked_command(*again, file_size=95_000)
    assert full.code == 2, full.said
    for name in ("epoch_2.pth", "epoch_3.pth"):
        assert f"{name} was not written: File too large" in full.said
    assert "epoch_3.pth was not written; make room and continue with --resume" in full.said
    assert (tmp_path / "epoch_1.pth").read_bytes() == before
    assert [path.name for path in tmp_path.glob("epoch_*")] == ["epoch_1.pth"]
    assert Path((tmp_path / "last_checkpoint").read_text()).name == "epoch_1.pth"
