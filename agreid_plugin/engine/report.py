"""Results and logs of a run on a terminal: tables, thresholds, no dumps, no clash with progress bars."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from copy import copy
from functools import partial
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

from agreid_plugin.data.protocols import Protocol
from agreid_plugin.errors import InputError
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
        table = _intervals(metrics, draws)
        logger.info("95 %% confidence over query identities, %d draws:\n%s", draws, table, extra=PRINTED)


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


class _ForwardingHandler(logging.Handler):
    """Hands records to another logger, with their words filled in: mmengine's takes equal patterns for a repetition."""

    def __init__(self, target: logging.Logger):
        super().__init__()
        self.target = target

    def emit(self, record: logging.LogRecord) -> None:
        if self.target.isEnabledFor(record.levelno):
            filled = copy(record)
            filled.msg, filled.args = record.getMessage(), None
            self.target.handle(filled)


def forward_logs(logger: logging.Logger) -> None:
    """Forward the records of this package's logger, `agreid_plugin`, to the host's."""
    ours = logging.getLogger("agreid_plugin")
    for handler in [handler for handler in ours.handlers if isinstance(handler, _ForwardingHandler)]:
        ours.removeHandler(handler)  # of an earlier run in this process
    ours.addHandler(_ForwardingHandler(logger))
    ours.setLevel(logging.INFO)


def _intervals(metrics: Iterable[Metrics], draws: int) -> str:
    rows = [[entry.protocol, *confidence_intervals(entry, draws=draws).values()] for entry in metrics]
    return tabulate(rows, ["protocol", *NUMBERS], tablefmt="github")


LONG_MESSAGE = 12
"""Lines above which a message goes to the log file alone: hosts log their configuration, environment and model."""


class ConsoleHandler(logging.StreamHandler):
    """Prints records above a progress bar, if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record."""
        tqdm.write(self.format(record), file=sys.stdout)
        sys.stdout.flush()


class _ConsoleFilter(logging.Filter):
    def __init__(self, noise: Sequence[str]):
        super().__init__()
        self.noise = tuple(noise)

    def filter(self, record: logging.LogRecord) -> bool:
        expected = record.exc_info and isinstance(record.exc_info[1], InputError)  # the command says it in one line
        text = record.getMessage()
        short = text.count("\n") < LONG_MESSAGE or getattr(record, "printed", False)
        return not expected and short and not any(part in text for part in self.noise)


def _report_once(handler: logging.Handler, record: logging.LogRecord) -> None:
    """Report once that the disk takes no more of a log; Python would show a traceback for every line of it."""
    error = sys.exc_info()[1]
    if not isinstance(error, OSError):
        type(handler).handleError(handler, record)
    elif not getattr(handler, "reported", False):
        handler.reported = True
        name = getattr(handler.stream, "name", "the log")
        tqdm.write(f"fastreid: {name} was not written: {error.strerror or error}; the run goes on", file=sys.stderr)


def tidy_console(logger: logging.Logger, noise: Sequence[str] = ()) -> None:
    """Put our handler in the place of the one that prints on standard output, and have the others survive a full disk.

    Args:
        logger: the host's.
        noise: parts of messages that no user can act on.
    """
    for handler in list(logger.handlers):
        if getattr(handler, "stream", None) is sys.stdout and not isinstance(handler, ConsoleHandler):
            ours = ConsoleHandler(sys.stdout)
            ours.setLevel(handler.level)
            ours.setFormatter(handler.formatter)
            for each in (*handler.filters, _ConsoleFilter(noise)):
                ours.addFilter(each)
            logger.removeHandler(handler)
            logger.addHandler(ours)
        elif isinstance(handler, logging.StreamHandler):
            handler.handleError = partial(_report_once, handler)
