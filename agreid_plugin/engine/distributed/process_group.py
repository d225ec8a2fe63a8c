"""Process group of a run: joining it, the step of each rank, and errors that name the missing ranks.

Processes share a store of keys and values, the rendezvous. Each keeps there its training step, the error that ended it,
and that it waits; a process that gives up waiting reads there which ranks have not come.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from agreid_plugin.engine.distributed.environment import LOOPBACK, RankInfo
from agreid_plugin.engine.distributed.rendezvous import connect, open_store, read, split_store
from agreid_plugin.errors import RunError, first_line
from agreid_plugin.host import input_error_in

TIMEOUT = 1800.0
"""Seconds that a process waits for the others. The main one may need as long to rank a large gallery."""
JOINING = 600.0
"""Seconds, at most, that machines wait for one another to start."""
GRACE = 3.0
"""Seconds in which a process that lost the others waits for one of them to say why."""
FAILURE, REPORTED, CLAIMED = "failure", "reported", "claimed"

_current: DistributedProcess | None = None


def current_process() -> DistributedProcess | None:
    """Return this process of a run with several, None in a run of one."""
    return _current


def report_step(step: int) -> None:
    """Report the training step of this process, for error messages of the others."""
    if _current is not None:
        _current.report_step(step)


class DistributedProcess:
    """This process in a run of several.

    Args:
        place: its rank, and the rendezvous.
        timeout: seconds to wait for the others in a collective.
    """

    def __init__(self, place: RankInfo, timeout: float = TIMEOUT):
        global _current
        self.place, self.timeout, self.step = place, timeout, None
        store = open_store(place.port) if place.opens else connect(place.address, place.port, min(timeout, JOINING))
        self.launch, self.store = split_store(store, place.attempt)
        _current = self

    def join(self, backend: str | None = None) -> None:
        """Wait for the others, and initialize torch's process group: NCCL on GPUs, else gloo."""
        place = self.place
        self._announce(prepare_device(place.local_rank, place.local_size))
        self.store.set(f"here/{place.rank}", "")
        missing = self._wait_for("here", min(self.timeout, JOINING))
        if missing:
            raise RunError(
                f"process {place.rank} of {place.world_size} waited {min(self.timeout, JOINING):g} s for the others to "
                f"start: {_format_ranks(missing)} did not come"
            )
        dist.init_process_group(
            backend or default_backend(),
            store=dist.PrefixStore("group", self.store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=self.timeout),
        )

    def _announce(self, device: int) -> None:
        """Set the environment variables that torchrun would: hosts read them."""
        place = self.place
        os.environ.update(
            RANK=str(place.rank),
            WORLD_SIZE=str(place.world_size),
            LOCAL_RANK=str(device),
            LOCAL_WORLD_SIZE=str(place.local_size),
            MASTER_ADDR=place.address,
            MASTER_PORT=str(place.port),
        )
        if place.address in (LOOPBACK, "localhost") and sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # whatever the host's name resolves to

    def leave(self) -> None:
        """Leave the group after success: gloo may abort a process whose partner exits during a collective."""
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()

    def report_step(self, step: int) -> None:
        """Report the training step of this process."""
        self.step = step
        self.store.set(f"step/{self.place.rank}", str(step))

    def explain(self, error: BaseException) -> BaseException:
        """Return the error, or for lost processes a line that names step, collective and missing ranks.

        The store keeps for the others what ended this process.
        """
        if not is_lost(error):
            with suppress(RuntimeError):
                self.store.compare_set(
                    FAILURE, "", f"process {self.place.rank} failed{self._when()}: {_summary(error)}"
                )
            return error
        return RunError(self._describe_loss(error))

    def _describe_loss(self, error: BaseException) -> str:
        timed_out = "timed out" in str(error).lower() or "timeout" in str(error).lower()
        why = f"took longer than {self.timeout:g} s (--dist-timeout)" if timed_out else "lost the others"
        mine = f"process {self.place.rank} of {self.place.world_size}{self._when()}: {collective(error)} {why}"
        try:
            self.store.set(f"waiting/{self.place.rank}", "")
            missing = self._wait_for("waiting", GRACE, or_failure=True)
            failure = read(self.store, FAILURE)
            if failure:
                return f"{mine}; {failure}"
            at = [f"process {rank}{_format_step(read(self.store, f'step/{rank}'))}" for rank in missing]
            return f"{mine}; {', '.join(at)} did not come" if at else mine
        except RuntimeError:  # the store is gone with the process that opened it
            return f"{mine}, process 0 among them"

    def is_first_to_report(self, error: BaseException) -> bool:
        """Return whether this process shows an error, which others may have met or caused, too."""
        try:
            if isinstance(error, RunError) and read(self.store, FAILURE):
                return False
            return self.store.add(REPORTED, 1) == 1
        except RuntimeError:
            return True

    def _wait_for(self, what: str, seconds: float, or_failure: bool = False) -> list[int]:
        """Wait for a key of every rank, and return the ranks without one. A store's own waiting is noisy."""
        deadline = time.monotonic() + seconds
        while True:
            missing = [rank for rank in range(self.place.world_size) if not self.store.check([f"{what}/{rank}"])]
            over = time.monotonic() > deadline or (or_failure and self.store.check([FAILURE]))
            if not missing or over:
                return missing
            time.sleep(0.05)

    def _when(self) -> str:
        return _format_step(None if self.step is None else str(self.step))


def default_backend() -> str:
    """Return the backend of process groups: NCCL with GPUs, gloo without."""
    return "nccl" if torch.cuda.is_available() else "gloo"


def prepare_device(local_rank: int, local_size: int) -> int:
    """Choose this process's GPU, or its share of the processors, and return the GPU's number.

    A process that sees only one GPU, as with SLURM, takes that, whatever its local rank is.
    """
    if sys.platform == "linux" and mp.get_start_method(allow_none=True) != "fork":
        mp.set_start_method("fork", force=True)  # or it would start its data workers as it was started itself
    if torch.cuda.is_available():
        device = local_rank % torch.cuda.device_count()
        torch.cuda.set_device(device)
        return device
    asked = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(asked) if asked.isdigit() else (os.cpu_count() or 1) // local_size
    torch.set_num_threads(
        max(1, threads)
    )  # though that is set, a server that starts processes may have read it earlier
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(torch.get_num_threads()))
    return local_rank


@contextmanager
def report_once() -> Iterator[None]:
    """Raise an error in one of the processes that a launcher started; the others exit without a message."""
    global _current
    try:
        yield
    except Exception as error:
        if _current is None:
            raise
        explained = _current.explain(error)
        if not _current.is_first_to_report(explained):
            raise SystemExit(2 if input_error_in(explained) is not None else 1) from None
        if explained is error:
            raise
        raise explained from None
    finally:
        _drop_groups(sys.exc_info()[1])
        _current = None


def _drop_groups(error: BaseException | None) -> None:
    """Destroy process groups before a launcher's process exits, where gloo may abort; frames of an error hold some."""
    if _current is None:
        return
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
    if dist.is_initialized() and dist.get_backend() == "gloo":  # NCCL would wait for the others
        dist.destroy_process_group()
    gc.collect()  # what is in a cycle


LOST_SIGNS = ("gloo/", "pair closure", "nccl communicator", "ncclremoteerror", "connection reset by peer")
"""Parts of messages of torch for a collective without the others."""


def is_lost(error: BaseException) -> bool:
    """Return whether an error comes from waiting for other processes, which are slow or gone."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in LOST_SIGNS)


def collective(error: BaseException) -> str:
    """Return the collective that a process waited in, and the line that called it: `barrier (run.py:12)`."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = os.path.dirname(torch.__file__) + os.sep
    ours = [frame for frame in frames if inside not in frame.filename]
    line = f" ({os.path.basename(ours[-1].filename)}:{ours[-1].lineno})" if ours else ""
    theirs = [frame.name for frame in frames if inside in frame.filename]
    if "backward" in theirs:
        return f"averaging gradients{line}"
    public = [name for name in theirs if not name.startswith("_") and hasattr(dist, name)]
    return f"{public[0] if public else 'an exchange with the others'}{line}"


def _format_step(step: str | None) -> str:
    return f" at step {step}" if step else ""


def _format_ranks(ranks: list[int]) -> str:
    return f"process{'es' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _summary(error: BaseException) -> str:
    return input_error_in(error) or f"{type(error).__name__}: {first_line(error)}"
