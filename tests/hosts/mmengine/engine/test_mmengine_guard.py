"""The learning guard in mmengine's Runner: losses that are not finite, in one process and in two, and collapse."""

from functools import partial

import pytest
import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS
from mmengine.runner import Runner
from poison import Poison
from processes import in_processes
from small_mmengine import CONFIGS, OBJECTIVES

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.models.base import ReIDModel
from agreid_plugin.types import View

PIPELINE = [{"type": f"agreid_plugin.{name}"} for name in ("ReadImage", "HorizontalFlip", "Pack")]


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    """Register the loss, as long as a test lasts."""
    monkeypatch.setitem(MODELS._module_dict, "Poison", Poison)


class SkippingWrapper(OptimWrapper):
    """Leaves out steps as a loss scaler does that has found gradients which are not finite."""

    def step(self, **kwargs) -> None:
        gradients = [value.grad for group in self.param_groups for value in group["params"] if value.grad is not None]
        if all(gradient.isfinite().all() for gradient in gradients):
            super().step(**kwargs)


def config(root, folder, poison: dict, **changes) -> dict:
    sampler = {"type": "agreid_plugin.ViewBalancedIdentitySampler", "batch_size": 8, "per_identity": 4}
    dataset = {"type": "agreid_plugin.ReIDDataset", "name": "CARGO", "data_root": str(root), "pipeline": PIPELINE}
    objectives = {**OBJECTIVES, "poison": {"type": "Poison", "on": "features", **poison}}
    return {
        "model": {**CONFIGS["VDT"], "num_ids": 4, "objectives": objectives},
        "work_dir": str(folder),
        "train_dataloader": {"batch_size": 8, "num_workers": 0, "dataset": dataset, "sampler": sampler},
        "train_cfg": {"by_epoch": True, "max_epochs": 1},
        "optim_wrapper": {"optimizer": {"type": "SGD", "lr": 1e-2}},
        "custom_hooks": [{"type": "agreid_plugin.LearningGuard"}],
        "randomness": {"seed": 3},
        **changes,
    }


def test_a_loss_that_is_nan_stops_the_run_before_the_step(agsynth, tmp_path):
    runner = Runner.from_cfg(config(agsynth, tmp_path, {"call": 3}))
    with pytest.raises(InputError) as caught:
        runner.train()
    assert str(caught.value).startswith("iteration 3: loss_poison_id is nan (loss_cls_id ")
    for words in ("8 images, all finite; weights finite; ", "gradients not finite", "lower the learning rate"):
        assert words in str(caught.value)
    assert all(value.isfinite().all() for value in runner.model.parameters())


def test_a_loss_that_led_to_no_step_is_judged_too(agsynth, tmp_path):
    """As with a loss scaler, which leaves out steps whose gradients are not finite."""
    runner = Runner.from_cfg(config(agsynth, tmp_path, {"call": 2, "value": float("inf")}))
    runner.optim_wrapper = SkippingWrapper(torch.optim.SGD(runner.model.parameters(), lr=1e-2))
    with pytest.raises(InputError, match=r"iteration 2: loss_poison_id is inf \("):
        runner.train()


def test_a_step_that_is_left_out_is_no_reason_to_stop(agsynth, tmp_path):
    runner = Runner.from_cfg(config(agsynth, tmp_path, {"call": 0}))
    runner.optim_wrapper = SkippingWrapper(torch.optim.SGD(runner.model.parameters(), lr=1e-2))
    spoilt, weight = [], next(runner.model.parameters())

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        spoilt.append(len(spoilt))
        return gradient * float("inf") if len(spoilt) in (1, 3) else gradient

    weight.register_hook(spoil)
    runner.train()
    assert len(spoilt) == 6
    assert weight.isfinite().all()


def test_all_processes_stop_with_one_message_where_one_has_a_bad_loss(agsynth, tmp_path):
    on_gloo = {"launcher": "pytorch", "env_cfg": {"dist_cfg": {"backend": "gloo"}}}
    given = config(agsynth, tmp_path, {"call": 2, "process": 1}, **on_gloo)
    given["train_dataloader"]["batch_size"] = 4
    told = in_processes(2, partial(_train, given), grouped=False)
    assert told[0] == told[1]
    assert told[0].startswith("NonFiniteLossError: iteration 2: loss_poison_id is nan (")
    assert " in process 1; 4 images, all finite; weights finite; " in told[0]


def _train(given: dict) -> str:
    Runner.from_cfg(given).train()
    return "trained"


def test_features_that_are_alike_twice_stop_the_run(agsynth, tmp_path, monkeypatch):
    features = ReIDModel.features
    monkeypatch.setattr(ReIDModel, "features", lambda *given: torch.ones_like(features(*given)))
    changes = {"train_cfg": {"by_epoch": True, "max_epochs": 3}}
    runner = Runner.from_cfg(config(agsynth, tmp_path, {"call": 0}, **changes))
    with pytest.raises(InputError, match=r"features of 8 different images are all alike .* has collapsed"):
        runner.train()
    assert (runner.epoch, len(list(tmp_path.glob("epoch_*.pth")))) == (1, 2)  # checkpoints come first
    assert all(module.training for module in runner.model.modules())


def test_an_expert_that_is_never_chosen_is_warned_of(agsynth, tmp_path):
    changes = {"model": {**CONFIGS["ViSA"], "num_ids": 4}, "train_cfg": {"by_epoch": True, "max_epochs": 2}}
    given = config(agsynth, tmp_path, {"call": 0}, **changes)
    runner = Runner.from_cfg({**given, "custom_hooks": [{"type": "agreid_plugin.ExpertUsage"}]})
    with torch.no_grad():
        runner.model.method.backbone.queries.view_router.bias[View.GROUND, 1] = -1e3
    runner.train()
    (log,) = tmp_path.rglob("*.log")
    (warning,) = [line for line in log.read_text().splitlines() if "never chosen" in line]
    assert "epoch 1: backbone.queries." in warning
    assert "routing='centered'" in warning
