"""Run cards: what a run was made of and what it cost, in run_card.json of its folder."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
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
from agreid_plugin.engine.run_costs import Meter
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.evaluation.results import RUN_CARD_FILE
from agreid_plugin.inference.weights import sha256 as file_hash
from agreid_plugin.version import __version__

PACKAGES = (
    *("agreid-plugin", "fastreid", "mmengine", "mmpretrain", "mmcv-lite", "mmcv", "torch", "torchvision"),
    *("numpy", "pillow", "scipy", "faiss-cpu", "yacs", "open_clip_torch", "timm"),
)
RUNNING, FINISHED = "running", "finished"


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
