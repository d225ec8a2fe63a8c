"""A process that has imported everything and forks the `fastreid` command from itself, ended at a chosen event.

Importing torch and a host takes seconds, and a process that has computed gradients cannot be forked to compute more. So
tests that kill many runs, or whose code starts the command itself, have this one, which has computed nothing, fork each
run. One serves all workers: it listens at a socket for who asks (`ask_zygote.py`).
"""

import faulthandler
import importlib
import json
import multiprocessing
import multiprocessing.util
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ask_zygote import ask
from quicker import format_once, leave_imports_alone
from shared import locked

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
    """The client's side of the process, which listens at an address."""

    def __init__(self, address: str):
        self.address = address

    def command(self, *modules: str) -> tuple[str, ...]:
        """Return a command line that runs the `fastreid` command in a process of this one's, after importing modules.

        It is for code that starts the command itself: what it starts is `ask_zygote.py`, which imports nothing.
        """
        script = Path(__file__).with_name("ask_zygote.py")
        return (sys.executable, "-I", "-S", str(script), self.address, ",".join(modules))

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
        options = {"at": at, "send": int(send), "remove": str(remove or ""), **limits}
        with tempfile.TemporaryFile() as log, open(os.devnull, "rb") as nothing:
            with ask(self.address, [str(each) for each in argv], [nothing, log, log], **options) as answers:
                _, code = (int(line) for line in answers)
            log.seek(0)
            return Ended(code, log.read().decode())


@contextmanager
def zygote(folder: Path, *hosts: str):
    """Have such a process for a while, one for all workers of these tests, which share a folder."""
    process, address, users = None, folder / "zygote.txt", folder / "zygote.users"
    try:
        with ExitStack() as using:
            with locked(folder / "zygote.lock"):
                if not address.exists():
                    process = _start(hosts)
                    address.write_text(process.stdout.readline().strip())
                using.enter_context(locked(users, shared=True))
            yield Zygote(address.read_text())
    finally:
        if process:
            with locked(folder / "zygote.lock"), locked(users):  # when no other uses it any more
                address.unlink()
                process.stdin.close()
                process.wait()


def _start(hosts: tuple[str, ...]) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__, *hosts]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _serve(hosts: list[str]) -> None:
    """Listen, import everything, and run the command for whoever asks until standard input ends."""
    folder = tempfile.mkdtemp(prefix="zygote-")  # an address has to be short
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{folder}/address")
    server.listen()
    sys.stdout.write(f"{folder}/address\n")
    sys.stdout.flush()
    _import_everything(hosts)
    while server in (ready := select.select([server, sys.stdin], [], [], 1)[0]) or not ready:
        if ready:
            connection, _ = server.accept()
            if not os.fork():
                server.close()
                _answer(connection, hosts)
            connection.close()
        with suppress(ChildProcessError):  # there is none
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    shutil.rmtree(folder)


def _import_everything(hosts: list[str]) -> None:
    import torch

    from agreid_plugin.engine.distributed import worker

    torch.set_num_threads(1)
    worker.choose_context = lambda _: multiprocessing.get_context("fork")
    for host in hosts:
        importlib.import_module(f"agreid_plugin.hosts.{host}.host")
        for module, *_ in EVENTS[host].values():
            importlib.import_module(module)
    format_once()
    leave_imports_alone()


def _answer(connection: socket.socket, hosts: list[str]) -> None:
    """Run the command where and with what was asked; tell its number, then how it ended."""
    text, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    child = os.fork()
    if not child:
        connection.close()
        for place, file in enumerate(files):
            os.dup2(file, place)
        _run(json.loads(text), hosts)
    connection.sendall(f"{child}\n".encode())
    code = _wait(child)
    with suppress(OSError):  # whoever asked may be gone
        connection.sendall(f"{code}\n".encode())
    os._exit(0)


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


def _run(request: dict, hosts: list[str]) -> None:
    """Run the command as it was asked for, and end this process as Python does."""
    from agreid_plugin.cli import main

    os.setpgid(0, 0)
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever started the tests
    faulthandler.dump_traceback_later(MOST_SECONDS - 20)
    for module in filter(None, request["modules"].split(",")):
        importlib.import_module(module)
    if request.get("at"):
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
        multiprocessing.util._exit_function()  # waiting for data workers
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
