"""Which paper a run belongs to: that of the recipe's project, else the one whose architecture it has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agreid_plugin.engine.recipes import RECIPES
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.evaluation.papers import FILE_NAME, Paper, load_paper


def paper_for(card: Mapping[str, Any] | None, asked: str = "") -> Paper:
    """Return the paper to set a run's numbers beside.

    Args:
        card: the run's card; None if there is none.
        asked: a project's name, a paper's file or its folder; empty finds the run's own.

    Raises:
        InputError: there is none by that name, or none is known for the run.
    """
    recipe = Path((card or {}).get("recipe") or "")
    known = papers(recipe)
    if asked:
        return load_paper(_asked(asked, known))
    beside = recipe.parent / FILE_NAME
    if recipe.name and beside.is_file():
        return load_paper(beside)
    architecture = (card or {}).get("setup", {}).get("architecture")
    fitting = [paper for paper in map(load_paper, known.values()) if paper.architecture == architecture]
    if not architecture or not fitting:
        why = f"its architecture {architecture!r} is in no project's paper.yml" if architecture else "no run card says"
        raise InputError(f"which paper? {why}; name one: --paper {'|'.join(known) or 'FILE'}")
    return fitting[0]


def papers(recipe: Path = Path()) -> dict[str, Path]:
    """Return the papers' files by project: of the folder `projects` here, of the recipe's, and of this package."""
    folders = [Path("projects"), *([recipe.parent.parent] if recipe.name else []), RECIPES / "projects"]
    found = [path for folder in folders for path in sorted(folder.glob(f"*/{FILE_NAME}"))]
    return {path.absolute().parent.name: path for path in reversed(found)}


def _asked(asked: str, known: Mapping[str, Path]) -> Path:
    if Path(asked).suffix in (".yml", ".yaml") or Path(asked).is_dir():
        return Path(asked)
    by_name = {name.lower(): path for name, path in known.items()}
    if asked.lower() not in by_name:
        raise unknown("--paper", asked, known)
    return by_name[asked.lower()]
