"""Work in a process of its own, and what it takes."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from agreid_plugin.engine import processes
from agreid_plugin.engine.processes import in_process, peak_memory
from agreid_plugin.errors import InputError


def test_a_function_runs_in_another_process_and_returns():
    assert in_process(os.getpid) != os.getpid()
    with pytest.raises(InputError, match=r"^a process was killed, perhaps for want of memory: run the command again$"):
        in_process(signal.raise_signal, signal.SIGKILL)
    with pytest.raises(InputError, match=r"take fewer vectors$"):
        in_process(signal.raise_signal, signal.SIGKILL, advice="take fewer vectors")


@pytest.mark.parametrize(("platform", "told"), [("linux", 3 * 2**10), ("darwin", 3 * 2**20)])
def test_memory_is_in_megabytes_whatever_the_system_counts(monkeypatch, platform, told):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(processes.resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=told))
    assert peak_memory() == 3
