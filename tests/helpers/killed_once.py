"""The `fastreid` command as torchrun starts it, with fast-reid's process 1 killed at step 4 of the first attempt."""

import os
import signal
import sys

from agreid_plugin.cli import main
from agreid_plugin.hosts.fastreid.engine.hooks import StepTold

told = StepTold.before_step


def told_and_killed(hook: StepTold) -> None:
    """Say the step, then be gone if it is the one."""
    told(hook)
    if hook.trainer.iter == 4 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)


StepTold.before_step = told_and_killed
if __name__ == "__main__":
    sys.exit(main())
