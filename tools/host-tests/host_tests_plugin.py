"""A pytest plugin for `tools/host-tests`: prepares a host, plain or with this plugin, and writes down each outcome."""

from __future__ import annotations

import importlib
import json
import os
import signal
from pathlib import Path
from types import FrameType

import pytest

import agreid_plugin  # noqa: F401 - before the host: with it the import hook is armed
from agreid_plugin import _imports

OUTCOMES, HOST, SECONDS = "HOST_TESTS_OUTCOMES", "HOST_TESTS_WITH", "HOST_TESTS_SECONDS"
"""Names of environment variables: the file of outcomes, the host to load with ours (empty: plain), a test's time."""


def pytest_configure() -> None:
    """Load the host: with our fixes and components, or with nothing repaired but torchvision's import."""
    if os.environ[HOST]:
        importlib.import_module("agreid_plugin.hosts.mmengine.components")
    else:
        for name in set(_imports.WATCHED) - {"torchvision"}:
            del _imports.WATCHED[name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> object:
    """Let no test hold up the others: one that waits for a network or a process fails after its time."""
    signal.signal(signal.SIGALRM, _stop_test)
    signal.alarm(int(os.environ[SECONDS]))
    try:
        return (yield)
    finally:
        signal.alarm(0)


def _stop_test(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"stopped after {os.environ[SECONDS]} seconds")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down how a test went: its own phase, or the one that failed before or after it."""
    if report.when == "call" or report.outcome != "passed":
        _write(report.nodeid, report.outcome, report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write down a file that cannot be read."""
    if report.failed:
        _write(report.nodeid, "unreadable", report)


def _write(name: str, outcome: str, report: pytest.TestReport | pytest.CollectReport) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # the process that started the workers is given their reports, and those of workers that died
    reason = ""
    if outcome not in ("passed", "skipped"):
        errors = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = (crash.message if crash else (errors or [report.longreprtext.strip()])[-1]).partition("\n")[0]
    with Path(os.environ[OUTCOMES]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"test": name, "outcome": outcome, "reason": reason}) + "\n")
