"""Hooks in mmengine: a run of ViSA that has them all, and each on its own."""

import json
import logging
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from PIL import Image
from small_mmengine import CONFIGS, batch, loaded, model, run
from torch import nn

from agreid_plugin.data.datasets import Dataset
from agreid_plugin.engine.checks import check_test_labels, check_training_labels
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import load_results
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet, choose_protocols
from agreid_plugin.hosts.mmengine.config.dataset_checks import check_identities, list_labeled_images
from agreid_plugin.hosts.mmengine.config.loading import to_plain
from agreid_plugin.hosts.mmengine.engine.checkpoints import CheckpointHook
from agreid_plugin.hosts.mmengine.engine.hooks import LearningGuard, SoftLabelRamp, setup_facts
from agreid_plugin.nn.expert_usage import UsageCounter
from agreid_plugin.types import UNKNOWN, Record, View

EVERY = ("LearningGuard", "IdentityCheck", "RunCard", "Results", "ExactResume", "SyncBuffers", "ExpertUsage")
PIPELINE = [{"type": f"agreid_plugin.{name}"} for name in ("ReadImage", "Pack")]
PEOPLE = 4


def dataset(root, split: str) -> dict:
    kind = {"type": "agreid_plugin.ReIDDataset", "name": "CARGO", "split": split}
    return {**kind, "data_root": str(root), "pipeline": PIPELINE}


def config(root, folder, **changes) -> dict:
    """Two epochs of ViSA on AG-Synth, with every hook."""
    sampler = {"type": "agreid_plugin.ViewBalancedIdentitySampler", "batch_size": 8, "per_identity": 4}
    in_order = {"type": "DefaultSampler", "shuffle": False}
    test = {"batch_size": 8, "num_workers": 0, "dataset": dataset(root, "test"), "sampler": in_order}
    return {
        "model": {**CONFIGS["ViSA"], "num_ids": PEOPLE},
        "work_dir": str(folder),
        "train_dataloader": {
            "batch_size": 8,
            "num_workers": 0,
            "dataset": dataset(root, "train"),
            "sampler": sampler,
        },
        "train_cfg": {"by_epoch": True, "max_epochs": 2, "val_interval": 1},
        "optim_wrapper": {"optimizer": {"type": "AdamW", "lr": 1e-3}},
        "val_dataloader": test,
        "val_cfg": {},
        "val_evaluator": {"type": "agreid_plugin.MultiProtocolMetric"},
        "custom_hooks": [
            *({"type": f"agreid_plugin.{name}"} for name in EVERY),
            {"type": "agreid_plugin.RankLists", "queries": 2, "top": 3, "protocols": ["ALL", "A2G"]},
        ],
        "default_hooks": {"checkpoint": {"type": "CheckpointHook", "save_best": "metric", "rule": "greater"}},
        "visualizer": {"type": "Visualizer", "vis_backends": [{"type": "LocalVisBackend"}], "name": folder.name},
        "randomness": {"seed": 3},
        "experiment_name": folder.name,
        **changes,
    }


@pytest.fixture(scope="module")
def trained(agsynth, tmp_path_factory):
    """A run of two epochs."""
    runner = Runner.from_cfg(config(agsynth, tmp_path_factory.mktemp("trained")))
    runner.train()
    return runner


def lines(runner: Runner) -> list[dict]:
    """What the visualizer has kept."""
    (path,) = Path(runner.work_dir).rglob("scalars.json")
    return [json.loads(line) for line in path.read_text().splitlines()]


def log_of(runner: Runner) -> str:
    (path,) = Path(runner.work_dir).rglob("*.log")
    return path.read_text()


def test_the_run_card_tells_what_the_run_was_made_of(trained):
    card = json.loads((Path(trained.work_dir) / "run_card.json").read_text())
    assert (card["seed"], card["processes"], card["config"]["model"]["num_ids"]) == (3, 1, PEOPLE)
    assert card["datasets"] == {"CARGO": trained.train_dataloader.dataset.metainfo["fingerprint"]}
    assert card["versions"]["mmengine"] != "missing"


def test_what_json_cannot_hold_is_told_by_its_name():
    assert to_plain({"a": (1, None), 2: nn.Linear, "b": [True, 0.5]}) == {
        "a": [1, None],
        "2": str(nn.Linear),
        "b": [True, 0.5],
    }


def test_results_are_kept_with_the_source_of_views(trained):
    results = load_results(f"{trained.work_dir}/results.json")["CARGO"]
    (metric,) = trained.val_loop.evaluator.metrics
    assert {name: entry["mAP"] for name, entry in results.items()} == {
        entry.protocol.removeprefix("CARGO/"): pytest.approx(entry["mAP"]) for entry in metric.evaluation.metrics
    }
    assert {entry.views for entry in results.values()} == {"given"}
    assert "results in percent" in log_of(trained)
    assert "AG-cross" in log_of(trained)


def test_the_best_model_is_selected(trained):
    assert trained.message_hub.get_info("best_score") == max(
        each["metric"] for each in lines(trained) if "metric" in each
    )


def test_every_experts_share_is_told_after_each_epoch(trained):
    told = [each for each in lines(trained) if any(name.startswith("experts/") for name in each)]
    assert [each["step"] for each in told] == [1, 2]
    groups = [
        f"experts/backbone.queries.{name}" for name in ("shared_router", "view_router/aerial", "view_router/ground")
    ]
    shares = {name for name in told[0] if name.startswith("experts/")}
    assert shares == {f"{group}/{expert}" for group in groups for expert in range(3)}
    assert all("CARGO/ALL/mAP" in each for each in told)  # tools look for it in every record of a validation
    for group in groups:  # two of three experts each
        assert sum(told[1][f"{group}/{expert}"] for expert in range(3)) == pytest.approx(2)
    assert "experts of epoch 2, least and most used in percent" in log_of(trained)


def test_watching_ends_with_training(trained):
    assert not any(module._forward_hooks for module in trained.model.modules())
    assert not trained.optim_wrapper.optimizer._optimizer_step_post_hooks
    weights = sum(parameter.requires_grad for parameter in trained.model.parameters())
    assert 0 < trained.message_hub.get_scalar("train/changed_weights").current() <= weights


def test_pictures_of_rankings_are_kept_and_shown(trained):
    shown = sorted(Path(trained.work_dir).rglob("vis_image/*.png"))
    kept = [sorted((Path(trained.work_dir) / "rank_lists" / name).iterdir()) for name in ("CARGO_A2G", "CARGO_ALL")]
    assert [len(pictures) for pictures in kept] == [2, 2]
    assert len(shown) == 4
    assert np.array_equal(Image.open(kept[0][0]), Image.open(shown[0]))


def test_a_test_alone_reports_and_draws(trained, agsynth, tmp_path):
    changes = {f"{name}_{part}": None for name in ("train", "val") for part in ("dataloader", "cfg")}
    given = config(agsynth, tmp_path, **changes, optim_wrapper=None, val_evaluator=None)
    given |= {"test_dataloader": config(agsynth, tmp_path)["val_dataloader"], "test_cfg": {}}
    given |= {"test_evaluator": {"type": "agreid_plugin.MultiProtocolMetric"}}
    given |= {"load_from": str(Path(trained.work_dir) / "epoch_2.pth")}
    Runner.from_cfg(given).test()
    before, now = (load_results(f"{folder}/results.json")["CARGO"] for folder in (trained.work_dir, tmp_path))
    assert {name: entry.values for name, entry in now.items()} == {name: entry.values for name, entry in before.items()}
    assert len(list((tmp_path / "rank_lists").rglob("*.png"))) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": {**CONFIGS["ViSA"], "num_ids": 9}},
            "model.num_ids is 9, but CARGO has 4 identities to train on: set num_ids=4",
        ),
        (
            {"optim_wrapper": {"optimizer": {"type": "SGD", "lr": 0.0}}},
            r"changed none of \d+ weights: the learning rate is 0",
        ),
        (
            {
                "default_hooks": {
                    "checkpoint": {"type": "CheckpointHook", "save_best": "CARGO/ALL/mAPP", "rule": "greater"}
                }
            },
            r"save_best 'CARGO/ALL/mAPP' unknown \(did you mean CARGO/ALL/mAP\?\)",
        ),
    ],
    ids=["identities", "rate", "best"],
)
def test_a_run_that_cannot_be_meant_is_refused(agsynth, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        Runner.from_cfg(config(agsynth, tmp_path, **changes)).train()


NUMBERS = count()


class Parts(SimpleNamespace):
    """The parts of a runner that a hook asks for."""

    def __init__(self, network: nn.Module, **more):
        hub = MessageHub.get_instance(f"hub-{next(NUMBERS)}")  # an id may be that of a network that is gone
        super().__init__(model=network, logger=logging.getLogger("parts"), message_hub=hub, **more)


def steps(network: nn.Module, losses, **wrapping) -> Parts:
    """Guard some steps of an optimizer."""
    optimizer = torch.optim.SGD([*network.parameters(), nn.Parameter(torch.zeros(1))], lr=0.1)
    runner, guard = Parts(network, optim_wrapper=OptimWrapper(optimizer, **wrapping)), LearningGuard()
    guard.before_train(runner)
    for number, loss in enumerate(losses):
        runner.optim_wrapper.update_params(loss(network))
        guard.after_train_iter(runner, number)
    return runner


def learns(network: nn.Module) -> torch.Tensor:
    return network(torch.ones(2, 3)).sum()


def nothing(network: nn.Module) -> torch.Tensor:
    return 0 * learns(network)


def test_the_guard_waits_for_accumulated_gradients():
    runner = steps(nn.Linear(3, 2), [learns, learns], accumulative_counts=2)
    assert runner.message_hub.get_scalar("train/changed_weights").current() == 2


def test_the_guard_judges_the_first_step_alone():
    runner = steps(nn.Linear(3, 2), [learns, nothing, nothing])
    assert runner.message_hub.get_scalar("train/changed_weights").data[0].tolist() == [2]


def test_the_guard_tells_why_though_gradients_are_gone_after_a_step():
    with pytest.raises(InputError, match="changed none of 2 weights: every gradient is 0"):
        steps(nn.Linear(3, 2), [nothing])


def test_the_guard_lets_a_schedule_begin_at_zero():
    network = nn.Linear(3, 2)
    optimizer = torch.optim.SGD([{"params": network.parameters(), "initial_lr": 0.1}], lr=0.0)
    runner, guard = Parts(network, optim_wrapper=OptimWrapper(optimizer)), LearningGuard()
    guard.before_train(runner)
    for rate in (0.0, 0.1):
        optimizer.param_groups[0]["lr"] = rate
        runner.optim_wrapper.update_params(learns(network))
        guard.after_train_iter(runner, 0)
        assert ("train/changed_weights" in runner.message_hub.log_scalars) == (rate > 0)


def test_soft_labels_grow_over_their_epochs():
    tag_clip = model("TAGCLIP")
    runner, hook, shares = Parts(tag_clip, train_dataloader=[0] * 4, iter=0), SoftLabelRamp(epochs=0.5), []
    hook.before_train(runner)
    for iteration in range(4):
        runner.iter = iteration
        hook.before_train_iter(runner, iteration)
        shares.append(tag_clip.method.soft_label)
    assert shares == [0.0, 0.25, 0.5, 0.5]
    assert runner.message_hub.get_scalar("train/soft_label").current() == 0.5
    resumed = Parts(model("TAGCLIP"), train_dataloader=[0] * 4, iter=1)
    hook = SoftLabelRamp(epochs=0.5)
    hook.before_train(resumed)
    hook.before_train_iter(resumed, 0)
    assert resumed.model.method.soft_label == 0.25
    hook.after_train(resumed)
    assert resumed.model.method.soft_label == 0.5


def test_soft_labels_of_another_method_are_refused():
    with pytest.raises(InputError, match="VDT has no soft labels; remove the hook"):
        SoftLabelRamp().before_train(Parts(model("VDT")))
    with pytest.raises(InputError, match="SoftLabelRamp: epochs=-1 should be 0 or more"):
        SoftLabelRamp(-1)


@pytest.mark.parametrize("name", ["SVPR-attributes", "TAGCLIP"])
def test_experts_of_other_methods_are_counted_and_change_nothing(name):
    network, found = model(name).train(), []
    for counts in (True, False):
        counter = UsageCounter(network.method)
        if counts:
            assert counter.start() == 1
        torch.manual_seed(0)
        found.append(run(network, loaded(batch()), "loss"))
        counter.stop()
        if counts:
            (usage,) = counter.take().values()
            assert usage.routed.sum() > 0
    assert found[0] == found[1]


def test_a_method_without_experts_is_told_and_trains_on(caplog):
    hook, runner = HOOKS.build({"type": "agreid_plugin.ExpertUsage"}), Parts(model("VDT"))
    for stage in (hook.before_train, hook.after_train_epoch, hook.after_train):
        stage(runner)
    assert "ExpertUsage: this VDT has no experts to count" in caplog.text


def test_identities_are_checked_where_both_sides_tell_them():
    check_identities({"num_ids": 4}, {"num_ids": 4})
    check_identities({"type": "mmpretrain.ImageClassifier"}, {"num_ids": 4})
    check_identities(nn.Linear(1, 1), {"num_ids": 4})
    check_identities({"num_ids": 4}, {})
    with pytest.raises(InputError, match="num_ids is 5, but the dataset has 4 identities to train on: set num_ids=4"):
        check_identities({"num_ids": 5}, {"num_ids": 4})


@pytest.mark.parametrize(
    ("said", "variant"),
    [
        ({"variant": "paper"}, "paper"),
        ({"backbone": {"variant": "released"}}, "released"),
        ({"variant": "paper", "backbone": {"variant": "released"}}, "paper"),
        ({"backbone": None}, ""),
    ],
)
def test_a_card_has_the_variant_of_the_model_or_of_its_backbone(said, variant):
    assert setup_facts(Config({"model": {"type": "agreid_plugin.ViSA", **said}}))["variant"] == variant


class Infos(list):
    def get_data_info(self, index: int) -> dict:
        return self[index]


def test_labels_that_a_method_needs_are_checked():
    infos = Infos({"img_path": f"{view}.jpg", "view": view} for view in (0, 1, UNKNOWN))
    check_training_labels(model("VIF").method, list_labeled_images(infos))
    with pytest.raises(InputError, match=r"VDT learns from the view of every image, but 1 of 3 .* for example -1\.jpg"):
        check_training_labels(model("VDT").method, list_labeled_images(infos))


def test_views_of_test_images_are_checked_where_they_are_given():
    records = [
        Record(f"{n}.jpg", n % 2, n, View.AERIAL if n else None, split=("query", "gallery")[n % 2]) for n in range(4)
    ]
    dataset = Dataset("Other", "", tuple(records))
    test_set = EvaluationSet(dataset, choose_protocols(dataset))
    check_test_labels(model("ViSA", view="predicted").method, test_set, "model.view")
    message = (
        r"ViSA needs the view of every test image, but 1 of Other have none, for example 0\.jpg; "
        r"set model\.view predicted$"
    )
    with pytest.raises(InputError, match=message):
        check_test_labels(model("ViSA").method, test_set, "model.view")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queries": 0}, "RankLists: queries=0 should be 1 or more"),
        ({"choice": "worse"}, r"RankLists: choice 'worse' unknown \(did you mean worst\?\)"),
    ],
)
def test_wrong_pictures_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        HOOKS.build({"type": "agreid_plugin.RankLists", **arguments})


@pytest.mark.parametrize("name", ["CARGO/ALL/Rank-1", "CARGO/AG-both/mAP", "CP2108/A2G/mINP", "metric"])
def test_the_best_of_a_protocol_needs_no_rule(name):
    hook = CheckpointHook(save_best=name)
    assert hook.key_indicators == [name]
    assert hook.rules == ["greater"]
    assert hook.is_better_than[name](51.0, 50.0)
