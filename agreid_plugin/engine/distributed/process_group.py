"""One process of several: it joins the others, says which step it is at, and explains itself when it loses them.

All meet at a store of keys and values. There a process leaves its training step, what ended it, and that it waits in
vain; whoever gives up waiting reads there who has not come.
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

from agreid_plugin.engine.distributed.environment import LOOPBACK, Place
from agreid_plugin.engine.distributed.rendezvous import connect, open_store, parts_of, read
from agreid_plugin.errors import RunError, first_line
from agreid_plugin.host import input_error_in

TIMEOUT = 1800.0
"""Seconds that a process waits for the others. The main one may need as long to rank a large gallery."""
JOINING = 600.0
"""Seconds, at most, that machines wait for one another to start."""
GRACE = 3.0
"""Seconds in which a process that lost the others waits for one of them to say why."""
FAILURE, TOLD, CLAIMED = "failure", "told", "claimed"

_member: Member | None = None


def member() -> Member | None:
    """Return this process's part in a run of several processes, None if it runs alone."""
    return _member


def at_step(step: int) -> None:
    """Say which training step this process is at, for whoever waits for it."""
    if _member is not None:
        _member.at_step(step)


class Member:
    """This process's part in a run of several.

    Args:
        place: where it stands.
        timeout: seconds to wait for the others in whatever they do together.
    """

    def __init__(self, place: Place, timeout: float = TIMEOUT):
        global _member
        self.place, self.timeout, self.step = place, timeout, None
        store = open_store(place.port) if place.opens else connect(place.address, place.port, min(timeout, JOINING))
        self.launch, self.store = parts_of(store, place.attempt)
        _member = self

    def join(self, backend: str | None = None) -> None:
        """Wait for all the others, and make torch's group of them: NCCL's on GPUs, else gloo's."""
        place = self.place
        self._announce(prepare(place.local_rank, place.local_size))
        self.store.set(f"here/{place.rank}", "")
        missing = self._wait_for("here", min(self.timeout, JOINING))
        if missing:
            raise RunError(
                f"process {place.rank} of {place.world_size} waited {min(self.timeout, JOINING):g} s for the others to "
                f"start: {_listed(missing)} did not come"
            )
        dist.init_process_group(
            backend or default_backend(),
            store=dist.PrefixStore("group", self.store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=self.timeout),
        )

    def _announce(self, device: int) -> None:
        """Tell this process what torchrun would: hosts look there."""
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
        """Leave the group after work that went well: gloo may abort whose partner goes while it still exchanges."""
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()

    def at_step(self, step: int) -> None:
        """Say which training step this process is at."""
        self.step = step
        self.store.set(f"step/{self.place.rank}", str(step))

    def explained(self, error: BaseException) -> BaseException:
        """Return the error, or if it came of losing the others one line that names step, collective and who is missing.

        The others learn from the store what ended this process.
        """
        if not is_lost(error):
            with suppress(RuntimeError):
                self.store.compare_set(
                    FAILURE, "", f"process {self.place.rank} failed{self._when()}: {_summary(error)}"
                )
            return error
        return RunError(self._loss(error))

    def _loss(self, error: BaseException) -> str:
        timed_out = "timed out" in str(error).lower() or "timeout" in str(error).lower()
        why = f"took longer than {self.timeout:g} s (--dist-timeout)" if timed_out else "lost the others"
        mine = f"process {self.place.rank} of {self.place.world_size}{self._when()}: {collective(error)} {why}"
        try:
            self.store.set(f"waiting/{self.place.rank}", "")
            missing = self._wait_for("waiting", GRACE, or_failure=True)
            told = read(self.store, FAILURE)
            if told:
                return f"{mine}; {told}"
            at = [f"process {rank}{_at(read(self.store, f'step/{rank}'))}" for rank in missing]
            return f"{mine}; {', '.join(at)} did not come" if at else mine
        except RuntimeError:  # the store is gone with the process that opened it
            return f"{mine}, process 0 among them"

    def tells(self, error: BaseException) -> bool:
        """Tell whether this process is the one to show an error, which others may have met or caused as well."""
        try:
            if isinstance(error, RunError) and read(self.store, FAILURE):
                return False
            return self.store.add(TOLD, 1) == 1
        except RuntimeError:
            return True

    def _wait_for(self, what: str, seconds: float, or_failure: bool = False) -> list[int]:
        """Wait for all processes to leave a key, and return who has not. A store's own waiting is noisy."""
        deadline = time.monotonic() + seconds
        while True:
            missing = [rank for rank in range(self.place.world_size) if not self.store.check([f"{what}/{rank}"])]
            over = time.monotonic() > deadline or (or_failure and self.store.check([FAILURE]))
            if not missing or over:
                return missing
            time.sleep(0.05)

    def _when(self) -> str:
        return _at(None if self.step is None else str(self.step))


def default_backend() -> str:
    """Return what processes exchange tensors by."""
    return "nccl" if torch.cuda.is_available() else "gloo"


def prepare(local_rank: int, local_size: int) -> int:
    """Take this process's device, or its share of the processors, and return the device's number.

    A process that sees one GPU alone, as SLURM may have it, takes that, whatever its own number is.
    """
    if sys.platform == "linux" and mp.get_start_method(allow_none=True) != "fork":
        mp.set_start_method("fork", force=True)  # or it would start its data workers as it was started itself
    if torch.cuda.is_available():
        device = local_rank % torch.cuda.device_count()
        torch.cuda.set_device(device)
        return device
    told = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(told) if told.isdigit() else (os.cpu_count() or 1) // local_size
    torch.set_num_threads(max(1, threads))  # though told so, a server that starts processes may have read it earlier
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(torch.get_num_threads()))
    return local_rank


@contextmanager
def told_once() -> Iterator[None]:
    """Let an error through in one process of those that a launcher started; the others end without a word."""
    global _member
    try:
        yield
    except Exception as error:
        if _member is None:
            raise
        explained = _member.explained(error)
        if not _member.tells(explained):
            raise SystemExit(2 if input_error_in(explained) is not None else 1) from None
        if explained is error:
            raise
        raise explained from None
    finally:
        _drop_groups(sys.exc_info()[1])
        _member = None


def _drop_groups(error: BaseException | None) -> None:
    """Leave no group to the end of a launcher's process, where gloo may abort; frames of an error hold some, too."""
    if _member is None:
        return
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
    if dist.is_initialized() and dist.get_backend() == "gloo":  # NCCL would wait for the others
        dist.destroy_process_group()
    gc.collect()  # what is in a cycle


SIGNS = ("gloo/", "nccl communicator", "ncclremoteerror", "connection reset by peer")


def is_lost(error: BaseException) -> bool:
    """Tell whether an error is that of waiting for other processes, which are slow or gone."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


def collective(error: BaseException) -> str:
    """Return what a process was waiting in, and which line of the host's or of ours waited: `barrier (run.py:12)`."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = os.path.dirname(torch.__file__) + os.sep
    ours = [frame for frame in frames if inside not in frame.filename]
    line = f" ({os.path.basename(ours[-1].filename)}:{ours[-1].lineno})" if ours else ""
    theirs = [frame.name for frame in frames if inside in frame.filename]
    if "backward" in theirs:
        return f"averaging gradients{line}"
    public = [name for name in theirs if not name.startswith("_") and hasattr(dist, name)]
    return f"{public[0] if public else 'an exchange with the others'}{line}"


def _at(step: str | None) -> str:
    return f" at step {step}" if step else ""


def _listed(ranks: list[int]) -> str:
    return f"process{'es' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _summary(error: BaseException) -> str:
    return input_error_in(error) or f"{type(error).__name__}: {first_line(error)}"
