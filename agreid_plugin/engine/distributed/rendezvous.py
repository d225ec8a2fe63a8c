"""Rendezvous: open the `TCPStore` that the processes of a run share, or connect to it."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed as dist

from agreid_plugin.engine.distributed.environment import LOOPBACK
from agreid_plugin.errors import InputError, first_line


def open_store(port: int) -> dist.TCPStore:
    """Open the store at a port, any free one for 0."""
    try:
        return dist.TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        raise InputError(f"port {port} of --dist-url cannot be opened on this machine: {first_line(error)}") from None


def connect(address: str, port: int, seconds: float) -> dist.TCPStore:
    """Connect to the store of another process, waiting for it to open."""
    why, deadline = _unreachable(address, port), time.monotonic() + seconds
    while why and time.monotonic() < deadline:
        time.sleep(0.2)
        why = _unreachable(address, port)
    if not why:
        found = _client(address, port, min(seconds, 30.0))
        if found is not None:
            return found
        why = "something else listens there"
    raise InputError(
        f"tcp://{address}:{port} did not answer within {seconds:g} s ({why}): start the first machine with the same "
        "--dist-url, whose address must be its own, and see that no firewall is in between"
    )


def split_store(store: dist.Store, attempt: int = 0) -> tuple[dist.Store, dist.Store]:
    """Return the store of a run with all its restarts, and that of this attempt."""
    launch = dist.PrefixStore("agreid", store)
    return launch, dist.PrefixStore(str(attempt), launch)


def _client(address: str, port: int, seconds: float) -> dist.TCPStore | None:
    """Return a client of a store, None if what listens there is none: torch would wait for its answer for ever."""
    found: list[dist.TCPStore] = []

    def ask() -> None:
        with suppress(RuntimeError):
            found.append(dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=seconds)))

    asking = threading.Thread(target=ask, daemon=True)
    with silence():
        asking.start()
        asking.join(seconds)
    return found[0] if found else None


def _unreachable(address: str, port: int) -> str:
    try:
        socket.create_connection((address, port), timeout=5).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


@contextmanager
def silence() -> Iterator[None]:
    """Keep torch from printing a page of C++ frames for what an exception tells, too."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def read(store: dist.Store, key: str) -> str:
    """Return what a store has under a key, nothing if it has not."""
    return store.get(key).decode() if store.check([key]) else ""
