"""Meter of the cost of a run: time, memory and energy, None where they cannot be measured."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agreid_plugin.engine.processes import peak_memory

POWERCAP = Path("/sys/class/powercap")
"""Where Linux keeps the energy counters of processors (RAPL)."""
PERIOD = 20.0  # seconds between two looks at the counters, which run over after minutes
MEGABYTE = 2**20


class Meter:
    """Measures this process and its machine from its making on.

    Processor time and memory are those of this process, and of its workers that have ended; the energy counters are the
    machine's, with all that runs there.

    Args:
        devices: how many take part, GPUs or processes without them, on all machines.
    """

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._started = time.monotonic()
        self._cpu = _cpu_seconds()
        self._energy = Energy(gpus=_gpu_names(devices))

    def figures(self, images: int) -> dict[str, Any]:
        """Return what has been measured so far, and how fast as many images went through the model."""
        wall = time.monotonic() - self._started
        return {
            "wall_seconds": round(wall, 3),
            "cpu_seconds": round(_cpu_seconds() - self._cpu, 3),
            "images": images,
            "images_per_second": round(images / wall, 3) if wall else None,
            "device_hours": round(self._devices * wall / 3600, 6),
            "peak_memory_mb": round(peak_memory(), 1),
            "peak_cuda_memory_mb": _peak_cuda_memory(),
            **self._energy.figures(),
        }

    def stop(self) -> None:
        """Stop looking at the counters."""
        self._energy.stop()


class Energy:
    """Adds up energy counters and power readings in a thread, where there are any that this user may read.

    Args:
        powercap: where the processors' counters are.
        gpus: what nvidia-smi calls the GPUs to ask for.
        period: seconds between two looks.
    """

    def __init__(self, powercap: Path = POWERCAP, gpus: Sequence[str] = (), period: float = PERIOD):
        self._counters = [_Counter(zone) for zone in sorted(powercap.glob("intel-rapl:?")) if _readable(zone)]
        self._gpus = gpus
        self._watts: list[float] = []
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._sample()
        if self._counters or self._watts:
            threading.Thread(target=self._watch, args=(period,), name="energy", daemon=True).start()

    def figures(self) -> dict[str, float | None]:
        """Return the joules of the processors and the mean watts of the GPUs together, None where unknown."""
        self._sample()
        with self._lock:
            whole = self._counters and not any(counter.lost for counter in self._counters)
            joules = round(sum(counter.joules for counter in self._counters), 3) if whole else None
            watts = round(sum(self._watts) / len(self._watts), 2) if self._watts else None
        return {"cpu_joules": joules, "gpu_watts": watts}

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _watch(self, period: float) -> None:
        while not self._stopped.wait(period):
            self._sample()

    def _sample(self) -> None:
        watts = _gpu_watts(self._gpus)
        with self._lock:
            for counter in self._counters:
                counter.look()
            if watts is not None:
                self._watts.append(watts)


class _Counter:
    """One processor's energy counter, which starts again when it is full; lost once it cannot be read any more."""

    def __init__(self, zone: Path):
        self._file = zone / "energy_uj"
        self._full = int((zone / "max_energy_range_uj").read_text())
        self._last = int(self._file.read_text())
        self.joules, self.lost = 0.0, False

    def look(self) -> None:
        """Add what was used since the last look."""
        try:
            now = int(self._file.read_text())
        except (OSError, ValueError):  # no reason to end a run
            self.lost = True
            return
        self.joules += ((now - self._last) % (self._full + 1)) / 1e6
        self._last = now


def _readable(zone: Path) -> bool:
    return all(os.access(zone / name, os.R_OK) for name in ("energy_uj", "max_energy_range_uj"))


def _gpu_names(devices: int) -> list[str]:
    """Return what nvidia-smi calls the GPUs of this machine that take part: the hosts count them from the first on."""
    if not torch.cuda.is_available() or not shutil.which("nvidia-smi"):
        return []
    here = range(min(devices, torch.cuda.device_count()))
    return [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in here]


def _gpu_watts(names: Sequence[str]) -> float | None:
    if not names:
        return None
    command = ["nvidia-smi", f"--id={','.join(names)}", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return sum(float(line) for line in answer.split())
    except (OSError, subprocess.SubprocessError, ValueError):  # no permission, or a GPU that has no such reading
        return None


def _cpu_seconds() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def _peak_cuda_memory() -> float | None:
    """Return what this process has taken of its own GPU at most."""
    return round(torch.cuda.max_memory_allocated() / MEGABYTE, 1) if torch.cuda.is_available() else None
