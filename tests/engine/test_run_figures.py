"""What a run cost: measured where it can be, absent where not."""

import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch

from agreid_plugin.engine import run_card
from agreid_plugin.engine.run_card import Energy, Meter

FULL = 1_000_000_000


def zone(folder, number: int, microjoules: int):
    """Write a processor's counter as Linux has it."""
    place = folder / f"intel-rapl:{number}"
    place.mkdir(exist_ok=True)
    (place / "max_energy_range_uj").write_text(f"{FULL - 1}\n")
    (folder / "next").write_text(f"{microjoules}\n")
    (folder / "next").replace(place / "energy_uj")  # as a counter never reads empty
    return place


def test_processor_time_counts_children_that_have_ended():
    meter = Meter(devices=3)
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-S", "-c", busy], check=True)
    figures = meter.figures(images=6)
    assert figures["cpu_seconds"] >= 0.3
    assert figures["images"] == 6
    assert figures["images_per_second"] == pytest.approx(6 / figures["wall_seconds"], rel=0.01)
    assert figures["device_hours"] == pytest.approx(3 * figures["wall_seconds"] / 3600, abs=1e-6)
    assert (figures["peak_cuda_memory_mb"] is None) == (not torch.cuda.is_available())


def test_energy_is_the_sum_of_the_processors_counters_over_their_ends(tmp_path):
    zone(tmp_path, 0, 5_000_000)
    zone(tmp_path, 1, FULL - 2_000_000)
    zone(tmp_path, 0, 5_000_000).joinpath("intel-rapl:0:0").mkdir()  # a part of the first, not to be counted twice
    energy = Energy(tmp_path)
    zone(tmp_path, 0, 9_000_000)
    zone(tmp_path, 1, 1_000_000)  # it has begun anew
    assert energy.figures() == {"cpu_joules": 4 + 3, "gpu_watts": None}
    zone(tmp_path, 1, 2_000_000)
    assert energy.figures()["cpu_joules"] == 8
    energy.stop()


def test_counters_are_looked_at_meanwhile_or_a_second_round_would_be_lost(tmp_path):
    zone(tmp_path, 0, 0)
    energy = Energy(tmp_path, period=0.01)
    (counter,) = energy._counters
    for half, value in enumerate((FULL // 2, 0, FULL // 2, 0), start=1):  # twice around
        zone(tmp_path, 0, value)
        wait_until(lambda done=half * FULL / 2e6: counter.joules == done)
    energy.stop()
    assert energy.figures()["cpu_joules"] == 2 * FULL / 1e6


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_counter_that_is_lost_ends_no_run_and_no_half_of_it_is_told(tmp_path):
    place = zone(tmp_path, 0, 0)
    zone(tmp_path, 1, 0)
    energy = Energy(tmp_path)
    (place / "energy_uj").unlink()
    assert energy.figures()["cpu_joules"] is None
    energy.stop()


@pytest.mark.parametrize("missing", ["energy_uj", "max_energy_range_uj", ""])
def test_what_cannot_be_read_is_absent_and_no_thread_watches_it(tmp_path, missing, monkeypatch):
    if missing:
        (zone(tmp_path, 0, 1) / missing).unlink()
    started = []
    monkeypatch.setattr(run_card.threading, "Thread", lambda **given: started.append(given))
    assert Energy(tmp_path).figures() == {"cpu_joules": None, "gpu_watts": None}
    assert not started


def test_watts_are_the_mean_of_what_the_driver_tells(tmp_path, monkeypatch):
    """The driver's own command, asked for the GPUs by name; here a stand-in of the same name answers."""
    told = tmp_path / "nvidia-smi"
    told.write_text('#!/bin/sh\n[ "$1" = --id=GPU-a,GPU-b ] && printf "100.5\\n49.5\\n"\n')
    told.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    gpus = ["GPU-a", "GPU-b"]
    energy = Energy(tmp_path / "nowhere", gpus)
    assert energy.figures() == {"cpu_joules": None, "gpu_watts": 150.0}
    energy.stop()
    told.write_text("#!/bin/sh\necho '[N/A]'\n")
    assert Energy(tmp_path / "nowhere", gpus).figures()["gpu_watts"] is None
