"""Processes of a run: what ends them, and that nothing hangs or is left behind."""

import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import slow
from launch_cases import OF_SRUN, arguments, as_a_task, work
from processes import free_port, on_machines

from agreid_plugin.engine.checks import claim_output
from agreid_plugin.engine.distributed import launch, supervisor
from agreid_plugin.engine.distributed.rendezvous import connect, open_store
from agreid_plugin.errors import InputError, RunError


def sums(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("*.sum"))]


def assert_nobody_left(folder: Path, number: int) -> None:
    pids = [int(path.read_text()) for path in folder.glob("*.pid")]
    assert len(pids) == number
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(map(is_running, pids)):
        time.sleep(0.1)
    assert not any(map(is_running, pids))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_all_goes_well(tmp_path):
    launch.launch(work, ("nothing", str(tmp_path)), arguments())
    assert sums(tmp_path) == ["3.0", "3.0"]
    assert_nobody_left(tmp_path, 2)


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("refuse", InputError, "^image a.jpg is no good$"),
        ("fail", RunError, "^process 1 failed: ZeroDivisionError: a real mistake$"),
        ("die", RunError, "^process 1 was killed by SIGKILL at step 7$"),
        ("exit", RunError, "^process 1 ended with exit code 7 at step 7$"),
    ],
)
def test_one_ends_the_other_which_waits_in_a_collective(tmp_path, how, kind, message):
    with pytest.raises(kind, match=message) as caught:
        launch.launch(work, (how, str(tmp_path)), arguments())
    assert ("launch_cases.py" in getattr(caught.value, "trace", "")) == (how == "fail")
    assert_nobody_left(tmp_path, 2)
    assert not sums(tmp_path)


def test_whoever_waits_too_long_names_step_place_and_who_is_missing(tmp_path):
    expected = (
        r"^process 0 of 2 at step 8: all_reduce \(launch_cases.py:\d+\) took longer than 3 s \(--dist-timeout\); "
        "process 1 at step 7 did not come$"
    )
    with pytest.raises(RunError, match=expected):
        launch.launch(work, ("sleep too long", str(tmp_path)), arguments())
    assert_nobody_left(tmp_path, 2)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), *slow((signal.SIGTERM, 143))])
def test_a_command_that_is_killed_leaves_nobody_behind(tmp_path, number, code):
    command = sleeping_command(tmp_path)
    wait_until_all_work(tmp_path)
    command.send_signal(number)
    assert command.wait(60) == code
    assert_nobody_left(tmp_path, 2)


def test_processes_outlive_a_terminal_that_is_closed_until_they_have_saved(tmp_path):
    command = sleeping_command(tmp_path, "save_when_asked")
    wait_until_all_work(tmp_path)
    os.killpg(command.pid, signal.SIGHUP)  # as a shell does
    assert command.wait(60) == 129
    assert sorted(path.name for path in tmp_path.glob("*.saved")) == ["0.saved", "1.saved"]
    assert_nobody_left(tmp_path, 2)


def sleeping_command(folder: Path, function: str = "work", **given) -> subprocess.Popen:
    """Start a command whose process 1 sleeps when all have met."""
    script = (
        "from launch_cases import *\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        f"    launch.launch({function}, ('sleep', {str(folder)!r}), arguments(**{given}))\n"
    )
    (folder / "command.py").write_text(script)
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "helpers"), str(Path(launch.__file__).parents[3])])
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.Popen([sys.executable, folder / "command.py"], env=environment, start_new_session=True)


def wait_until_all_work(folder: Path) -> None:
    deadline = time.monotonic() + 120
    while len(list(folder.glob("[01].pid"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)


# Several machines, and processes that others have started


def two_machines(
    folder: Path, how: str, processes: int = 1, timeout: float = 60.0, **given
) -> list[BaseException | None]:
    url = f"tcp://127.0.0.1:{free_port()}"

    def call(machine: int) -> None:
        args = {"num_machines": 2, "machine_rank": machine, "dist_url": url, **given}
        launch.launch(work, (how, str(folder)), arguments(processes, timeout, **args))

    return on_machines(call)


def test_two_machines_of_two_processes(tmp_path):
    assert two_machines(tmp_path, "nothing", 2) == [None, None]
    assert sums(tmp_path) == ["10.0"] * 4


def test_a_failure_on_one_machine_ends_the_other_which_says_so(tmp_path):
    first, second = two_machines(tmp_path, "refuse")
    assert isinstance(second, InputError)
    assert "process 1 failed at step 7: image a.jpg is no good" in str(first)
    assert_nobody_left(tmp_path, 2)


def test_a_first_machine_that_is_gone_ends_the_other_whatever_it_does(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(supervisor, "LEAVING", 0.5)
    given = {"num_machines": 2, "dist_url": f"tcp://127.0.0.1:{free_port()}", "processes": 1}
    first = sleeping_command(tmp_path, **given)

    def second() -> None:
        launch.launch(work, ("sleep", str(tmp_path)), arguments(**given, machine_rank=1))

    def kill() -> None:
        wait_until_all_work(tmp_path)
        first.kill()

    told, nothing = on_machines(lambda machine: (second, kill)[machine]())
    assert str(told) == "the first machine has gone, and its processes with it"
    assert nothing is None
    assert_nobody_left(tmp_path, 2)
    first.wait()
    assert "frame #" not in capfd.readouterr().err  # torch's page about a store that is gone


def test_a_first_machine_that_is_gone_before_the_other_has_met_it():
    store = open_store(0)
    client = connect("127.0.0.1", store.port, 60)
    del store
    with pytest.raises(RunError, match="the first machine has gone before this one, 1, met it: "):
        launch._agree(client, machine=1, processes=1, machines=2)


def test_machines_that_look_at_one_folder_do_not_disturb_each_other(tmp_path):
    def look(machine: int) -> None:
        for _ in range(200):
            claim_output(tmp_path / "run", resume=False)

    assert on_machines(look, 4) == [None] * 4
    assert list((tmp_path / "run").iterdir()) == []


def test_machines_that_were_told_different_things(tmp_path):
    ends = two_machines(tmp_path, "nothing", timeout=1.0, machine_rank=0)
    assert sum("cannot be opened on this machine" in str(end) for end in ends) == 1
    url = f"tcp://127.0.0.1:{free_port()}"

    def call(machine: int) -> None:
        told = {"num_machines": 2 + machine, "machine_rank": machine, "dist_url": url}
        launch.launch(work, ("nothing", str(tmp_path)), arguments(1, 2.0, **told))

    ends = on_machines(call)
    assert None not in ends
    (told,) = [str(end) for end in ends if "another machine has" in str(end)]  # whichever came second
    sides = re.findall(r"--num-machines (\d) with 1 processes each", told)
    assert sorted(sides) == ["2", "3"]


@pytest.mark.parametrize(("listens", "why"), [(True, "something else listens there"), (False, "Connection refused")])
def test_a_meeting_point_that_is_not_there(tmp_path, listens, why):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if listens:
            other.listen()
        url = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        args = arguments(1, 1.0, num_machines=2, machine_rank=1, dist_url=url)
        with pytest.raises(InputError, match=rf"did not answer within 1 s \({why}\): start the first machine"):
            launch.launch(work, ("nothing", str(tmp_path)), args)


@pytest.mark.parametrize(("how", "told"), [("nothing", ""), ("refuse", "InputError: image a.jpg is no good")])
def test_tasks_of_srun_exchange_and_one_of_them_tells(tmp_path, how, told):
    port, context = free_port(), multiprocessing.get_context("forkserver")
    tasks = []
    for rank in range(2):
        environment = {**OF_SRUN, "SLURM_NTASKS": "2", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        environment |= {"SLURM_NODEID": "0", "SLURM_NODELIST": "localhost", "MASTER_PORT": str(port)}
        tasks.append(context.Process(target=as_a_task, args=(rank, environment, how, str(tmp_path))))
        tasks[-1].start()
    for task in tasks:
        task.join(60)
        task.kill()  # if it hangs, what it has not written tells
    ends = [(tmp_path / f"{rank}.outcome").read_text() for rank in range(2)]
    assert ends == (["SystemExit: 1", told] if told else ["done", "done"])
    assert sums(tmp_path) == ([] if told else ["3.0", "3.0"])
