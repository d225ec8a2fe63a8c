"""What processes do in tests of launching; a process that is started finds it here by name."""

import os
import signal
import time
from argparse import Namespace
from pathlib import Path

import torch
import torch.distributed as dist

from agreid_plugin.errors import InputError
from agreid_plugin.hosts import launching
from agreid_plugin.hosts.process_group import at_step

ALONE = {"launcher": None, "num_gpus": None, "num_machines": 1, "machine_rank": 0, "dist_url": None, "resume": False}


def arguments(processes: int | None = 2, timeout: float = 60.0, **given) -> Namespace:
    """What the command line gives `launch`."""
    return Namespace(**{**ALONE, "num_processes": processes, "dist_timeout": timeout, **given})


def exchange() -> float:
    """Add up everybody's number plus 1."""
    value = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(value)
    return value.item()


def leave_pid(folder: str) -> None:
    """Write which process this is into a file by its rank."""
    Path(folder, f"{dist.get_rank()}.pid").write_text(str(os.getpid()))


def work(how: str, folder: str) -> None:
    """Two exchanges with all processes; before the second, at step 7, process 1 does what `how` says."""
    at_step(6)
    leave_pid(folder)
    total = exchange()
    if dist.get_rank() == 1:
        at_step(7)
        SABOTAGE[how]()
    at_step(8)
    exchange()
    Path(folder, f"{dist.get_rank()}.sum").write_text(str(total))


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
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "exit": lambda: os._exit(7),
}


def as_a_task(rank: int, environment: dict[str, str], how: str, folder: str) -> None:
    """What `work` does and how it ends, in one of two processes that a launcher has started."""
    os.environ.update(environment)
    try:
        with launching.started(args := arguments(None, 5.0)):
            launching.claim(Path(folder), args)
            launching.launch(work, (how, folder), args)
        outcome = "done"
    except (Exception, SystemExit) as error:
        outcome = f"{type(error).__name__}: {error}"
    Path(folder, f"{rank}.outcome").write_text(outcome)


def sleeping_training(cfg, args: Namespace) -> None:
    """fast-reid's training in one of two processes, the second of which sleeps at step 2."""
    from agreid_plugin.hosts.fastreid import run

    told = hooks().StepTold.before_step

    def told_then_sleeping(hook) -> None:
        told(hook)
        if dist.get_rank() == 1 and hook.trainer.iter == 2:
            time.sleep(600)

    hooks().StepTold.before_step = told_then_sleeping
    run._train_process(cfg, args)


def hooks():
    """The module, which needs fast-reid."""
    from agreid_plugin.hosts.fastreid import hooks

    return hooks
