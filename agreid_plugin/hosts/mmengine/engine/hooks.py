"""Hooks of mmengine's Runner: learning guard, expert usage, results, run card, rank lists, shared statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dist import broadcast, get_world_size, is_main_process
from mmengine.hooks import CheckpointHook, Hook
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from mmengine.visualization import LocalVisBackend
from torch import Tensor

from agreid_plugin.engine import observers
from agreid_plugin.engine.checkpoints import tolerate_full_disk
from agreid_plugin.engine.observers import ExpertUsageLog, list_unreadable
from agreid_plugin.engine.report import report
from agreid_plugin.engine.run_card import Card, protocol_facts, weight_files
from agreid_plugin.errors import InputError, require_within, unknown
from agreid_plugin.evaluation.rank_lists import CHOICES, build_rank_lists, choose_queries
from agreid_plugin.evaluation.results import FILE_NAME as RESULTS
from agreid_plugin.hosts.mmengine.compat import HOST_FIXES
from agreid_plugin.hosts.mmengine.config.arguments import check_arguments
from agreid_plugin.hosts.mmengine.config.loading import PRETRAINED, each_dict, to_plain, type_name
from agreid_plugin.hosts.mmengine.engine.features import prepare_evaluation
from agreid_plugin.hosts.mmengine.engine.metrics import MultiProtocolMetric
from agreid_plugin.hosts.mmengine.engine.runner import (
    get_epoch,
    get_method,
    get_metrics,
    has_data,
    loops,
    metainfo,
    plain_model,
)
from agreid_plugin.hosts.mmengine.models.base import ReIDModel
from agreid_plugin.hosts.mmengine.registry import HOOKS
from agreid_plugin.visualize.ranks import draw_rank_sheet


@HOOKS.register_module()
class SyncBuffers(Hook):
    """Gives every process the main one's running statistics, which checkpoints keep, before it validates or tests.

    mmengine's SyncBuffersHook leaves those of averaged weights (EMA) as they are, and each process tests with its own.
    """

    priority = "BELOW_NORMAL"  # behind EMAHook, which puts averaged weights in for validation

    def after_train_epoch(self, runner: Runner) -> None:
        """Share what the epoch gathered, before a checkpoint is written."""
        self._share(runner)

    def before_val_epoch(self, runner: Runner) -> None:
        """Share what validation will use."""
        self._share(runner)

    def before_test_epoch(self, runner: Runner) -> None:
        """Share what the test will use."""
        self._share(runner)

    @staticmethod
    def _share(runner: Runner) -> None:
        for buffer in runner.model.buffers() if get_world_size() > 1 else ():
            broadcast(buffer)


@HOOKS.register_module()
class SoftLabelRamp(Hook):
    """Has the share of TAG-CLIP's soft labels grow from 0, iteration by iteration; a resumed run goes on there.

    Args:
        epochs: in which it grows.
    """

    def __init__(self, epochs: float = 1.0):
        self.epochs = require_within("SoftLabelRamp: epochs", epochs, 0, math.inf)
        self._share: float | None = None

    def before_train(self, runner: Runner) -> None:
        """Learn what share it grows to, the model's `soft_label`."""
        if self._share is None:
            self._share = getattr(get_method(runner), "soft_label", None)
        if self._share is None:
            raise InputError(f"SoftLabelRamp: {type(get_method(runner)).__name__} has no soft labels; remove the hook")

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:  # noqa: ARG002
        """Set the share of this iteration."""
        iterations = self.epochs * len(runner.train_dataloader)
        passed = min(runner.iter / iterations, 1.0) if iterations else 1.0
        get_method(runner).soft_label = self._share * passed
        runner.message_hub.update_scalar("train/soft_label", self._share * passed)

    def after_train(self, runner: Runner) -> None:
        """Leave the model with the share that it was built with."""
        get_method(runner).soft_label = self._share


RANK_LISTS = "rank_lists"


@HOOKS.register_module()
class LearningGuard(Hook):
    """Stops a run that learns nothing, with the reason in one line.

    It stops after a first optimizer step that changed no weight, at a loss that is NaN or infinite in any process, and
    at features that are alike after two epochs in a row. Accumulated gradients, steps that a loss scaler leaves out and
    a warm-up from zero are waited for.
    """

    priority = "LOWEST"  # behind whatever draws random numbers before a step

    def __init__(self) -> None:
        self._guard: observers.LearningGuard | None = None

    def before_train(self, runner: Runner) -> None:
        """Begin to watch."""
        wrapper = runner.optim_wrapper
        single = isinstance(wrapper, OptimWrapper)
        self._guard = observers.LearningGuard(
            plain_model(runner),
            wrapper.optimizer if single else None,
            loss_terms=loss_terms,
            images_and_paths=_images_and_paths,
            rate_key="optim_wrapper.optimizer.lr",
        )
        if not single:
            runner.logger.info("LearningGuard watches one optimizer; this run has several, whose steps go unwatched")

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:  # noqa: ARG002
        """Tell the guard which step comes."""
        self._guard.before_step(runner.iter)

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Judge losses that led to no step, and log how many weights the first one that did changed."""
        self._guard.judge_losses()
        if self._guard.changed is not None and "train/changed_weights" not in runner.message_hub.log_scalars:
            runner.message_hub.update_scalar("train/changed_weights", self._guard.changed)

    def after_train_epoch(self, runner: Runner) -> None:
        """Judge the features of the last batch, while there is something left to stop."""
        model, last = plain_model(runner), runner.epoch + 1 == runner.max_epochs
        if self._guard.inputs is not None and isinstance(model, ReIDModel) and not last:
            self._guard.judge_features(_features(model, **self._guard.inputs[1]))

    def after_train(self, runner: Runner) -> None:  # noqa: ARG002
        """Let go of the model and the optimizer."""
        if self._guard is not None:
            self._guard.stop()


def loss_terms(losses: Mapping[str, Tensor | Sequence[Tensor]]) -> dict[str, Tensor]:
    """Return what mmengine sums of what a model returns: entries with `loss` in their name, of lists the sum."""
    named = {name: value for name, value in losses.items() if "loss" in name}
    return {
        name: value.mean() if isinstance(value, Tensor) else sum(each.mean() for each in value)
        for name, value in named.items()
    }


def _images_and_paths(
    inputs: Tensor | None = None, data_samples: Sequence[Any] | None = None, **_: Any
) -> tuple[Tensor | None, Sequence[str] | None]:
    return inputs, [str(sample.get("img_path")) for sample in data_samples or ()]


def _features(model: ReIDModel, inputs: Tensor, data_samples: Sequence[Any], **_: Any) -> Tensor:
    """Return what a model compares images by that it has just learned from."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            return model(inputs, data_samples, mode="tensor")
    finally:
        for module, training in modes:
            module.training = training


@HOOKS.register_module()
class ExpertUsage(Hook):
    """Logs after each epoch what share of the training images, or tokens, every expert was given, in all processes.

    The shares are in the log, as `experts/<module>/<view>/<expert>` in the runner's visualizer, and there in the record
    of a validation: tools that read these records look for its numbers in each. An expert that nothing was sent to, or
    a whole group of them, is warned of.
    """

    def __init__(self) -> None:
        self._log: ExpertUsageLog | None = None

    def before_train(self, runner: Runner) -> None:
        """Begin to count."""
        self._log = ExpertUsageLog(get_method(runner), runner.logger)
        if not self._log.experts:
            # an ablation may have left them out of a recipe that has this hook
            runner.logger.warning("ExpertUsage: this %s has no experts to count", type(get_method(runner)).__name__)
            self._log = None

    def after_train_epoch(self, runner: Runner) -> None:
        """Log what was counted since the last epoch."""
        if self._log is not None:
            epoch = runner.epoch + 1
            shares = self._log.end_epoch(epoch)
            for backend in runner.visualizer._vis_backends.values():
                if not isinstance(backend, LocalVisBackend):  # whose file holds the records
                    backend.add_scalars(shares, step=epoch)
            for name, share in shares.items():
                runner.message_hub.update_scalar(f"val/{name}", share)

    def after_train(self, runner: Runner) -> None:  # noqa: ARG002
        """Let go of the model."""
        if self._log is not None:
            self._log.stop()


@HOOKS.register_module()
class RunCard(Hook):
    """Writes run_card.json when training starts, and into it what the run costs after each epoch and at its end."""

    def __init__(self) -> None:
        self._card: Card | None = None

    def before_train(self, runner: Runner) -> None:
        """Begin the card."""
        if is_main_process() and has_data(runner):
            self._batch = batch_facts(runner)
            self._card = training_card(runner, self._batch)

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Count a batch."""
        if self._card is not None:
            self._card.images += self._batch["per_process"] * self._batch["processes"]

    def after_train_epoch(self, runner: Runner) -> None:  # noqa: ARG002
        """Keep what the run has cost so far."""
        if self._card is not None:
            self._card.update()

    def after_train(self, runner: Runner) -> None:  # noqa: ARG002
        """End the card."""
        self.end()

    def end(self, error: BaseException | None = None) -> None:
        """End the card, with the kind of error that ended the run, if one did."""
        if self._card is not None:
            self._card.end(error)
        self._card = None


@contextmanager
def close_run_cards(runner: Runner) -> Iterator[None]:
    """End run cards with an error that leaves the block: the host does not hand it to hooks."""
    try:
        yield
    except BaseException as error:
        for hook in runner.hooks:
            if isinstance(hook, RunCard):
                hook.end(error)
        raise


@HOOKS.register_module()
class Results(Hook):
    """Writes results.json after each validation and test, with a table of the same in the log.

    It also has models of other toolboxes give our metrics their features, see `prepare_evaluation`, and lists images
    that a dataset with `bad_images="skip"` could not read.
    """

    def before_train(self, runner: Runner) -> None:
        """Refuse to select the best model by a number that no validation will give."""
        known = [name for metric in get_metrics(loops(runner).get("val")) for name in metric.names()]
        if not known:
            return
        for hook in runner.hooks:
            wanted = getattr(hook, "save_best", None) if isinstance(hook, CheckpointHook) else None
            for name in [wanted] if isinstance(wanted, str) else wanted or []:
                if name not in ("auto", *known):
                    raise unknown("default_hooks.checkpoint.save_best", name, known)

    def before_val_epoch(self, runner: Runner) -> None:
        """Make ready for our metrics."""
        prepare_evaluation(runner, get_metrics(loops(runner).get("val")))

    def before_test_epoch(self, runner: Runner) -> None:
        """Make ready for our metrics."""
        prepare_evaluation(runner, get_metrics(loops(runner).get("test")))

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:  # noqa: ARG002
        """Write what validation gave."""
        self._report(runner, "val")

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:  # noqa: ARG002
        """Write what the test gave."""
        self._report(runner, "test")

    def after_train(self, runner: Runner) -> None:
        """List the training images that were passed over."""
        list_unreadable(getattr(runner.train_dataloader.dataset, "bad_images", None), runner.work_dir, runner.logger)

    @staticmethod
    def _report(runner: Runner, name: str) -> None:
        metrics = get_metrics(loops(runner).get(name))
        for metric in metrics:
            metric.list_unreadable(runner.work_dir)
        found = [entry for metric in metrics if metric.evaluation for entry in metric.evaluation.metrics]
        if found and is_main_process():
            path = Path(runner.work_dir) / RESULTS
            with tolerate_full_disk(path):
                report(path, found, logger=runner.logger)


@HOOKS.register_module()
@check_arguments()
class RankLists(Hook):
    """Draws some queries with the first images of their rankings, marked as right or wrong, with view and camera.

    Pictures go through the runner's visualizer and, as PNG, into `rank_lists` in its folder, which holds the last ones.

    Args:
        queries: of each protocol.
        top: images of each query.
        choice: `even`, some all along the set; `worst` or `best`, those of least or most average precision; `random`.
        protocols: names, as `A2G`; all without any.
        interval: epochs of training between pictures; 0 for those of the last epoch, and of tests, only.
    """

    def __init__(
        self, queries: int = 8, top: int = 10, choice: str = "even", protocols: Sequence[str] = (), interval: int = 0
    ):
        for name, value, least in (("queries", queries, 1), ("top", top, 1), ("interval", interval, 0)):
            if value < least:
                raise InputError(f"RankLists: {name}={value} should be {least} or more")
        if choice not in CHOICES:
            raise unknown("RankLists: choice", choice, CHOICES)
        self.queries, self.top, self.choice, self.interval = queries, top, choice, interval
        self.protocols = tuple(protocols)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:  # noqa: ARG002
        """Draw if it is time."""
        train, done = loops(runner).get("train"), get_epoch(runner)
        is_last = train is None or done == train.max_epochs
        if is_last or (self.interval and done % self.interval == 0):
            self._draw(runner, "val", done)

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:  # noqa: ARG002
        """Draw."""
        self._draw(runner, "test", get_epoch(runner))

    def _draw(self, runner: Runner, loop: str, step: int) -> None:
        if not is_main_process():
            return
        for metric in get_metrics(loops(runner).get(loop)):
            for name in self._names(metric):
                self._draw_protocol(runner, metric, name, step)

    def _names(self, metric: MultiProtocolMetric) -> list[str]:
        known = metric.test_set.protocols
        for name in self.protocols:
            if name not in known:
                raise unknown("RankLists: protocol", name, known)
        return list(self.protocols or known)

    def _draw_protocol(self, runner: Runner, metric: MultiProtocolMetric, name: str, step: int) -> None:
        protocol = metric.test_set.protocols[name]
        found = next(entry for entry in metric.evaluation.metrics if entry.protocol == str(protocol))
        rows = choose_queries(found.per_query, self.queries, self.choice)
        label = str(protocol).replace("/", "_")  # a backend that keeps files would lose names with a folder in them
        folder = Path(runner.work_dir) / RANK_LISTS / label
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("query_*.png"):  # of an earlier epoch, which chose other queries
            old.unlink()
        for ranking in build_rank_lists(metric.evaluation.features, protocol, metric.comparison, rows, self.top):
            picture = draw_rank_sheet([ranking], f"{protocol}, query {ranking.row}")
            picture.save(folder / f"query_{ranking.row:05d}.png")
            runner.visualizer.add_image(f"{RANK_LISTS}_{label}_{ranking.row}", np.asarray(picture), step)


def training_card(runner: Runner, batch: Mapping[str, int]) -> Card:
    """Begin the card of a training run."""
    resumed = runner.iter > 0
    initial = None if resumed else runner.cfg.get("load_from")
    return Card(
        runner.work_dir,
        task="train",
        seed=runner.seed,
        resumed=resumed,
        config_file=runner.cfg.filename or "",
        batch=dict(batch),
        datasets=fingerprints(runner),
        weights=weight_files(initial=initial, **pretrained_files(runner.cfg)),
        **protocol_facts([metric.test_set for metric in get_metrics(loops(runner).get("val"))]),
        **card_facts(runner.cfg),
    )


def card_facts(cfg: Config) -> dict[str, Any]:
    """Return what the cards of training and of evaluation record alike."""
    return {
        "config": to_plain(cfg.to_dict()),
        "host": "mmengine",
        "processes": get_world_size(),
        "host_fixes": HOST_FIXES.applied(),
        "setup": setup_facts(cfg),
    }


def setup_facts(cfg: Config) -> dict[str, Any]:
    """Return what a configuration of either host records of a run, by the same names."""
    model, optimizer = cfg.get("model") or {}, (cfg.get("optim_wrapper") or {}).get("optimizer") or {}
    tests = [cfg.get("test_dataloader"), cfg.get("val_dataloader")]
    sizes = [part["size"] for _, part in each_dict(tests) if type_name(part) == "Resize" and "size" in part]
    return {
        "architecture": type_name(model),
        "variant": model.get("variant") or (model.get("backbone") or {}).get("variant", ""),
        "input": to_plain(sizes[0]) if sizes else None,
        "epochs": (cfg.get("train_cfg") or {}).get("max_epochs"),
        "optimizer": type_name(optimizer) or None,
        "learning_rate": optimizer.get("lr"),
    }


def batch_facts(runner: Runner) -> dict[str, int]:
    """Return how many images a step of the optimizer is made of, and of how many each process has its share."""
    loader = runner.train_dataloader
    per_process = loader.batch_size or getattr(loader.batch_sampler, "batch_size", 0)
    times = getattr(runner.optim_wrapper, "_accumulative_counts", 1)
    return {
        "per_process": per_process,
        "processes": get_world_size(),
        "accumulation": times,
        "global": per_process * get_world_size() * times,
    }


def fingerprints(runner: Runner) -> dict[str, str]:
    """Return the fingerprints of the run's datasets by name."""
    abouts = [metainfo(loop.dataloader) for loop in loops(runner).values()]
    return {about["name"]: about["fingerprint"] for about in abouts if {"name", "fingerprint"} <= set(about)}


def pretrained_files(cfg: Config) -> dict[str, str]:
    """Return the files that parts of the model start from."""
    found = []
    for _, part in each_dict(cfg.get("model")):
        found.append(part.get("checkpoint") if type_name(part) == PRETRAINED else part.get("pretrained"))
    names = [name for name in dict.fromkeys(filter(None, found)) if isinstance(name, str)]
    return {"pretrained" if place == 0 else f"pretrained_{place + 1}": name for place, name in enumerate(names)}
