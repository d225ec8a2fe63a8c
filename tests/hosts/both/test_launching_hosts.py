"""Both hosts in several processes: two machines train what one does; what cannot run is refused before it starts."""

import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path

import launch_cases
import pytest
import torch
import torch.distributed as dist
from conftest import assert_one_line
from fastreid.utils import comm
from processes import free_port, in_processes, on_machines
from small_runs import same

from agreid_plugin.cli.main import main
from agreid_plugin.engine import run
from agreid_plugin.hosts.fastreid.engine import loop
from agreid_plugin.hosts.fastreid.engine.distributed import local_group


def weights(path: Path) -> dict[str, torch.Tensor]:
    content = torch.load(path, weights_only=False)
    return content.get("model") or content["state_dict"]


@pytest.mark.both_hosts
@pytest.mark.parametrize("host", ["fastreid", "mmengine"])
def test_two_machines_train_what_one_does(monkeypatch, capfd, fastreid_command, config_file, tiny_py, tmp_path, host):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads that share a sum round it differently
    config, last = {"fastreid": (config_file, "model_final.pth"), "mmengine": (tiny_py, "epoch_1.pth")}[host]
    train = ["train", "--config", config]
    more = ["SOLVER.MAX_EPOCH", 1] if host == "fastreid" else []
    outcome = fastreid_command(*train, "--output", tmp_path / "one", "--num-processes", 2, *more)
    assert outcome.code == 0, outcome.err
    url = f"tcp://127.0.0.1:{free_port()}"

    def machine(rank: int) -> None:
        told = ["--num-processes", 1, "--num-machines", 2, "--machine-rank", rank, "--dist-url", url]
        assert main([str(word) for word in (*train, "--output", tmp_path / "two", *told, *more)]) == 0

    ends = on_machines(machine)
    assert ends == [None, None], capfd.readouterr().err
    one, two = (weights(tmp_path / folder / last) for folder in ("one", "two"))
    assert same(one, two)


def test_a_host_whose_process_waits_too_long_says_so_in_one_line(monkeypatch, fastreid_command, config_file, tmp_path):
    monkeypatch.setattr(run, "_process", launch_cases.sleeping_training)
    outcome = fastreid_command("train", "--config", config_file, "--output", tmp_path / "run", "--num-processes", 2)
    assert outcome.code == 1
    (line,) = [line for line in outcome.err.splitlines() if "error" in line]
    assert "process 0 of 2 at step 2: averaging gradients (train_loop.py:" in line
    assert line.endswith("took longer than 3 s (--dist-timeout); process 1 at step 2 did not come")


def test_batches_that_processes_cannot_fill_are_refused_before_they_start(fastreid_command, config_file, tmp_path):
    train = ["train", "--config", config_file, "--output", tmp_path / "run", "--num-processes", 2]
    outcome = fastreid_command(*train, "SOLVER.IMS_PER_BATCH", 17)
    assert_one_line(outcome, "SOLVER.IMS_PER_BATCH 17 does not divide by the 2 processes; make it a multiple of 2")
    outcome = fastreid_command(*train, "SOLVER.IMS_PER_BATCH", 40)
    assert_one_line(outcome, "a batch of 40 with 4 images each takes 10 identities, the training set has 8")
    assert not (tmp_path / "run").exists()


@pytest.mark.both_hosts
def test_identities_that_are_too_few_for_mmengines_processes(fastreid_command, tiny_py, tmp_path):
    train = ["train", "--config", tiny_py, "--output", tmp_path / "run", "--num-processes", 3]
    told = "3 processes with a batch of 8 and 4 images each take 6 identities, the training set has 4"
    assert_one_line(fastreid_command(*train), told)
    assert not (tmp_path / "run").exists()


def test_torchrun_starts_a_run_anew_and_it_goes_on(imported, config_file, tmp_path):
    """Process 1 is killed in the second epoch; the same command, started again by torchrun, continues."""
    folder = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    command = [*torchrun, "--max-restarts", 1, "--no-python", *imported.command("killed_once")]
    command += ["train", "--config", config_file, "--output", folder]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    assert json.loads((folder / "run_card.json").read_text())["processes"] == 2
    assert result.stdout.count("iteration 1/6") == 1  # the first epoch was trained once
    assert result.stdout.count("iteration 6/6") == 1
    assert "Traceback" not in result.stderr


def test_processes_that_see_different_checkpoints_are_refused(tmp_path):
    def resumed() -> str:
        found = tmp_path / "model_0001.pth", {"epoch": 1}
        loop.require_same(found)
        loop.require_same(None)
        loop.require_same(found if dist.get_rank() == 0 else None)
        return "went on"

    told = in_processes(2, resumed)
    assert told[0] == told[1]
    assert told[0].startswith("InputError: process 1 does not see the checkpoint that process 0 resumes from: ")


def test_no_group_outlives_a_run_in_what_the_host_caches():
    def left() -> str:
        group = weakref.ref(dist.group.WORLD)
        with local_group(0):
            assert comm.all_gather(dist.get_rank()) == [0, 1]
        dist.barrier()
        dist.destroy_process_group()
        gc.collect()
        return "a group" if group() is not None else "nothing"

    assert in_processes(2, left) == ["nothing", "nothing"]
