"""What two runs differ in by their run cards, the most telling first, with what is known to explain gaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agreid_plugin.data.datasets.tree import plain

ABSENT = "not recorded"
OWN_TO_A_RUN = frozenset({"OUTPUT_DIR", "work_dir"})
"""Configuration keys that two runs cannot share."""
TOLD_ELSEWHERE = frozenset({"SEED", "randomness.seed"})
HINTS = {
    "run": "another host or task: of the configurations only what both hosts know is compared",
    "protocols": "numbers of different protocols do not compare",
    "datasets": "another copy or version of the data: 'fastreid data check' holds each against the published counts",
    "weights": "files of one name may hold other weights; this moves numbers more than anything in training",
    "batch": "what one step sees: hard triplets and contrastive losses depend on it, and learning rates are not scaled",
    "setup": "what both hosts' configurations tell",
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


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
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
    left_out = OWN_TO_A_RUN | (TOLD_ELSEWHERE if "seed" in card else frozenset())
    return {
        "run": {name: card.get(name, ABSENT) for name in ("host", "task")},
        "protocols": dict.fromkeys(card.get("protocols", ()), "yes"),
        "datasets": {plain(name): value for name, value in card.get("datasets", {}).items()},
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
