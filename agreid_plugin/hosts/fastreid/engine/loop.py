"""fast-reid's training loop with checkpoints: it can be left after any step and entered there again."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from fastreid.engine import DefaultTrainer
from fastreid.utils import comm
from fastreid.utils.checkpoint import Checkpointer
from fastreid.utils.events import EventStorage
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from agreid_plugin.data.rng import random_state, restore_random_state
from agreid_plugin.engine.checkpoints import (
    keep_last,
    mismatch_error,
    read_newest,
    remove_temp_files,
    require_filled,
    require_folder,
    require_same_place,
    write_checkpoint,
)
from agreid_plugin.engine.signals import Interruption, agree_on_signal
from agreid_plugin.errors import InputError, Stopped, first_line
from agreid_plugin.hosts.fastreid.engine.solver import continue_schedule
from agreid_plugin.nn.checkpoints import read_checkpoint

_logger = logging.getLogger("fastreid.train")


class ResumableTrainer(DefaultTrainer):
    """`DefaultTrainer` that goes on exactly where a checkpoint was written, and saves one when it is asked to stop.

    Attributes:
        epochs_done: epochs that have ended, evaluation apart.
        metric: the last number that selects the best model.
        best_metric: the highest of them.
        interruption: tells of signals.
    """

    def __init__(self, cfg):
        self.metric = self.best_metric = -1.0
        self.start_iter = self.epochs_done = 0
        self.random_states: list[dict[str, Any]] = []
        self.interruption = Interruption()
        self._saved_at = (-1, -1)
        self._finished = False
        super().__init__(cfg)
        if self.grad_scaler is not None:
            self.checkpointer.checkpointables["grad_scaler"] = self.grad_scaler

    def resume(self) -> bool:
        """Take over the run in `OUTPUT_DIR`, if there is one that has written a checkpoint."""
        folder = Path(self.cfg.OUTPUT_DIR)
        if comm.is_main_process():
            remove_temp_files(folder)
        found = read_last(folder)
        require_same(found)
        if found is None:
            return False
        _logger.info("resumed from %s", found[0])
        restore(self, found[1])
        loader = self._trainer.data_loader
        loader.batch_sampler.start = self.start_iter
        self._trainer._data_loader_iter = iter(loader)
        return True

    def save(self, *names: str) -> None:
        """Write checkpoints of this moment, with all that the run needs.

        Every process has to ask; the names are the main one's.
        """
        state = run_state(self)
        self._saved_at = (self.epochs_done, self.iter)  # in all processes, which have to agree on what is left to do
        if not comm.is_main_process():
            return
        for name in names:
            written = self.checkpointer.save(name, **state, metric=self.metric, best_metric=self.best_metric)
            self._finished |= written and name == FINAL
        keep_last(list_checkpoints(Path(self.cfg.OUTPUT_DIR)), self.cfg.SOLVER.KEEP_CHECKPOINTS)

    def run(self) -> None:
        """Train from where the run stands to its end.

        Raises:
            Stopped: a signal asked for it; a checkpoint is written.
            InputError: the final checkpoint could not be written.
        """
        self.iter, self.epochs_done = self.start_iter, self.start_epoch
        within = self.start_iter - self.start_epoch * self.iters_per_epoch
        _logger.info("Starting training from epoch %d%s", self.start_epoch, f", iteration {within}" if within else "")
        with EventStorage(self.start_iter) as self.storage, self.interruption.deferred():
            try:
                self.before_train()
                if len(self.random_states) == comm.get_world_size():
                    restore_random_state(self.random_states[comm.get_rank()])
                for epoch in range(self.start_epoch, self.max_epoch):
                    self.epoch = epoch
                    self._run_epoch()
            except Exception:
                _logger.exception("Exception during training:")
                raise
            finally:
                self.after_train()
        if comm.is_main_process() and not self._finished:
            raise InputError(
                f"{self.cfg.OUTPUT_DIR}: the final checkpoint was not written; make room and continue with --resume"
            )

    def after_train(self) -> None:
        """End the hooks, with the last step that was made as the last one told of."""
        self.storage.iter = self.iter - 1
        for hook in self._hooks:
            hook.after_train()

    def _run_epoch(self) -> None:
        self.before_epoch()
        end, every = (self.epoch + 1) * self.iters_per_epoch, self.cfg.SOLVER.CHECKPOINT_ITERS
        while self.iter < end:
            self._stop_if_asked()
            self.before_step()
            self.run_step()
            self.after_step()
            self.iter += 1
            if every and self.iter % every == 0 and self.iter < end:
                self.save(self._name())
        self._stop_if_asked()
        self.epochs_done = self.epoch + 1
        self.after_epoch()

    def _stop_if_asked(self) -> None:
        number = agree_on_signal(self.interruption.asked)
        if number is None:
            return
        if self._saved_at != (self.epochs_done, self.iter):
            self.save(self._name())
        comm.synchronize()  # a process that has gone would have its launcher end the one that writes
        raise Stopped(number)

    def _name(self) -> str:
        return make_checkpoint_name(self.epochs_done, self.iter - self.epochs_done * self.iters_per_epoch)


_logger = logging.getLogger("fastreid.checkpoint")

NAMES = re.compile(r"model_(\d+(_\d+)?|final|best)\.pth")
BEST, FINAL = "model_best", "model_final"


def save(self: Checkpointer, name: str, **extra: Any) -> bool:
    """Write a checkpoint; in the place of the host's method, which leaves torn files behind.

    Returns:
        Whether it was written.

    Raises:
        MissingInputError: the folder is gone.
    """
    if not self.save_dir or not self.save_to_disk:
        return False
    require_folder(Path(self.save_dir))
    states = {key: value.state_dict() for key, value in self.checkpointables.items()}
    path = Path(self.save_dir) / f"{name}.pth"
    _logger.info("saving checkpoint to %s", path)
    return write_checkpoint(path, {"model": self.model.state_dict(), **states, **extra}, mark=name != BEST)


def make_checkpoint_name(epochs: int, iterations: int) -> str:
    """Return what a checkpoint is called by the epochs that are done and the iterations in the one after them.

    After whole epochs that is the host's name, the number of the last of them counted from 0.
    """
    return f"model_{epochs - 1:04d}" if epochs and not iterations else f"model_{epochs:04d}_{iterations:06d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run but for the best and the final one, in the order of training."""
    found: dict[tuple[int, int], Path] = {}
    for path in folder.glob("model_*.pth"):
        match = re.fullmatch(r"model_(\d+)(?:_(\d+))?", path.stem)
        if match:
            epochs, iterations = match.groups()
            found[(int(epochs), int(iterations)) if iterations else (int(epochs) + 1, 0)] = path
    return [found[key] for key in sorted(found)]


def run_state(trainer: DefaultTrainer) -> dict[str, Any]:
    """Return what a checkpoint holds of a run beside model, optimizer and schedules; all processes have to ask."""
    return {
        "epoch": trainer.epochs_done - 1,  # by which the host resumes
        "iterations": trainer.iter - trainer.epochs_done * trainer.iters_per_epoch,
        "random_states": comm.all_gather(random_state()),
        "run": _identity(trainer),
    }


def _identity(trainer: DefaultTrainer) -> dict[str, int]:
    """Return what has to be equal for a resumed run to equal an uninterrupted one."""
    return {
        "seed": trainer.cfg.SEED,
        "processes": comm.get_world_size(),
        "batch": trainer.cfg.SOLVER.IMS_PER_BATCH,
        "iterations an epoch": trainer.iters_per_epoch,
    }


def read_last(folder: str | Path) -> tuple[Path, dict[str, Any]] | None:
    """Read the checkpoint that a run goes on from, if it has any."""
    return read_newest(Path(folder), NAMES, read_checkpoint, _position)


def require_same(found: tuple[Path, dict[str, Any]] | None) -> None:
    """Refuse to go on from different places in different processes."""
    require_same_place(comm.all_gather(None if found is None else _position(found[1])))


def _position(content: dict[str, Any]) -> tuple[int, int]:
    return content.get("epoch", -1), content.get("iterations", 0)


def restore(trainer: DefaultTrainer, content: dict[str, Any]) -> None:
    """Give a trainer that is to start the state of a checkpoint; random numbers follow when training begins."""
    checkpointer = trainer.checkpointer
    _require_fit(checkpointer._load_model(content))
    for key, part in checkpointer.checkpointables.items():
        if content.get(key):  # a scaler that is off has no state
            _give(key, part, content[key])
    epoch, iterations = _position(content)
    trainer.start_epoch = epoch + 1
    trainer.start_iter = trainer.start_epoch * trainer.iters_per_epoch + min(iterations, trainer.iters_per_epoch)
    trainer.metric = content.get("metric", -1.0)
    trainer.best_metric = content.get("best_metric", trainer.metric)
    trainer.random_states = content.get("random_states", [])
    _log_departures(content.get("run"), _identity(trainer))


def _require_fit(misfits: Any) -> None:
    """Refuse a model that the checkpoint does not fill, or fills with tensors of other shapes; the host goes on."""
    shapes = [f"{name} is {tuple(theirs)} there, {tuple(ours)} here" for name, theirs, ours in misfits.incorrect_shapes]
    found = [*shapes, *(f"it has no {name}" for name in misfits.missing_keys)]
    found += [f"{name} has no place here" for name in misfits.unexpected_keys]
    if found:
        raise mismatch_error("model", found[0])


def _give(name: str, part: Any, state: Any) -> None:
    """Give an optimizer, a schedule or a scaler its state, or refuse one that is another's."""
    try:
        if isinstance(part, LRScheduler):
            continue_schedule(part, state)
        else:
            part.load_state_dict(state)
    except InputError:
        raise
    except (ValueError, LookupError, RuntimeError, TypeError, AttributeError) as error:
        raise mismatch_error(name, first_line(error)) from None
    if isinstance(part, Optimizer):
        require_filled(part)


def _log_departures(before: dict[str, int] | None, now: dict[str, int]) -> None:
    if before is None:
        _logger.warning("the checkpoint is of another version: the run goes on, but not as an uninterrupted one would")
        return
    changes = [f"{name} {now[name]} in place of {value}" for name, value in before.items() if now[name] != value]
    if changes:
        _logger.warning("resumed with %s: the run goes on, but not as an uninterrupted one would", ", ".join(changes))
