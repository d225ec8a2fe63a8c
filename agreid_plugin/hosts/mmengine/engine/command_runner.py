"""mmengine's runner as the `fastreid` command has it."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from mmengine.dist import all_gather_object, is_main_process
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import BaseLoop, Runner
from mmengine.visualization import LocalVisBackend, TensorboardVisBackend, Visualizer
from torch import nn
from torch.optim import Optimizer

from agreid_plugin.engine import console
from agreid_plugin.engine.checkpoints import (
    of_another,
    require_filled,
    require_folder,
    require_same_place,
    spare_tensorboard,
    sparing,
)
from agreid_plugin.engine.report import speak_through
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.engine.checkpoints import newest
from agreid_plugin.hosts.mmengine.engine.loop import ResumableEpochLoop
from agreid_plugin.hosts.mmengine.engine.weights import FASTREID
from agreid_plugin.inference.weights import plain_name

NOISE = (
    *('"FileClient" will be deprecated', '"HardDiskBackend" is the alias', "`save_param_scheduler` is True but"),
    *("Distributed training is not used, all SyncBatchNorm", "paramwise_options -- ", "Exp name: "),
    "is skipped since its requires_grad=False",
)
"""Parts of mmengine's messages that no user can act on; the log file has them."""


class CommandRunner(Runner):
    """mmengine's runner with a log that is readable on a terminal; all of it is in the file."""

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        """Build the logger, and let this package speak through it."""
        logger = super().build_logger(*args, **kwargs)
        console.tidy(logger, NOISE)
        speak_through(logger)
        return logger

    def build_visualizer(self, visualizer: Visualizer | dict | None = None) -> Visualizer:
        """Build the visualizer, whose numbers a full disk may cost, but not the run."""
        built = super().build_visualizer(visualizer)
        if is_main_process():  # the others write nothing
            spare_numbers(built)
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
    return of_another("model" if is_of_model else "optimizer", lines[1] if is_of_model and lines[1:] else lines[0])


def _optimizers(wrapper: OptimWrapper | OptimWrapperDict) -> list[Optimizer]:
    return [each.optimizer for each in (wrapper.values() if isinstance(wrapper, OptimWrapperDict) else [wrapper])]


def spare_numbers(visualizer: Visualizer) -> None:
    """Have a full disk cost a run's files of numbers what they were to hold."""
    for backend in visualizer._vis_backends.values():
        if isinstance(backend, TensorboardVisBackend):
            spare_tensorboard(backend.experiment)
        elif isinstance(backend, LocalVisBackend):
            path = Path(backend.experiment._scalar_save_file)
            backend.add_scalar, backend.add_scalars = sparing(path, backend.add_scalar, backend.add_scalars)
