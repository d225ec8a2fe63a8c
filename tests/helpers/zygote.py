"""A process that has imported everything and forks the `fastreid` command from itself, ended at a chosen event.

Importing torch and a host takes seconds, and a process that has computed gradients cannot be forked to compute more. So
tests that kill many runs start this one, which has computed nothing, and have it fork each run.
"""

import faulthandler
import importlib
import json
import multiprocessing
import multiprocessing.util
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quicker import format_once, leave_imports_alone

EVENTS = {
    "fastreid": {
        "step": ("agreid_plugin.hosts.fastreid.engine.loop", "ResumableTrainer", "run_step"),
        "hooks": ("agreid_plugin.hosts.fastreid.engine.loop", "ResumableTrainer", "after_step"),
        "evaluate": ("agreid_plugin.hosts.fastreid.engine.evaluator", "MultiProtocolEvaluator", "process"),
        "set up": ("agreid_plugin.hosts.fastreid.engine.trainer", "Trainer", "resume_or_load"),
    },
    "mmengine": {
        "step": ("mmengine.model.base_model.base_model", "BaseModel", "train_step"),
        "hooks": ("mmengine.runner.loops", "EpochBasedTrainLoop", "run_iter"),
        "evaluate": ("agreid_plugin.hosts.mmengine.engine.metrics", "MultiProtocolMetric", "process"),
        "set up": ("mmengine.runner.runner", "Runner", "load_or_resume"),
    },
}
MOST_SECONDS = 120
WRITING = {"rename": ("pathlib", "Path", "replace"), "written": ("os", None, "fsync"), "torn": ("torch", None, "save")}


@dataclass
class Ended:
    """How a run ended: its exit code, negative for the number of the signal that killed it, and what it said."""

    code: int
    said: str


def assert_refused(ended: Ended, *words: str) -> None:
    """The command refused its input as it should: exit code 2, and a last line that says the words."""
    assert ended.code == 2, ended
    assert "Traceback" not in ended.said
    last = ended.said.strip().splitlines()[-1]
    assert last.startswith("fastreid: error: ")
    for word in words:
        assert word in last


class Zygote:
    """The client's side of the process."""

    def __init__(self, *hosts: str):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, *hosts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(
        self,
        *argv: object,
        at: tuple[str, int] | None = None,
        send: int = signal.SIGKILL,
        remove: Path | None = None,
        **limits: int,
    ) -> Ended:
        """Run the command; at the n-th event of a kind it is sent a signal, or a folder is removed in its place.

        A limit is `file_size` in bytes.
        """
        folder = str(remove or "")
        request = {"argv": [str(each) for each in argv], "at": at, "send": int(send), "remove": folder, **limits}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def zygote(*hosts: str):
    """Have such a process for a while."""
    process = Zygote(*hosts)
    try:
        yield process
    finally:
        process.close()


def _serve(hosts: list[str]) -> None:
    import torch

    from agreid_plugin.engine.distributed import worker

    torch.set_num_threads(1)
    worker._context = lambda _: multiprocessing.get_context("fork")
    for host in hosts:
        importlib.import_module(f"agreid_plugin.hosts.{host}.engine.run")
        for module, *_ in EVENTS[host].values():
            importlib.import_module(module)
    format_once()
    leave_imports_alone()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        log = Path(tempfile.gettempdir()) / f"zygote-{os.getpid()}.txt"
        child = os.fork()
        if not child:
            _run(json.loads(line), log, hosts)
        answers.write(json.dumps({"code": _wait(child), "said": log.read_text()}) + "\n")
        answers.flush()
        log.unlink()


def _wait(child: int) -> int:
    """Return how a run ended, or -14 for one that hangs and is killed with all its processes."""
    end = time.monotonic() + MOST_SECONDS
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGALRM


def _run(request: dict, log: Path, hosts: list[str]) -> None:
    from agreid_plugin.cli import main

    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever started the tests
    faulthandler.dump_traceback_later(MOST_SECONDS - 20)
    if request["at"]:
        _arm(*request["at"], _act(request), hosts)
    if "file_size" in request:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_size"],) * 2)
    code = 70
    try:
        code = main(request["argv"])
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        multiprocessing.util._exit_function()  # as Python ends, waiting for data workers
        os._exit(code)


def _act(request: dict) -> Callable[[], None]:
    """Return what is to happen at the event."""
    if request["remove"]:
        return partial(shutil.rmtree, request["remove"], ignore_errors=True)  # another process may be at it, too
    return lambda: os.kill(os.getpid(), request["send"])  # whichever process of the run is at it


def _arm(event: str, number: int, act: Callable[[], None], hosts: list[str]) -> None:
    """Have it happen at the n-th event."""
    for module, owner, name in {{**EVENTS[host], **WRITING}[event] for host in hosts}:
        place = importlib.import_module(module)
        place = getattr(place, owner) if owner else place
        setattr(place, name, _counted(getattr(place, name), event, number, act))


def _counted(native, event: str, number: int, act: Callable[[], None]):
    calls = []

    def call(*args, **options):
        calls.append(event)
        if len(calls) != number:
            return native(*args, **options)
        if event == "torn":
            return _torn(native, act, *args)
        if event == "rename":
            act()
        result = native(*args, **options)
        act()
        return result

    return call


def _torn(save, act: Callable[[], None], content: object, file) -> None:
    """Write half of a checkpoint."""
    save(content, file)
    file.flush()
    os.ftruncate(file.fileno(), file.tell() // 2)
    act()


if __name__ == "__main__":
    _serve(sys.argv[1:])
