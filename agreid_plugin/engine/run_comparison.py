"""Comparison of runs: differences of two by their run cards, and the paper that one belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agreid_plugin.data.datasets.tree import normalize_name
from agreid_plugin.engine.configuration import RECIPES
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.evaluation.papers import FILE_NAME, Paper, load_paper

ABSENT = "not recorded"
RUN_KEYS = frozenset({"OUTPUT_DIR", "work_dir"})
"""Configuration keys that two runs cannot share."""
SEED_KEYS = frozenset({"SEED", "randomness.seed"})
HINTS = {
    "run": "another host or task: of the configurations only what both hosts know is compared",
    "protocols": "numbers of different protocols do not compare",
    "datasets": "another copy or version of the data: 'fastreid data check' holds each against the published counts",
    "weights": "files of one name may hold other weights; this moves numbers more than anything in training",
    "batch": "what one step sees: hard triplets and contrastive losses depend on it, and learning rates are not scaled",
    "setup": "what both hosts' configurations have",
    "config": "",
    "seed": "one seed is one draw: compare means over several ('fastreid ablate' makes them)",
    "code": "",
    "versions": "another torch changes kernels and defaults, and has explained gaps before",
    "host_fixes": "host fixes that only one of the runs had",
    "devices": "sums in another order, and mixed precision on GPUs only",
}
"""Groups in their order -> what to know of a difference."""


@dataclass(frozen=True)
class Difference:
    """One thing that two runs do not share."""

    group: str
    name: str
    a: Any
    b: Any


def find_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    """Return everything that two run cards record differently; see `HINTS` for the groups."""
    facts = [_facts(card, across=a.get("host") != b.get("host")) for card in (a, b)]
    found = []
    for group in HINTS:
        ours, theirs = (each.get(group, {}) for each in facts)
        for name in dict.fromkeys([*ours, *theirs]):
            pair = ours.get(name, ABSENT), theirs.get(name, ABSENT)
            if pair[0] != pair[1]:
                found.append(Difference(group, name, *pair))
    return found


def _facts(card: Mapping[str, Any], across: bool) -> dict[str, dict[str, Any]]:
    """Return what a card records by group and name, as values that can be held against another card's."""
    config = dict(_flat(card["config"]))
    left_out = RUN_KEYS | (SEED_KEYS if "seed" in card else frozenset())
    return {
        "run": {name: card.get(name, ABSENT) for name in ("host", "task")},
        "protocols": dict.fromkeys(card.get("protocols", ()), "yes"),
        "datasets": {normalize_name(name): value for name, value in card.get("datasets", {}).items()},
        "weights": {role: _weights(each) for role, each in card.get("weights", {}).items()},
        "batch": {"processes": card["processes"], **card.get("batch", {})},
        "setup": card.get("setup", {}) if across else {},
        "config": {} if across else {key: value for key, value in config.items() if key not in left_out},
        "seed": {"seed": card.get("seed", ABSENT)},
        "code": card.get("code", {}),
        "versions": _torch_first(card["versions"]),
        "host_fixes": dict.fromkeys([] if across else card["host_fixes"], "applied"),
        "devices": {"names": card["devices"], **{key: card[key] for key in ("processor", "cores") if key in card}},
    }


def _flat(config: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(config, Mapping) and config:
        for key, value in config.items():
            yield from _flat(value, f"{where}.{key}" if where else str(key))
    else:
        yield where, config


def _weights(record: Any) -> Any:
    """Return what a file of weights holds, wherever it lies."""
    return record.get("sha256", ABSENT) if isinstance(record, Mapping) else record


def _torch_first(versions: Mapping[str, str]) -> dict[str, str]:
    return {"torch": versions.get("torch", ABSENT), **versions}


def find_paper(card: Mapping[str, Any] | None, asked: str = "") -> Paper:
    """Return the paper to set a run's numbers beside.

    Args:
        card: the run's card; None if there is none.
        asked: a project's name, a paper's file or its folder; empty finds the run's own.

    Raises:
        InputError: there is none by that name, or none is known for the run.
    """
    recipe = Path((card or {}).get("recipe") or "")
    known = list_papers(recipe)
    if asked:
        return load_paper(_find_named(asked, known))
    beside = recipe.parent / FILE_NAME
    if recipe.name and beside.is_file():
        return load_paper(beside)
    architecture = (card or {}).get("setup", {}).get("architecture")
    fitting = [paper for paper in map(load_paper, known.values()) if paper.architecture == architecture]
    if not architecture or not fitting:
        why = f"its architecture {architecture!r} is in no project's paper.yml" if architecture else "no run card says"
        raise InputError(f"which paper? {why}; name one: --paper {'|'.join(known) or 'FILE'}")
    return fitting[0]


def list_papers(recipe: Path = Path()) -> dict[str, Path]:
    """Return the papers' files by project: of the folder `projects` here, of the recipe's, and of this package."""
    folders = [Path("projects"), *([recipe.parent.parent] if recipe.name else []), RECIPES / "projects"]
    found = [path for folder in folders for path in sorted(folder.glob(f"*/{FILE_NAME}"))]
    return {path.absolute().parent.name: path for path in reversed(found)}


def _find_named(asked: str, known: Mapping[str, Path]) -> Path:
    if Path(asked).suffix in (".yml", ".yaml") or Path(asked).is_dir():
        return Path(asked)
    by_name = {name.lower(): path for name, path in known.items()}
    if asked.lower() not in by_name:
        raise unknown("--paper", asked, known)
    return by_name[asked.lower()]
