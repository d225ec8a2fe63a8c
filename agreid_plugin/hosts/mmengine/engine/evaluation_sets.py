"""What a configuration of the host's is tested on, and how its features are compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.evaluation.ranking_options import RankingOptions
from agreid_plugin.hosts.mmengine.config.checks import BuildErrors
from agreid_plugin.hosts.mmengine.config.loading import each_dict, load_config, type_name
from agreid_plugin.hosts.mmengine.data.datasets import ReIDDataset
from agreid_plugin.hosts.mmengine.host import comparison
from agreid_plugin.hosts.mmengine.registry import DATASETS


def test_sets_of(config: str | Path, overrides: Sequence[str]) -> list[EvaluationSet]:
    """Return the test sets of a configuration."""
    cfg = load_config(config, overrides)
    parts = [part for _, part in each_dict(cfg.get("test_dataloader")) if type_name(part) == ReIDDataset.__name__]
    if not parts:
        raise InputError(
            f"{config} has no test_dataloader with an agreid_plugin.ReIDDataset, which says what to look at"
        )
    with BuildErrors():
        return [DATASETS.build(part).metainfo["test_set"] for part in parts]


def comparison_of(config: str | Path, overrides: Sequence[str]) -> RankingOptions:
    """Return how the configuration wants features compared."""
    return comparison(load_config(config, overrides))
