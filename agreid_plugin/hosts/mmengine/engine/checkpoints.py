"""mmengine's checkpoints: whole files, the old ones removed when the new one is there, the newest good one resumed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

from mmengine import hooks
from mmengine.dist import is_main_process
from mmengine.runner import Runner

from agreid_plugin.data.atomic_write import atomic_write
from agreid_plugin.engine.checkpoints import (
    read_newest,
    remove_temp_files,
    tolerate_full_disk,
    write_checkpoint,
)
from agreid_plugin.engine.checks import MARKER, check_writable
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import NUMBERS
from agreid_plugin.hosts.mmengine.config.arguments import require_arguments, require_kinds
from agreid_plugin.hosts.mmengine.engine.checkpoint_reader import load_from_local, make_plain
from agreid_plugin.hosts.mmengine.registry import HOOKS

NAMES = re.compile(r"(epoch|iter)_\d+\.pth")
PASSED_ON = tuple(
    name
    for name in inspect.signature(Runner.save_checkpoint).parameters
    if name not in ("self", "out_dir", "filename", "meta")
)
"""What mmengine's hook passes on to the runner that saves."""
UNWRITTEN: set[Path] = set()
"""Checkpoints that the disk did not take when they were due."""


def write_atomically(save: Callable[..., None]) -> Callable[..., None]:
    """Have mmengine's function write plain values, local files atomically, and survive a full disk."""

    @wraps(save)
    def save_atomically(
        checkpoint: dict, filename: str, file_client_args: Any = None, backend_args: Any = None
    ) -> None:
        checkpoint = make_plain(checkpoint)
        if file_client_args or backend_args or "://" in filename:
            save(checkpoint, filename, file_client_args, backend_args)
        elif not write_checkpoint(Path(filename), checkpoint, mark=False):
            UNWRITTEN.add(Path(filename))

    return save_atomically


@HOOKS.register_module()
class CheckpointHook(hooks.CheckpointHook):
    """mmengine's hook, which marks and removes nothing before the new checkpoint is written.

    mmengine removes the oldest one first, and a full disk would in the end leave none. Nor does it look at arguments
    that it does not know before it passes them on, with the first checkpoint.

    Args:
        *args: see mmengine's.
        **kwargs: see mmengine's.
    """

    _default_greater_keys: ClassVar = [*hooks.CheckpointHook._default_greater_keys, *NUMBERS, "metric"]
    """Numbers of which more is better, so that `save_best` of a protocol needs no `rule`."""

    def __init__(self, *args: Any, **kwargs: Any):
        require_arguments("CheckpointHook", hooks.CheckpointHook, kwargs, passed=PASSED_ON)
        require_kinds("CheckpointHook", hooks.CheckpointHook, kwargs)
        super().__init__(*args, **kwargs)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        if not self._is_local():
            super()._save_checkpoint_with_step(runner, step, meta)
            return
        path = Path(self.out_dir) / self.filename_tmpl.format(step)
        outdated = self._outdated(runner, step)
        self.last_ckpt = str(path)
        runner.message_hub.update_info("last_ckpt", self.last_ckpt)
        what = {"save_optimizer": self.save_optimizer, "save_param_scheduler": self.save_param_scheduler}
        runner.save_checkpoint(self.out_dir, path.name, meta=meta, by_epoch=self.by_epoch, **what, **self.args)
        if is_main_process() and path.exists():
            mark(Path(runner.work_dir), path)
            for old in outdated:
                (Path(self.out_dir) / self.filename_tmpl.format(old)).unlink(missing_ok=True)

    def before_train(self, runner: Runner) -> None:
        """Check before hours of training that checkpoints can be written."""
        super().before_train(runner)
        if is_main_process() and self._is_local():
            check_writable(Path(self.out_dir))

    def _is_local(self) -> bool:
        return not (self.file_client_args or self.backend_args or "://" in str(self.out_dir))

    def _outdated(self, runner: Runner, step: int) -> list[int]:
        """Add a step to those that are kept, and return those that are not any longer."""
        if self.max_keep_ckpts < 1:
            return []
        kept = [*(each for each in self.keep_ckpt_ids if each != step), step]
        outdated = kept[: -self.max_keep_ckpts]
        self.keep_ckpt_ids.clear()
        self.keep_ckpt_ids.extend(kept[-self.max_keep_ckpts :])
        runner.message_hub.update_info("keep_ckpt_ids", list(self.keep_ckpt_ids))
        return outdated


def require_written(hook: hooks.CheckpointHook) -> None:
    """Refuse to end a run well whose last checkpoint, or best one where it saves no other, was not written."""
    best = [getattr(hook, "best_ckpt_path", None), *getattr(hook, "best_ckpt_path_dict", {}).values()]
    for path in [hook.last_ckpt] if hook.last_ckpt else best:
        if path and Path(path) in UNWRITTEN and not Path(path).exists():
            raise InputError(f"{path} was not written; make room and continue with --resume")


def mark(folder: Path, path: Path) -> None:
    """Make a checkpoint the one to resume from."""
    with tolerate_full_disk(folder / MARKER), atomic_write(folder / MARKER) as draft:
        draft.write_text(str(path.absolute()), encoding="utf-8")


def newest(folder: str | Path) -> str | None:
    """Return the checkpoint that a run goes on from, after a look at whether it is whole; None where there is none."""
    folder = Path(folder)
    if is_main_process():
        remove_temp_files(folder)
    found = read_newest(folder, NAMES, lambda path: load_from_local(str(path), "cpu"), _position)
    return None if found is None else str(found[0])


def _position(content: dict[str, Any]) -> tuple[int, int]:
    meta = content.get("meta", {})
    return meta.get("epoch", 0), meta.get("iter", 0)
