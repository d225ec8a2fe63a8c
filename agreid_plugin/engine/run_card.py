"""Run cards: what a run was made of and what it cost, in run_card.json of its folder."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from agreid_plugin.data.atomic_write import atomic_write
from agreid_plugin.data.check import fingerprint
from agreid_plugin.data.datasets.locations import is_agsynth
from agreid_plugin.data.files import read_json
from agreid_plugin.engine.checkpoints import tolerate_full_disk
from agreid_plugin.engine.processes import peak_memory
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.evaluation.results import RUN_CARD_FILE
from agreid_plugin.inference.weights import sha256 as file_hash
from agreid_plugin.version import __version__

PACKAGES = (
    *("agreid-plugin", "fastreid", "mmengine", "mmpretrain", "mmcv-lite", "mmcv", "torch", "torchvision"),
    *("numpy", "pillow", "scipy", "faiss-cpu", "yacs", "open_clip_torch", "timm"),
)
RUNNING, FINISHED = "running", "finished"

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


class Card:
    """The card of a run that starts now; a run that goes on keeps the sessions of its card.

    As a context it ends the card with the block, with the kind of error that left it, if one did.

    Args:
        folder: the run's folder.
        config: the configuration as plain values.
        host: `fast-reid` or `mmengine`.
        task: `train` or `eval`.
        processes: how many take part.
        seed: what random numbers start from.
        host_fixes: the fixes applied to the host, name -> reason.
        config_file: where the configuration was read; empty if from nowhere.
        resumed: whether the run goes on from a checkpoint of its own.
        extra: what else is worth knowing: `datasets`, `weights`, `batch`, `protocols`, `setup`.
    """

    def __init__(
        self,
        folder: str | Path,
        config: Mapping[str, Any],
        *,
        host: str,
        task: str,
        processes: int,
        seed: int | None,
        host_fixes: Mapping[str, str],
        config_file: str | Path = "",
        resumed: bool = False,
        **extra: Any,
    ):
        self.path = Path(folder) / RUN_CARD_FILE
        self.images = 0
        """How many went through the model; the caller counts them."""
        self._meter = Meter(processes)
        self._card = {
            "host": host,
            "task": task,
            "recipe": trace_recipe(config_file),
            "code": code_version(),
            "versions": versions(),
            "host_fixes": dict(host_fixes),
            "devices": devices(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "processes": processes,
            "seed": seed,
            **extra,
            "sessions": [*(_read_sessions(self.path) if resumed else ()), _session()],
            "config": config,
        }
        self._write()

    def __enter__(self) -> Card:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.end(error)

    def update(self, outcome: str = RUNNING) -> None:
        """Write what the session has cost so far, and what it is at or came to."""
        session = self._card["sessions"][-1]
        session.update(outcome=outcome, ended=None if outcome == RUNNING else _now())
        session.update(self._meter.figures(self.images))
        with tolerate_full_disk(self.path):
            self._write()

    def end(self, error: BaseException | None = None) -> None:
        """Write what the session has cost, and the kind of error that ended it, if one did."""
        self._meter.stop()
        self.update(FINISHED if error is None else type(error).__name__)

    def _write(self) -> None:
        with atomic_write(self.path) as draft:
            draft.write_text(json.dumps(self._card, indent=2) + "\n", encoding="utf-8")


def weight_file(path: str | Path) -> dict[str, Any]:
    """Return path, hash and size of a file of weights."""
    return {"path": str(path), "sha256": file_hash(path), "bytes": Path(path).stat().st_size}


def weight_files(**paths: str | Path | None) -> dict[str, dict[str, Any]]:
    """Return the same for each of several files by what they are for; those that do not exist are left out."""
    return {role: weight_file(path) for role, path in paths.items() if path and os.path.isfile(path)}


def protocol_facts(sets: Iterable[EvaluationSet]) -> dict[str, list[str]]:
    """Return the protocols of test sets by their full names, and which of the datasets are AG-Synth."""
    sets = list(sets)
    return {
        "protocols": [str(protocol) for each in sets for protocol in each.protocols.values()],
        "synthetic": sorted({each.dataset.name for each in sets if is_agsynth(Path(each.dataset.records[0].path))}),
    }


def evaluation_card(
    folder: str | Path, args: Namespace, sets: Sequence[EvaluationSet], weights: str | Path | None, **facts: Any
) -> Card:
    """Begin the card of an evaluation.

    Args:
        folder: where its results go.
        args: of `fastreid eval`; with `--features` no model and no image is read.
        sets: what is tested on.
        weights: the checkpoint.
        facts: what else the card records.
    """
    read = () if args.features else sets  # of kept features the dataset itself may be gone
    card = Card(
        folder,
        task="eval",
        config_file=args.config_file,
        datasets={each.dataset.name: fingerprint(each.dataset) for each in read},
        weights=weight_files(features=args.features) if args.features else weight_files(evaluated=weights),
        **protocol_facts(sets),
        **facts,
    )
    card.images = sum(len(each.records) for each in read)
    return card


def read_seed(folder: str | Path) -> int | None:
    """Return the seed of the run in a folder, None if no card has it."""
    try:
        seed = json.loads((Path(folder) / RUN_CARD_FILE).read_text(encoding="utf-8"))["seed"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return seed if isinstance(seed, int) else None


def versions() -> dict[str, str]:
    """Return the version of Python and of each package that matters; `missing` for one that is not installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def devices() -> list[str]:
    """Return the names of the GPUs, or of the processor without one."""
    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return [f"cpu ({torch.get_num_threads()} threads)"]


def code_version(package: Path = Path(__file__).parents[1]) -> dict[str, Any]:
    """Return this package's version and, in a checkout, its commit and a hash of the changes since."""
    found = {"version": __version__, "commit": None, "dirty": None, "changes": None}
    if (package.parent / ".git").exists():
        found["commit"] = _git(package.parent, "rev-parse", "HEAD")
        changes = _git(package.parent, "diff", "HEAD")
        found["dirty"] = None if changes is None else bool(changes)
        found["changes"] = sha256(changes.encode()).hexdigest() if changes else None
    return found


def trace_recipe(config_file: str | Path) -> str:
    """Return the file a run was configured by: that of the run whose own copy of it was given."""
    if not config_file:
        return ""
    path = Path(config_file).absolute()
    card = path.parent / RUN_CARD_FILE
    if card.is_file():
        recipe = read_json(card, dict).get("recipe")
        return recipe if isinstance(recipe, str) and recipe else str(path)
    return str(path)


def _session() -> dict[str, Any]:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "started": _now(),
        "ended": None,
        "outcome": RUNNING,
        "command": sys.argv,
        "devices": devices(),
        "load": load,
    }


def _read_sessions(path: Path) -> list[dict[str, Any]]:
    sessions = read_json(path, dict).get("sessions", []) if path.is_file() else []
    return sessions if isinstance(sessions, list) else []


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _processor() -> str | None:
    """Return the name of the processor, None where it is not known."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or None)


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git answers, None if it is not installed or refuses."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()
