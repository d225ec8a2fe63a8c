"""Checkpoints of a run: atomic writes, rotation, the newest whole one to resume from, and writing to a full disk."""

from __future__ import annotations

import logging
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from agreid_plugin.data.atomic_write import atomic_write, remove_drafts
from agreid_plugin.engine.checks import MARKER
from agreid_plugin.errors import InputError, MissingInputError, first_line

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_logger = logging.getLogger(__name__)


def write_checkpoint(path: Path, content: dict[str, Any], mark: bool = True) -> bool:
    """Write a checkpoint, its folder too if there is none, and with `mark` make it the one to resume from.

    Returns:
        False where the disk is full: that is logged, and what was there stays as it was.
    """
    with tolerate_full_disk(path, "the checkpoints before it are as they were") as written:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft, draft.open("wb") as file:
            torch.save(content, file)
        if mark:
            with atomic_write(path.with_name(MARKER)) as draft:
                draft.write_text(path.name, encoding="utf-8")
        written.append(path)
    return bool(written)


def require_folder(folder: Path) -> None:
    """Refuse to go on with a run whose folder has been removed; a full disk may have room again later, this may not.

    Raises:
        MissingInputError: it is gone.
    """
    if not os.path.isdir(folder):
        raise MissingInputError(f"output folder {folder} is gone: no checkpoint can be written, start the run anew")


@contextmanager
def tolerate_full_disk(path: Path, more: str = "") -> Iterator[list[Path]]:
    """Log that a file was not written as the disk is full, and go on; yields a list to note in that it was written."""
    try:
        yield []
    except (OSError, RuntimeError, InputError) as error:
        cause = _disk_error(error)
        if cause is None:
            raise
        _logger.warning(
            "%s was not written: %s, %.1f MB are free; the run goes on%s",
            path,
            cause.strerror or cause,
            free_bytes(path.parent) / 1e6,
            f", {more}" if more else "",
        )


def free_bytes(folder: Path) -> int:
    """Return the bytes that are free for a folder, which need not be there."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())
    return shutil.disk_usage(there).free


def make_tolerant(path: Path, *calls: Callable[..., Any]) -> list[Callable[..., None]]:
    """Return calls that write a file so that on a full disk they write nothing, which is logged once."""
    logged: list[Path] = []

    def tolerant(native: Callable[..., Any]) -> Callable[..., None]:
        def call(*args: Any, **kwargs: Any) -> None:
            try:
                native(*args, **kwargs)
            except OSError:
                if not logged:
                    logged.append(path)
                    with tolerate_full_disk(path):
                        raise

        return call

    return [tolerant(native) for native in calls]


def make_tensorboard_tolerant(writer: SummaryWriter) -> None:
    """Keep a full disk from ending the thread that writes TensorBoard's file, and with it the run."""
    file = writer.file_writer.event_writer._general_file_writer
    file.write, file.flush = make_tolerant(Path(os.fsdecode(file.filename)), file.write, file.flush)


def mismatch_error(name: str, why: str) -> InputError:
    """Return the error for a checkpoint to resume from that does not fit the run's model, optimizer or schedule."""
    return InputError(
        f"the checkpoint to resume from is of another {name} ({why}): continue with the configuration that the run "
        "began with, which is in its folder, or choose another --output"
    )


def describe_schedule_change(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Return how a run's schedule differs from that of the checkpoint it goes on from; empty if they are the same.

    Args:
        now: name -> setting.
        before: the same of the checkpoint, among other things.
    """
    changed = [name for name, value in now.items() if name not in before or before[name] != value]
    changes = ", ".join(f"{name} {now[name]} in place of {before.get(name, 'none')}" for name in changed)
    return f"resumed with another schedule ({changes}): the rate is what it says from here on" if changed else ""


def require_filled(optimizer: Optimizer) -> None:
    """Refuse an optimizer that was given the state of one of another kind: torch hardly looks."""
    missing = {key for group in optimizer.param_groups for key in optimizer.defaults.keys() - group.keys()}
    if missing:
        raise mismatch_error("optimizer", f"it has no {min(missing)}")


def require_same_place(places: Sequence[object]) -> None:
    """Refuse to go on from different places in different processes, which would wait for each other in vain."""
    other = next((rank for rank, place in enumerate(places) if place != places[0]), None)
    if other is not None:
        raise InputError(
            f"process {other} does not see the checkpoint that process 0 resumes from: the run's folder has to be one "
            "that all machines share"
        )


def _disk_error(error: BaseException | None) -> OSError | None:
    """Return the error of the disk, which torch's writer hides behind another."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def remove_temp_files(folder: Path) -> None:
    """Remove the temporary files of a killed run."""
    remove_drafts(folder, rf".*\.(pth|json|npz)|{MARKER}")


def keep_last(numbered: Iterable[Path], number: int) -> None:
    """Remove all but the last `number` of checkpoints in order, of none with 0."""
    for path in list(numbered)[:-number] if number else ():
        path.unlink(missing_ok=True)


def find_marked(folder: Path) -> Path | None:
    """Return the checkpoint that the run's marker names, also when the folder was moved, and if it is gone, too."""
    try:
        path = folder / (folder / MARKER).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return path if path.exists() else folder / path.name


def read_newest(
    folder: Path, names: re.Pattern[str], read: Callable[[Path], dict], position: Callable[[dict], Any]
) -> tuple[Path, dict] | None:
    """Read the checkpoint to resume from: the marked one, else the one furthest on of those that are whole.

    Args:
        folder: the run's.
        names: what checkpoints are called.
        read: reads a file, or raises an `InputError`.
        position: returns how far a checkpoint is, as a value that can be compared.

    Returns:
        The file and its content; None where there is none.

    Raises:
        InputError: there are checkpoints, but none is whole.
    """
    newest = find_marked(folder)
    others = sorted(path for path in folder.glob("*") if names.fullmatch(path.name) and path != newest)
    faults: dict[str, str] = {}
    content = _read_whole(newest, read, faults) if newest else None
    if content is not None:
        return newest, content
    found = None
    for path in others:
        content = _read_whole(path, read, faults)
        if content is not None and (found is None or position(content) > position(found[1])):
            found = path, content
    damaged = "; ".join(f"{name} is damaged ({fault})" for name, fault in faults.items())
    if found is None and faults:
        raise InputError(f"{folder} has no checkpoint to resume from: {damaged}; choose another --output to start anew")
    if faults:
        _logger.warning("%s: resumed from %s instead", damaged, found[0].name)
    return found


def _read_whole(path: Path, read: Callable[[Path], dict], faults: dict[str, str]) -> dict | None:
    """Read a checkpoint, or note what is wrong with it."""
    try:
        fault = _damage(path)
        if not fault:
            return read(path)
    except InputError as error:
        fault = str(error)
    faults[path.name] = fault
    return None


def _damage(path: Path) -> str:
    """Return what is wrong with a file, nothing if every part has the check sum it was written with.

    torch does not compare them, and would load a changed tensor.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except Exception as error:  # there is no end to what a damaged archive makes Python raise
        return first_line(error)
    return f"{bad} has changed" if bad else ""
