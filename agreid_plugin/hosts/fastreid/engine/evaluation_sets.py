"""What a configuration of the host's is tested on, and how its features are compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.evaluation.ranking_options import RankingOptions
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.engine.evaluator import comparison, test_sets


def test_sets_of(config: str | Path, overrides: Sequence[str]) -> list[EvaluationSet]:
    """Return the test sets of a configuration."""
    return test_sets(load_config(config, overrides))


def comparison_of(config: str | Path, overrides: Sequence[str]) -> RankingOptions:
    """Return how the configuration wants features compared."""
    return comparison(load_config(config, overrides))
