"""What a run reads, for its card: files of weights, datasets, protocols."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from agreid_plugin.data.check import fingerprint
from agreid_plugin.data.datasets.locations import is_agsynth
from agreid_plugin.engine.run_card import Card
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.inference.weights import sha256


def weight_file(path: str | Path) -> dict[str, Any]:
    """Return what tells a file of weights from another of the same name."""
    return {"path": str(path), "sha256": sha256(path), "bytes": Path(path).stat().st_size}


def weight_files(**paths: str | Path | None) -> dict[str, dict[str, Any]]:
    """Return the same for each of several files by what they are for; those that do not exist are left out."""
    return {role: weight_file(path) for role, path in paths.items() if path and os.path.isfile(path)}


def tested_on(sets: Iterable[EvaluationSet]) -> dict[str, list[str]]:
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
        facts: what else the card is told.
    """
    read = () if args.features else sets  # of kept features the dataset itself may be gone
    card = Card(
        folder,
        task="eval",
        config_file=args.config_file,
        datasets={each.dataset.name: fingerprint(each.dataset) for each in read},
        weights=weight_files(features=args.features) if args.features else weight_files(evaluated=weights),
        **tested_on(sets),
        **facts,
    )
    card.images = sum(len(each.records) for each in read)
    return card
