"""What a run says of its results, whatever the host."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from copy import copy
from pathlib import Path

from tabulate import tabulate

from agreid_plugin.data.protocols import Protocol
from agreid_plugin.evaluation import NUMBERS, FeatureSet, Metrics, confidence_intervals, format_table, save_results
from agreid_plugin.evaluation.ranking_options import RankingOptions

_logger = logging.getLogger(__name__)

PRINTED = {"printed": True}
"""`extra` of a long message that a terminal shows all the same."""


def report(
    path: str | Path, metrics: Sequence[Metrics], draws: int | None = None, logger: logging.Logger = _logger
) -> None:
    """Write results and log them as a table, with confidence intervals if there are draws to make them from."""
    save_results(path, metrics)
    logger.info("results in percent, kept in %s:\n%s", path, format_table(metrics), extra=PRINTED)
    if draws:
        told = _intervals(metrics, draws)
        logger.info("95 %% confidence over query identities, %d draws:\n%s", draws, told, extra=PRINTED)


def save_thresholds(
    folder: str | Path,
    comparison: RankingOptions,
    features: FeatureSet,
    protocols: Iterable[Protocol],
    logger: logging.Logger = _logger,
) -> None:
    """Write the same-person thresholds of each protocol into a folder."""
    for protocol in protocols:
        path = Path(folder) / f"calibration_{str(protocol).replace('/', '_')}.json"
        comparison.calibrate(features, protocol).save(path)
        logger.info("same-person thresholds of %s in %s", protocol, path)


class _Passing(logging.Handler):
    """Hands records to another logger, with their words filled in: mmengine's takes equal patterns for a repetition."""

    def __init__(self, target: logging.Logger):
        super().__init__()
        self.target = target

    def emit(self, record: logging.LogRecord) -> None:
        if self.target.isEnabledFor(record.levelno):
            filled = copy(record)
            filled.msg, filled.args = record.getMessage(), None
            self.target.handle(filled)


def speak_through(logger: logging.Logger) -> None:
    """Let the host's logger say what this package logs by its own name, `agreid_plugin`."""
    ours = logging.getLogger("agreid_plugin")
    for handler in [handler for handler in ours.handlers if isinstance(handler, _Passing)]:
        ours.removeHandler(handler)  # of an earlier run in this process
    ours.addHandler(_Passing(logger))
    ours.setLevel(logging.INFO)


def _intervals(metrics: Iterable[Metrics], draws: int) -> str:
    rows = [[entry.protocol, *confidence_intervals(entry, draws=draws).values()] for entry in metrics]
    return tabulate(rows, ["protocol", *NUMBERS], tablefmt="github")
