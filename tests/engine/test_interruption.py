"""Signals that ask a run to end, and the terminal that it prints to."""

import os
import pty
import signal

import pytest
from processes import in_processes

from agreid_plugin.engine.signals import Interruption, leave_closed_terminal
from agreid_plugin.errors import Stopped


@pytest.mark.parametrize(("before", "asked"), [(signal.SIG_DFL, "SIGHUP"), (signal.SIG_IGN, "None")])
def test_a_hang_up_is_taken_unless_it_is_ignored_as_under_nohup(before, asked):
    def work() -> str:
        signal.signal(signal.SIGHUP, before)
        with Interruption() as interruption, interruption.deferred():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == before
        return "None" if interruption.asked is None else signal.Signals(interruption.asked).name

    assert in_processes(1, work, grouped=False) == [asked]


def test_a_hang_up_where_nothing_can_be_saved_stops_at_once():
    def work() -> str:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(Stopped) as stopped, Interruption():
            os.kill(os.getpid(), signal.SIGHUP)
        return f"{stopped.value.signal.name} {stopped.value.code}"

    assert in_processes(1, work, grouped=False) == ["SIGHUP 129"]


def test_what_is_printed_to_a_closed_terminal_goes_nowhere(tmp_path):
    def work() -> str:
        terminal, side = pty.openpty()
        log = os.open(tmp_path / "log.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(side, 2)
        leave_closed_terminal()
        assert os.isatty(2)  # it is open
        os.close(terminal)
        with pytest.raises(OSError, match="Input/output error"):
            os.write(2, b"lost")
        leave_closed_terminal()
        os.write(1, b"kept")
        return str(os.write(2, b"lost"))

    assert in_processes(1, work, grouped=False) == ["4"]
    assert (tmp_path / "log.txt").read_text() == "kept"
