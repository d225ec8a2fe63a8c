"""The runs of a grid, by what their folders hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from fastreid.config import CfgNode, get_cfg

from agreid_plugin.data.atomic_write import whole_file
from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.data.datasets.files import read_json
from agreid_plugin.engine.checks import MARKER
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import Metrics, find_covered, load_features, load_results
from agreid_plugin.evaluation.evaluation_sets import choose_protocols
from agreid_plugin.evaluation.results import FILE_NAME as RESULTS
from agreid_plugin.hosts.fastreid.config.loading import key_paths, load_config
from agreid_plugin.hosts.fastreid.engine.evaluator import comparison

RECORD, FEATURES, EVALUATION = "ablation_run.json", "features.npz", "eval"


@dataclass(frozen=True)
class Run:
    """One row with one seed: its configuration, as `KEY VALUE` overrides of a file, and its folder."""

    row: str
    seed: int
    config: Path
    overrides: tuple[str, ...]
    folder: Path

    def __str__(self) -> str:
        return f"{self.row}, seed {self.seed}"

    @property
    def arguments(self) -> list[str]:
        """All overrides; an ablated row is not held to the results that its recipe expects."""
        return [*self.overrides, "SEED", str(self.seed), "TEST.EXPECTED_RESULTS", "[]"]

    def load(self) -> CfgNode:
        """Return the configuration."""
        return load_config(self.config, self.arguments)

    def settings(self) -> dict[str, Any]:
        """Return every key that is not at the host's default or ours, but for the folder, as JSON has it."""
        values, defaults = (json.loads(json.dumps(_flat(cfg))) for cfg in (self.load(), get_cfg()))
        return {key: value for key, value in values.items() if value != defaults[key] and key != "OUTPUT_DIR"}

    def record(self) -> dict[str, Any]:
        """Return what was kept of the run; nothing if it was never started."""
        path = self.folder / RECORD
        record = read_json(path, dict) if path.exists() else {}
        seconds = record.get("seconds") or 0
        if not (isinstance(record.get("settings", {}), dict) and isinstance(seconds, int | float) and seconds >= 0):
            raise InputError(f"{path} is not what 'fastreid ablate' writes: delete the folder to train it again")
        return record

    def keep(self, **outcome: Any) -> None:
        """Write what the run is and how it went."""
        about = {"row": self.row, "seed": self.seed, "config": str(self.config), "overrides": self.overrides}
        text = json.dumps({**about, **outcome, "settings": self.settings()}, indent=2)
        with whole_file(self.folder / RECORD) as draft:
            draft.write_text(text + "\n", encoding="utf-8")

    @property
    def trained(self) -> bool:
        """Whether training came to its end; results.json alone may be of an earlier epoch."""
        return bool(self.record().get("finished")) and (self.folder / RESULTS).exists()

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.trained and (self.folder / FEATURES).exists()

    def check_folder(self) -> None:
        """Refuse a folder with another run than this one: its numbers would stand under a wrong name."""
        record, advice = self.record(), "name another --output, or delete the folder"
        if not record and any((self.folder / name).exists() for name in (RESULTS, MARKER)):
            raise InputError(f"{self.folder} holds a run that 'fastreid ablate' did not make; {advice}")
        before, now = record.get("settings", {}), self.settings() if record else {}
        for key in sorted(now.keys() | before.keys()):
            then, asked = (settings.get(key, "at its default") for settings in (before, now))
            if then != asked:
                what = f"{key} {then}, row {self.row!r} asks for {asked}"
                raise InputError(f"{self.folder} was made with {what}; {advice}")

    @property
    def state(self) -> str:
        """What is to be done, in words."""
        if self.trained:
            return "done" if self.done else "to evaluate"
        return "to continue" if (self.folder / MARKER).exists() else "to train"

    def metrics(self, protocols: Sequence[str]) -> dict[str, Metrics]:
        """Return the numbers under protocols (none: all) by full name, new ones from the features that were kept."""
        kept = self.folder / EVALUATION / RESULTS
        entries = load_results(kept).values() if kept.exists() else ()
        found = {each.protocol: each for by_name in entries for each in by_name.values()}
        if any(name not in found for name in protocols) or not found:
            features = load_features(self.folder / FEATURES)
            names = [name.partition("/")[2] for name in protocols if name not in found]
            every = not names and features.dataset.name in DATASETS
            wanted = find_covered(features) if every else choose_protocols(features.dataset, names).values()
            found |= {each.protocol: each for each in comparison(self.load()).compute(features, wanted)}
        return {name: found[name] for name in protocols or found}


def _flat(cfg: CfgNode) -> dict[str, Any]:
    return {path: attrgetter(path)(cfg) for path in key_paths(cfg)}


@dataclass(frozen=True)
class Grid:
    """Runs, row by row, and the columns of their table: full names of protocols (none: all) and numbers."""

    folder: Path
    runs: tuple[Run, ...]
    dataset: str
    protocols: tuple[str, ...]
    metrics: tuple[str, ...]
