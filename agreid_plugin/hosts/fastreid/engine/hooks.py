"""Hooks of fast-reid's trainer: its own, mended, learning guard, expert usage, unreadable images, run card."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import yaml
from fastreid.engine import hooks
from fastreid.evaluation import inference_context
from fastreid.utils import comm
from fastreid.utils.events import EventWriter, get_event_storage
from torch import Tensor, nn

from agreid_plugin.data.bad_images import BadImages
from agreid_plugin.engine import observers
from agreid_plugin.engine.distributed.process_group import report_step
from agreid_plugin.engine.observers import ExpertUsageLog, list_unreadable
from agreid_plugin.engine.run_card import Card, protocol_facts, weight_files
from agreid_plugin.hosts.fastreid.compat import HOST_FIXES
from agreid_plugin.hosts.fastreid.data import loaders
from agreid_plugin.hosts.fastreid.engine.distributed import plain
from agreid_plugin.hosts.fastreid.engine.loop import BEST, FINAL, make_checkpoint_name
from agreid_plugin.hosts.fastreid.models.base import get_method_class
from agreid_plugin.nn.expert_usage import Mixture


class StepReporter(hooks.HookBase):
    """Reports the step of this process to the others."""

    def before_step(self) -> None:
        """Report the step."""
        report_step(self.trainer.iter)


class EvalHook(hooks.EvalHook):
    """Evaluates every `eval_period` epochs and after the last one; with 0 after the last one only.

    The host divides by 0, and evaluates at the end of training, when the last checkpoint is written without its metric.
    """

    def after_epoch(self) -> None:
        """Evaluate if it is time."""
        epoch = self.trainer.epoch + 1
        if epoch == self.trainer.max_epoch or (self._period and epoch % self._period == 0):
            self._do_eval()

    def after_train(self) -> None:
        """Let go of the trainer."""
        del self._func


class PeriodicCheckpointer(hooks.HookBase):
    """Saves every `period` epochs (0: at the end only) in all processes; the best model stays the best after a resume.

    The host's hook runs in the main process only, which does not know the random numbers of the others.
    """

    def __init__(self, period: int):
        self._period = period

    def after_epoch(self) -> None:
        """Save what is due."""
        trainer = self.trainer
        last = trainer.epochs_done == trainer.max_epoch
        if not last and (not self._period or trainer.epochs_done % self._period):
            return
        latest = get_event_storage().latest()  # our evaluation gives one number, however many test sets there are
        trainer.metric = latest["metric"][0] if "metric" in latest else trainer.metric
        names = [FINAL if last else make_checkpoint_name(trainer.epochs_done, 0)]
        if trainer.metric > trainer.best_metric:
            trainer.best_metric = trainer.metric
            names.insert(0, BEST)  # the other one has to be the last for a run that is killed in between
        trainer.save(*names)


class PeriodicWriter(hooks.PeriodicWriter):
    """Opens its writers when training starts, and writes once more before it closes them."""

    def __init__(self, open_writers: Callable[[], list[EventWriter]], period: int):
        super().__init__([], period)
        self._open_writers = open_writers

    def before_train(self) -> None:
        """Open the writers."""
        self._writers = self._open_writers()

    def after_train(self) -> None:
        """Write what is new and close."""
        for writer in self._writers:
            writer.write()
        super().after_train()


_logger = logging.getLogger("fastreid.train")


class WeightAverage(hooks.HookBase):
    """Puts the mean of the weights after each epoch from `start` on into the model when the last one ends (SWA).

    The host's hook sets the trainer's optimizer, which cannot be set. Running statistics are averaged, too, and
    computed anew by `TEST.PRECISE_BN`. A checkpoint keeps the mean so far.
    """

    def __init__(self, start: int):
        self._start, self._epochs = start, 0
        self._mean: dict[str, Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the mean and of how many epochs it is."""
        return {"epochs": self._epochs, "mean": self._mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the mean of a checkpoint."""
        self._epochs, self._mean = state["epochs"], dict(state["mean"])

    def before_train(self) -> None:
        """Warn of a run that goes on after `start` without a mean."""
        if self.trainer.start_epoch >= self._start and not self._epochs:
            _logger.warning(
                "the mean of weights begins with epoch %d: the checkpoint has none", self.trainer.start_epoch + 1
            )

    def after_epoch(self) -> None:
        """Add the weights of this epoch, and take the mean over after the last one."""
        epoch, model = self.trainer.epoch + 1, plain(self.trainer.model)
        if epoch < self._start:
            return
        self._epochs += 1
        for name, value in model.state_dict().items():
            mean = self._mean.get(name, value).to(value.device)
            self._mean[name] = mean + (value - mean) / self._epochs if value.is_floating_point() else value.clone()
        if epoch == self.trainer.max_epoch:
            model.load_state_dict(self._mean)
            _logger.info("the final weights are the mean of %d epochs", self._epochs)


class LearningGuard(hooks.HookBase):
    """Stops a run that learns nothing; see `agreid_plugin.engine.observers.LearningGuard`.

    fast-reid on torch >= 2 trains for days without an error and changes no weight. Losses are judged where the host
    logs them, before the optimizer's step; see the host fix `stop_together`.
    """

    _guard: observers.LearningGuard | None = None

    def before_train(self) -> None:
        """Begin to watch the model and the optimizer."""
        self._guard = observers.LearningGuard(
            plain(self.trainer.model),
            self.trainer.optimizer,
            images_and_paths=_images_and_paths,
            rate_key="SOLVER.BASE_LR",
            other_tensors="fast-reid's flat buffer on torch >= 2",
        )
        self._logged = False
        self.trainer._trainer.guard = self._guard

    def before_step(self) -> None:
        """Tell the guard which step comes."""
        self._guard.before_step(self.trainer.iter)

    def after_step(self) -> None:
        """Log how many weights the first step changed."""
        if self._guard.changed is not None and not self._logged:
            get_event_storage().put_scalar("changed_weights", self._guard.changed, smoothing_hint=False)
            self._logged = True

    def after_epoch(self) -> None:
        """Judge the features of the last batch, once warm-up is over and while there is something left to stop."""
        warm, last = self.trainer.iter >= self.trainer.warmup_iters, self.trainer.epoch + 1 == self.trainer.max_epoch
        if self._guard.inputs is not None and warm and not last:
            self._guard.judge_features(self._features())

    def after_train(self) -> None:
        """Let go of the model; also after an error before training."""
        if self._guard is not None:
            self._guard.stop()
        self.trainer._trainer.guard = None

    def _features(self) -> Tensor:
        ((inputs, *_), _), model = self._guard.inputs, plain(self.trainer.model)
        images = {name: value for name, value in inputs.items() if name != "tokens"}  # sentences would be read in vain
        with inference_context(model), torch.no_grad():
            return model(images)


def _images_and_paths(inputs: dict[str, Any]) -> tuple[Tensor | None, Sequence[str] | None]:
    return inputs.get("images"), inputs.get("img_paths")


def has_experts(model: nn.Module) -> bool:
    """Return whether a model sends things to experts."""
    return any(isinstance(module, Mixture) for module in model.modules())


class ExpertUsage(hooks.HookBase):
    """Logs after each epoch how much every expert was given; see `ExpertUsageLog`.

    The shares are in metrics.json and TensorBoard, too.
    """

    def before_train(self) -> None:
        """Begin to count."""
        self._log = ExpertUsageLog(plain(self.trainer.model), _logger)

    def after_epoch(self) -> None:
        """Log what was counted since the last epoch."""
        shares = self._log.end_epoch(self.trainer.epoch + 1)
        for name, share in shares.items() if comm.is_main_process() else ():
            get_event_storage().put_scalar(name, share, smoothing_hint=False)

    def after_train(self) -> None:
        """Let go of the model."""
        self._log.stop()


class UnreadableImages(hooks.HookBase):
    """Lists the training images that all processes passed over (`DATASETS.BAD_IMAGES: skip`) after the last epoch.

    Args:
        bad_images: those of this process.
    """

    def __init__(self, bad_images: BadImages):
        self._bad_images = bad_images

    def after_epoch(self) -> None:
        """Write the list."""
        if self.trainer.epoch + 1 == self.trainer.max_epoch:
            list_unreadable(self._bad_images, self.trainer.cfg.OUTPUT_DIR, logging.getLogger("fastreid.data"))


class RunCard(hooks.HookBase):
    """Writes run_card.json when training starts, and into it what the run costs after each epoch and at its end."""

    def before_train(self) -> None:
        """Begin the card."""
        cfg, processes = self.trainer.cfg, comm.get_world_size()
        pretrained = cfg.MODEL.BACKBONE.PRETRAIN_PATH if cfg.MODEL.BACKBONE.PRETRAIN else ""
        self._card = Card(
            cfg.OUTPUT_DIR,
            task="train",
            config_file=self.trainer.config_file,
            resumed=self.trainer.iter > 0,
            batch={
                "per_process": cfg.SOLVER.IMS_PER_BATCH // processes,
                "processes": processes,
                "accumulation": 1,
                "global": cfg.SOLVER.IMS_PER_BATCH,
            },
            datasets=loaders.compute_fingerprints(cfg),
            weights=weight_files(
                initial=cfg.MODEL.WEIGHTS, pretrained=pretrained, **get_method_class(cfg).weight_files(cfg)
            ),
            **protocol_facts(self.trainer.test_sets),
            **card_facts(cfg),
        )

    def after_step(self) -> None:
        """Count a batch."""
        self._card.images += self.trainer.cfg.SOLVER.IMS_PER_BATCH

    def after_epoch(self) -> None:
        """Keep what the run has cost so far."""
        self._card.update()

    def after_train(self) -> None:
        """End the card; the host comes here with an error under way, too."""
        if hasattr(self, "_card"):
            self._card.end(sys.exc_info()[1])


def card_facts(cfg) -> dict[str, Any]:
    """Return what the cards of training and of evaluation record alike."""
    return {
        "config": yaml.safe_load(cfg.dump()),
        "host": "fast-reid",
        "processes": comm.get_world_size(),
        "seed": cfg.SEED,
        "host_fixes": HOST_FIXES.applied(),
        "setup": setup_facts(cfg),
    }


def setup_facts(cfg) -> dict[str, Any]:
    """Return what a configuration of either host records of a run, by the same names."""
    architecture = cfg.MODEL.META_ARCHITECTURE
    return {
        "architecture": architecture,
        "variant": getattr(getattr(cfg.MODEL, architecture.upper(), None), "VARIANT", ""),
        "input": list(cfg.INPUT.SIZE_TEST),
        "epochs": cfg.SOLVER.MAX_EPOCH,
        "optimizer": cfg.SOLVER.OPT,
        "learning_rate": cfg.SOLVER.BASE_LR,
    }
