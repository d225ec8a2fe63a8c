"""What processes do in tests of launching; a process that is started finds it here by name."""

import os
import signal
import time
import weakref
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from agreid_plugin.data.atomic_write import atomic_write
from agreid_plugin.engine.distributed import launch
from agreid_plugin.engine.distributed.environment import LaunchOptions
from agreid_plugin.engine.distributed.process_group import current_process, report_step
from agreid_plugin.errors import InputError

OF_SRUN = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "4",
    "SLURM_NTASKS": "5",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_NODELIST": "gpu[07-08],cpu1",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
}
"""What one of five tasks of Slurm's finds in its environment: the only one on the last of three machines."""


def arguments(processes: int | None = 2, timeout: float = 60.0, **given) -> LaunchOptions:
    """What the command line gives `launch`."""
    return LaunchOptions(num_processes=processes, dist_timeout=timeout, **given)


def exchange() -> float:
    """Add up everybody's number plus 1."""
    value = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(value)
    return value.item()


def leave_pid(folder: str) -> None:
    """Write which process this is into a file by its rank."""
    with atomic_write(Path(folder, f"{dist.get_rank()}.pid")) as draft:  # somebody waits for it, and reads
        draft.write_text(str(os.getpid()))


def wait_briefly() -> None:
    """Have processes wait 3 seconds for each other once all are there: on a busy machine one may be as late."""
    dist.barrier()
    current_process().timeout = 3.0
    distributed_c10d._set_pg_timeout(timedelta(seconds=3), dist.group.WORLD)


def work(how: str, folder: str) -> None:
    """Two exchanges with all processes; before the second, at step 7, process 1 does what `how` says."""
    report_step(6)
    leave_pid(folder)
    total = exchange()
    if how == "sleep too long":
        wait_briefly()
    if dist.get_rank() == 1:
        report_step(7)
        SABOTAGE[how]()
    report_step(8)
    exchange()
    Path(folder, f"{dist.get_rank()}.sum").write_text(str(total))


def save_when_asked(how: str, folder: str) -> None:
    """Do as `how` says, and on SIGTERM take a moment to save."""

    def save(number: int, _: object) -> None:
        time.sleep(1)
        Path(folder, f"{dist.get_rank()}.saved").touch()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, save)
    leave_pid(folder)
    SABOTAGE[how]()


def _refuse() -> None:
    raise InputError("image a.jpg is no good")


def _fail() -> None:
    raise ZeroDivisionError("a real mistake")


SABOTAGE = {
    "nothing": lambda: None,
    "refuse": _refuse,
    "fail": _fail,
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sleep": lambda: time.sleep(600),
    "sleep too long": lambda: time.sleep(600),
    "exit": lambda: os._exit(7),
}


def as_a_task(rank: int, environment: dict[str, str], how: str, folder: str) -> None:
    """What `work` does, how it ends, and whether torch's group outlives it in a process that a launcher has started."""
    os.environ.update(environment)
    groups: list[weakref.ref] = []

    def grouped_work() -> None:
        groups.append(weakref.ref(dist.group.WORLD))
        work(how, folder)

    try:
        with launch.join_launcher(args := arguments(None, 60.0)):
            launch.claim(Path(folder), resume=False)
            launch.launch(grouped_work, (), args)
        outcome = "done"
    except (Exception, SystemExit) as error:
        outcome = f"{type(error).__name__}: {error}"
        if groups[0]() is not None:  # while the error is there, too
            outcome += " and a group of processes is left"
    Path(folder, f"{rank}.outcome").write_text(outcome)


def sleeping_training(training) -> None:
    """fast-reid's training in one of two processes, the second of which sleeps at step 2."""
    from agreid_plugin.engine import run
    from agreid_plugin.hosts.fastreid.engine import hooks

    told = hooks.StepReporter.before_step

    def told_then_sleeping(hook) -> None:
        told(hook)
        if hook.trainer.iter == 2:
            wait_briefly()
            SABOTAGE["sleep" if dist.get_rank() == 1 else "nothing"]()

    hooks.StepReporter.before_step = told_then_sleeping
    run._process(training)
