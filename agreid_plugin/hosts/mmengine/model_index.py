"""Model index of mmpretrain: our recipes by name, as `visa_cargo`, beside its own models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from agreid_plugin.engine.configuration import RECIPES

TASK = "Image Retrieval"
"""By which `inference_model` chooses mmpretrain's inferencer."""


def run_import(module: str, execute: Callable[[], None]) -> None:
    """Run the import of `mmpretrain.apis.model`, and add our recipes to its `ModelHub`; called by the import hook."""
    from modelindex.models.Model import Model

    execute()
    hub = sys.modules[module].ModelHub
    for name, path in list_recipes():
        results = [{"Task": TASK, "Dataset": path.stem, "Metrics": {}}]
        hub._models_dict[name] = Model(name=name, config=str(path), results=results)


def list_recipes(root: Path = RECIPES) -> Iterator[tuple[str, Path]]:
    """Yield the names and files of mmengine's recipes: those with a folder to run in; others are bases of these."""
    for path in sorted((root / "projects").glob("*/*.py")):
        if "\nwork_dir = " in path.read_text(encoding="utf-8"):
            yield f"{path.parent.name}_{path.stem}".lower(), path
