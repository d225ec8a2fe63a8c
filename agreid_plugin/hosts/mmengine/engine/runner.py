"""mmengine's Runner as recipes have it, and what hooks ask a Runner for."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import all_gather_object, is_main_process
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import BaseLoop, Runner
from mmengine.visualization import LocalVisBackend, TensorboardVisBackend, Visualizer
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from agreid_plugin.engine.checkpoints import (
    make_tensorboard_tolerant,
    make_tolerant,
    mismatch_error,
    require_filled,
    require_folder,
    require_same_place,
)
from agreid_plugin.engine.distributed.process_group import report_step
from agreid_plugin.engine.report import forward_logs, tidy_console
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.config.loading import type_name
from agreid_plugin.hosts.mmengine.data.samplers import PER_IDENTITY, IdentitySampler, ViewBalancedIdentitySampler
from agreid_plugin.hosts.mmengine.engine.checkpoint_reader import FASTREID
from agreid_plugin.hosts.mmengine.engine.checkpoints import newest
from agreid_plugin.hosts.mmengine.engine.loop import ResumableEpochLoop
from agreid_plugin.hosts.mmengine.engine.metrics import MultiProtocolMetric
from agreid_plugin.hosts.mmengine.models.base import ReIDModel
from agreid_plugin.hosts.mmengine.registry import RUNNERS
from agreid_plugin.inference.weights import plain_name

NOISE = (
    *('"FileClient" will be deprecated', '"HardDiskBackend" is the alias', "`save_param_scheduler` is True but"),
    *("Distributed training is not used, all SyncBatchNorm", "paramwise_options -- ", "Exp name: "),
    "is skipped since its requires_grad=False",
)
"""Parts of mmengine's messages that no user can act on; the log file has them."""


@RUNNERS.register_module()
class ReIDRunner(Runner):
    """mmengine's runner with exact resume, whole checkpoints, and a log that is readable on a terminal.

    The `fastreid` command takes it where a configuration names no other; for mmengine's own tools recipes have
    `runner_type = "agreid_plugin.ReIDRunner"`, with which their runs are those of the command.
    """

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        """Build the logger, and let this package speak through it."""
        logger = super().build_logger(*args, **kwargs)
        tidy_console(logger, NOISE)
        forward_logs(logger)
        return logger

    def build_visualizer(self, visualizer: Visualizer | dict | None = None) -> Visualizer:
        """Build the visualizer, whose numbers a full disk may cost, but not the run."""
        built = super().build_visualizer(visualizer)
        if is_main_process():  # the others write nothing
            make_visualizer_tolerant(built)
        return built

    def build_train_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        """Build our loop of epochs where the configuration asks for mmengine's."""
        if isinstance(loop, dict) and "type" not in loop and loop.get("by_epoch"):
            loop = {key: value for key, value in loop.items() if key != "by_epoch"}
            return ResumableEpochLoop(self, self._train_dataloader, **loop)
        return super().build_train_loop(loop)

    def load_or_resume(self) -> None:
        """Load or resume, from the newest checkpoint that is whole."""
        if self._resume and self._load_from is None and not self._has_loaded:
            self._load_from = newest(self.work_dir)
            require_same_place(all_gather_object(self._load_from and Path(self._load_from).name))
        super().load_or_resume()

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Save a checkpoint; where the run's folder is gone, mmengine would make one with nothing else in it."""
        if is_main_process():
            require_folder(Path(self.work_dir))
        super().save_checkpoint(*args, **kwargs)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Load weights, at least one of the model's; those that a run goes on with have to be all of them."""
        checkpoint = super().load_checkpoint(*args, **({"strict": True} if self._resume else {}), **kwargs)
        _require_weights(self.model, checkpoint)
        return checkpoint

    def resume(self, *args: Any, **kwargs: Any) -> None:
        """Go on from a checkpoint, or say that it is of another model or optimizer."""
        try:
            super().resume(*args, **kwargs)
        except (ValueError, LookupError, RuntimeError) as error:
            misfit = _misfit(error)
            if misfit is None:
                raise
            raise misfit from None
        for optimizer in _optimizers(self.optim_wrapper):
            require_filled(optimizer)


def _require_weights(model: nn.Module, checkpoint: dict[str, Any]) -> None:
    """Refuse a checkpoint with nothing of the model, from which mmengine would train as if from scratch."""
    stored = checkpoint.get("state_dict", checkpoint.get(FASTREID, checkpoint))
    wanted = {plain_name(name) for name in model.state_dict()}
    if wanted.isdisjoint(map(plain_name, stored)):
        raise InputError(
            f"load_from fits 0 of the model's {len(wanted)} tensors: it was made for another model, or has no weights"
        )


def _misfit(error: Exception) -> InputError | None:
    """Return what a state that does not fit is told as; mmengine says of a model in the second line what is wrong."""
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, InputError) or "load_state_dict" not in frames:
        return None
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    is_of_model = "load_checkpoint" in frames
    return mismatch_error("model" if is_of_model else "optimizer", lines[1] if is_of_model and lines[1:] else lines[0])


def _optimizers(wrapper: OptimWrapper | OptimWrapperDict) -> list[Optimizer]:
    return [each.optimizer for each in (wrapper.values() if isinstance(wrapper, OptimWrapperDict) else [wrapper])]


def make_visualizer_tolerant(visualizer: Visualizer) -> None:
    """Have a full disk cost a run's files of numbers what they were to hold."""
    for backend in visualizer._vis_backends.values():
        if isinstance(backend, TensorboardVisBackend):
            make_tensorboard_tolerant(backend.experiment)
        elif isinstance(backend, LocalVisBackend):
            path = Path(backend.experiment._scalar_save_file)
            backend.add_scalar, backend.add_scalars = make_tolerant(path, backend.add_scalar, backend.add_scalars)


OURS = (IdentitySampler.__name__, ViewBalancedIdentitySampler.__name__)


class StepReporter(Hook):
    """Reports the step of this process to the others."""

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:  # noqa: ARG002
        """Report the step."""
        report_step(runner.iter)


def check_batches(cfg: Config, world_size: int) -> None:
    """Check that several processes can fill their batches of identities, as many as the model is said to learn.

    That the training set has so many, `IdentityCheck` finds out. A model that does not say is left to the sampler.
    """
    sampler, found = cfg.train_dataloader.get("sampler"), (cfg.get("model") or {}).get("num_ids")
    if world_size == 1 or found is None or type_name(sampler) not in OURS:
        return
    batch, per_identity = sampler.get("batch_size", 0), sampler.get("per_identity", PER_IDENTITY)
    needed = batch * world_size // max(per_identity, 1)
    if found < needed:
        raise InputError(
            f"{type_name(sampler)}: {world_size} processes with a batch of {batch} and {per_identity} images each take "
            f"{needed} identities, the training set has {found}; lower batch_size or raise per_identity"
        )


def plain_model(runner: Runner) -> nn.Module:
    """Return the model, taken out of a wrapper for many processes, and of one for test-time augmentation."""
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    return model.module if isinstance(model, BaseTTAModel) else model


def compile_model(runner: Runner, compile_step: Callable[[str], None], target: str) -> None:
    """Compile what `compile` asks for: of a model of ours the network, of another what mmengine compiles.

    Args:
        runner: the Runner, its model wrapped already.
        compile_step: mmengine's own, which compiles the training step with the optimizer's.
        target: the method that it compiles.
    """
    options, model = runner.cfg.get("compile"), plain_model(runner)
    if not options:
        return
    if isinstance(model, ReIDModel) and isinstance(options, bool | dict):
        model.compile_network(**({} if options is True else options))
        runner.logger.info("the network is compiled: the first iterations take long")
        return
    for optimizer in _optimizers(runner.optim_wrapper):  # groups of `paramwise_cfg` are no plain dictionaries for torch
        optimizer.param_groups[:] = map(dict, optimizer.param_groups)
    compile_step(target)


def get_method(runner: Runner) -> nn.Module:
    """Return the method inside a model of ours, any other model itself."""
    model = plain_model(runner)
    return getattr(model, "method", model)


def loops(runner: Runner) -> dict[str, BaseLoop]:
    """Return the loops that have been built, by `train`, `val` and `test`.

    Asking the runner for one would build it, with its dataset.
    """
    found = {"train": runner._train_loop, "val": runner._val_loop, "test": runner._test_loop}
    return {name: loop for name, loop in found.items() if isinstance(loop, BaseLoop)}


def has_data(runner: Runner) -> bool:
    """Return whether there is a loader to train with; mmpretrain's `vis_scheduler.py` has batches of nothing."""
    return isinstance(runner.train_dataloader, DataLoader)


def get_epoch(runner: Runner) -> int:
    """Return how many epochs are done, 0 where nothing is trained."""
    train = loops(runner).get("train")
    return 0 if train is None else train.epoch


def get_metrics(loop: BaseLoop | None) -> list[MultiProtocolMetric]:
    """Return the metrics of ours that a loop of validation or test computes."""
    metrics = loop.evaluator.metrics if loop is not None else []
    return [each for each in metrics if isinstance(each, MultiProtocolMetric)]


def metainfo(loader: DataLoader) -> dict[str, Any]:
    """Return what the dataset of a loader tells of itself; nothing of one that does not."""
    return getattr(loader.dataset, "metainfo", {})
