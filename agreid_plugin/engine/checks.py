"""What a run is asked for on the command line, checked before it starts, whatever the host."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from agreid_plugin.engine.distributed.environment import LaunchOptions
from agreid_plugin.errors import InputError

MARKER = "last_checkpoint"
"""A file that both hosts leave in a run's folder with the first checkpoint."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says of a disk, a quota or a file that takes no more."""


def claim_output(folder: Path, resume: bool) -> None:
    """Make sure a run can write its folder and overwrites no other run."""
    if (folder / MARKER).exists() and not resume:
        raise InputError(f"{folder} holds a run already: continue it with --resume, or choose another --output")
    check_writable(folder)


def check_writable(folder: Path) -> None:
    """Make a folder, and refuse one that cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # of a name that no other machine takes, as by a process number
            pass
    except OSError as error:
        raise InputError(f"output folder {folder} cannot be written: {error.strerror or error}") from None


@contextmanager
def report_full_disk(folder: Path) -> Iterator[None]:
    """Say in one line that the disk does not take what a run cannot do without, such as its configuration."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        path = error.filename or f"output folder {folder}"
        raise InputError(f"{path} cannot be written: {error.strerror}; make room, or choose another --output") from None


def check_features_file(path: Path) -> None:
    """Refuse a file for features that exists, or whose folder does not."""
    if path.exists():
        raise InputError(f"--save-features {path} exists already; choose another name")
    if not path.absolute().parent.is_dir():
        raise InputError(f"--save-features {path}: its folder does not exist")


def process_count(options: LaunchOptions) -> int:
    """Return the number of processes on this machine, at most one a GPU where there are any."""
    gpus = torch.cuda.device_count()
    if options.num_gpus is not None and options.num_gpus > gpus:
        raise InputError(
            f"--num-gpus {options.num_gpus}, but this machine has {gpus}; use --num-processes N for CPU processes"
        )
    processes = options.num_processes or options.num_gpus or 1
    if gpus and processes > gpus:
        raise InputError(f"--num-processes {processes}, but this machine has {gpus} GPUs, one for each process")
    return processes
