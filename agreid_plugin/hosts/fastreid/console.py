"""The host's log on a terminal, readable: no dumps, no clash with progress bars."""

from __future__ import annotations

import logging
import sys

from tqdm import tqdm

from agreid_plugin.errors import InputError

LONG_MESSAGE = 12
"""Lines above which a message goes to log.txt alone: the host logs its whole configuration, environment and model."""
PRINTED = {"printed": True}
"""`extra` of a long message that is printed all the same."""


class ConsoleHandler(logging.StreamHandler):
    """Prints records above a progress bar, if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record."""
        tqdm.write(self.format(record), file=sys.stdout)
        sys.stdout.flush()


def _belongs_here(record: logging.LogRecord) -> bool:
    expected = record.exc_info and isinstance(record.exc_info[1], InputError)  # the command says it in one line
    short = record.getMessage().count("\n") < LONG_MESSAGE or getattr(record, "printed", False)
    return not expected and short


def tidy(logger: logging.Logger) -> None:
    """Put our handler in the place of the one that prints on standard output."""
    for handler in list(logger.handlers):
        if getattr(handler, "stream", None) is sys.stdout and not isinstance(handler, ConsoleHandler):
            ours = ConsoleHandler(sys.stdout)
            ours.setFormatter(handler.formatter)
            ours.addFilter(_belongs_here)
            logger.removeHandler(handler)
            logger.addHandler(ours)
