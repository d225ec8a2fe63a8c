"""A resumed run equals an uninterrupted one, random augmentation included."""

import logging
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, METRICS, MODELS
from mmengine.runner import Runner
from processes import returned_by
from small_runs import same
from torch import nn

from agreid_plugin.data.rng import random_state, restore_random_state
from agreid_plugin.hosts.mmengine.engine.checkpoint_reader import load_from_local
from agreid_plugin.hosts.mmengine.engine.hooks import SyncBuffers
from agreid_plugin.hosts.mmengine.engine.loop import KEY, ExactResume

EPOCHS, IMAGES = 4, 12


@DATASETS.register_module()
class Shaken(BaseDataset):
    """Vectors that every read changes by chance, with each of the three generators that augmentations use."""

    def load_data_list(self):
        return [{"number": number} for number in range(IMAGES)]

    def prepare_data(self, index):
        noise = [random.random(), np.random.rand(), float(torch.rand(()))]
        return {"inputs": torch.tensor([index / IMAGES, *noise]), "data_samples": index % 3}


@MODELS.register_module()
class Small(BaseModel):
    """A classifier with dropout and running statistics."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, inputs, data_samples=None, mode="tensor"):
        logits = self.layers(torch.stack(inputs))
        if mode != "loss":
            return [{"number": number} for number in data_samples]
        return {"loss": nn.functional.cross_entropy(logits, torch.tensor(data_samples))}


@METRICS.register_module()
class Draws:
    """A metric that draws numbers, as validation may."""

    dataset_meta = None

    def process(self, *_):
        torch.rand(3), np.random.rand(), random.random()

    def evaluate(self, *_):
        return {"nothing": 0.0}


def config(folder, workers: int = 0, epochs: int = EPOCHS, **changes) -> dict:
    loader = {
        "batch_size": 4,
        "num_workers": workers,
        "dataset": {"type": "Shaken"},
        "worker_init_fn": {"type": "agreid_plugin.seed_worker"},
    }
    return {
        "model": {"type": "Small"},
        "work_dir": str(folder),
        "train_dataloader": {**loader, "sampler": {"type": "DefaultSampler", "shuffle": True}},
        "train_cfg": {"by_epoch": True, "max_epochs": epochs, "val_interval": 1},
        "optim_wrapper": {"optimizer": {"type": "AdamW", "lr": 0.05}},
        "val_dataloader": {**loader, "num_workers": 0, "sampler": {"type": "DefaultSampler", "shuffle": False}},
        "val_cfg": {},
        "val_evaluator": {"type": "Draws"},
        "custom_hooks": [{"type": "agreid_plugin.ExactResume"}],
        "randomness": {"seed": 3},
        "experiment_name": f"{folder.parent.name}-{folder.name}-{epochs}-{len(changes)}",
        "log_level": "WARNING",
        **changes,
    }


def train(folder, **changes) -> dict[str, torch.Tensor]:
    """Train, and return the weights."""
    return copy_weights(train_with(folder, **changes))


def train_with(folder, **changes) -> Runner:
    runner = Runner.from_cfg(config(folder, **changes))
    runner.train()
    return runner


def copy_weights(runner: Runner) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in runner.model.state_dict().items()}


def test_a_run_made_longer_goes_by_the_longer_schedule(tmp_path):
    """It is what the longer run would have been from the start; the shorter one had taken no rate at its end."""
    schedule = {"type": "agreid_plugin.WarmupMultiStepLR", "convert_to_iter_based": True, "milestones": [2]}
    whole = train(tmp_path / "whole", epochs=3, param_scheduler=schedule)
    train(tmp_path / "short", epochs=2, param_scheduler=schedule)
    longer = train(tmp_path / "short", epochs=3, param_scheduler=schedule, resume=True)
    assert same(longer, whole)


def changed(source: Path, folder: Path, change: Callable[[dict], object]) -> str:
    """Copy a checkpoint with a change."""
    checkpoint = torch.load(source, weights_only=False)
    change(checkpoint)
    torch.save(checkpoint, folder / "changed.pth")
    return str(folder / "changed.pth")


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> tuple[Path, dict[str, torch.Tensor]]:
    """An uninterrupted run: its folder, and the weights in the end."""
    folder = tmp_path_factory.mktemp("straight")
    return folder, train(folder)


@pytest.fixture
def said(capfd):
    """What runs have warned of since the last time."""
    return lambda: " ".join(capfd.readouterr().out.split())


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, straight, said):
    train(tmp_path, epochs=2)
    torch.manual_seed(99)
    assert same(train(tmp_path, resume=True), straight[1])
    assert "random numbers" not in said()


def test_histories_and_best_scores_go_on(tmp_path):
    """In a checkpoint of tensors and plain values only, the one of the best model too."""
    better = {
        "default_hooks": {
            "checkpoint": {"type": "CheckpointHook", "interval": 1, "save_best": "nothing", "rule": "greater"}
        }
    }
    whole = train_with(tmp_path / "whole", epochs=3, **better).message_hub
    train(tmp_path / "resumed", epochs=2, **better)
    for path in (tmp_path / "resumed").glob("*.pth"):
        assert torch.load(path, weights_only=True)["message_hub"]["log_scalars"]
    resumed = train_with(tmp_path / "resumed", epochs=3, resume=True, **better).message_hub
    assert list((tmp_path / "resumed").glob("best_*.pth"))
    for name in ("train/lr", "train/loss", "train/time"):
        found, expected = resumed.get_scalar(name), whole.get_scalar(name)
        assert found.max_length == expected.max_length
        assert len(found.data[0]) == len(expected.data[0]) == IMAGES // 4 * 3
        assert name == "train/time" or np.array_equal(found.data, expected.data)
    assert resumed.get_info("best_score") == whole.get_info("best_score") == 0


def test_a_run_that_mmengine_itself_began_is_gone_on_with(tmp_path, straight, said):
    """Its objects are left out, which one line says, and nothing of them reaches a part of the run."""

    def as_mmengine(checkpoint: dict) -> None:
        hub, read = checkpoint["message_hub"], load_from_local(straight[0] / "epoch_2.pth")["message_hub"]
        assert isinstance(read["log_scalars"]["train/loss"], HistoryBuffer)
        hub["log_scalars"] = read["log_scalars"]
        hub["runtime_info"]["best_score"] = np.float64(0.5)

    source = changed(straight[0] / "epoch_2.pth", tmp_path, as_mmengine)
    runner = train_with(tmp_path / "resumed", load_from=source, resume=True, log_level="INFO")
    assert same(copy_weights(runner), straight[1])
    assert len(runner.message_hub.get_scalar("train/loss").data[0]) == IMAGES // 4 * 2
    assert runner.message_hub.get_info("best_score") is None
    assert "is not defined in message_hub" not in said()


def test_with_a_worker_too(tmp_path):
    uninterrupted = train(tmp_path / "straight", workers=1)
    train(tmp_path / "resumed", workers=1, epochs=2)
    assert same(train(tmp_path / "resumed", workers=1, resume=True), uninterrupted)


def test_without_the_states_it_does_not(tmp_path, straight, said):
    source = changed(straight[0] / "epoch_2.pth", tmp_path, lambda checkpoint: checkpoint.pop(KEY))
    assert not same(train(tmp_path / "resumed", load_from=source, resume=True), straight[1])
    assert "resumed with other random numbers than an uninterrupted run: the checkpoint has none" in said()


@pytest.mark.parametrize("workers", [0, 1])
def test_epochs_differ(tmp_path, workers):
    """The equality above would be cheap if every epoch drew the same numbers."""
    runner = Runner.from_cfg(config(tmp_path, workers=workers))
    loader = runner.build_dataloader(runner.cfg.train_dataloader, seed=3)
    first, second = (torch.stack([vector for batch in loader for vector in batch["inputs"]]) for _ in range(2))
    assert not any(torch.equal(first[:, place].sort().values, second[:, place].sort().values) for place in (1, 2, 3))


def test_validation_has_no_influence_on_training(tmp_path, straight):
    nothing = {"val_dataloader": None, "val_cfg": None, "val_evaluator": None}
    assert same(train(tmp_path, **nothing), straight[1])


def test_states_of_other_processes_are_told(tmp_path, straight, said):
    def double(checkpoint: dict) -> None:
        checkpoint[KEY]["states"] *= 2

    source = changed(straight[0] / "epoch_3.pth", tmp_path, double)
    train(tmp_path / "resumed", load_from=source, resume=True)
    assert "the checkpoint's are of 2 processes, this run has 1" in said()


def test_another_seed_and_workers_that_live_on_are_told(tmp_path, straight, said):
    loader = {**config(tmp_path)["train_dataloader"], "num_workers": 1, "persistent_workers": True}
    source = str(straight[0] / "epoch_3.pth")
    train(tmp_path, load_from=source, resume=True, randomness={"seed": 4}, train_dataloader=loader)
    told = said()
    assert "resumed with seed 4 in place of 3" in told
    assert "randomness = dict(seed=3)" in told
    assert "persistent_workers: workers keep random numbers that no checkpoint has" in told


def test_weights_that_are_loaded_bring_no_random_numbers(tmp_path, straight, said):
    source = straight[0] / "epoch_2.pth"
    without = changed(source, tmp_path, lambda checkpoint: checkpoint.pop(KEY))
    one, other = (train(tmp_path / str(n), load_from=str(path), epochs=1) for n, path in enumerate([source, without]))
    assert same(one, other)
    assert "random numbers" not in said()


def test_all_generators_are_restored():
    state = random_state()
    drawn = random.random(), np.random.rand(), np.random.randn(), torch.rand(2).tolist()
    restore_random_state(state)
    assert (random.random(), np.random.rand(), np.random.randn(), torch.rand(2).tolist()) == drawn


def runner_of(network: nn.Module, **more) -> SimpleNamespace:
    """The parts of a runner that these hooks ask for."""
    return SimpleNamespace(model=network, logger=logging.getLogger("parts"), **more)


def one_of_two(rank: int) -> tuple:
    """One of two processes: buffers and random numbers of its own, shared and kept."""
    network = nn.BatchNorm1d(2)
    network.running_mean += rank
    network.num_batches_tracked += 5 + rank
    SyncBuffers().before_val_epoch(runner_of(network))
    torch.manual_seed(rank)
    hook, checkpoint, runner = ExactResume(), {}, runner_of(network, epoch=0)
    hook.after_train_epoch(runner)
    hook.before_save_checkpoint(runner, checkpoint)
    drawn, resumed = torch.rand(3), ExactResume()
    resumed.after_load_checkpoint(runner_of(network, seed=0), checkpoint)
    resumed.before_train_epoch(runner_of(network, epoch=1))
    return network.state_dict(), drawn, torch.rand(3)


def test_two_processes_share_buffers_and_keep_their_random_numbers(tmp_path):
    found = returned_by(2, one_of_two, tmp_path)
    for buffers, drawn, again in found:
        assert buffers["running_mean"].tolist() == [0, 0]
        assert buffers["num_batches_tracked"] == 5
        assert torch.equal(drawn, again)
    assert not torch.equal(found[0][1], found[1][1])
