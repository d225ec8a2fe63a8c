"""A host's log on a terminal, readable: no dumps, no clash with progress bars."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial

from tqdm import tqdm

from agreid_plugin.errors import InputError

LONG_MESSAGE = 12
"""Lines above which a message goes to the log file alone: hosts log their configuration, environment and model."""


class ConsoleHandler(logging.StreamHandler):
    """Prints records above a progress bar, if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record."""
        tqdm.write(self.format(record), file=sys.stdout)
        sys.stdout.flush()


class _Belonging(logging.Filter):
    def __init__(self, noise: Sequence[str]):
        super().__init__()
        self.noise = tuple(noise)

    def filter(self, record: logging.LogRecord) -> bool:
        expected = record.exc_info and isinstance(record.exc_info[1], InputError)  # the command says it in one line
        text = record.getMessage()
        short = text.count("\n") < LONG_MESSAGE or getattr(record, "printed", False)
        return not expected and short and not any(part in text for part in self.noise)


def _told_once(handler: logging.Handler, record: logging.LogRecord) -> None:
    """Say once that the disk takes no more of a log; Python would show a traceback for every line of it."""
    error = sys.exc_info()[1]
    if not isinstance(error, OSError):
        type(handler).handleError(handler, record)
    elif not getattr(handler, "told", False):
        handler.told = True
        name = getattr(handler.stream, "name", "the log")
        tqdm.write(f"fastreid: {name} was not written: {error.strerror or error}; the run goes on", file=sys.stderr)


def tidy(logger: logging.Logger, noise: Sequence[str] = ()) -> None:
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
            for each in (*handler.filters, _Belonging(noise)):
                ours.addFilter(each)
            logger.removeHandler(handler)
            logger.addHandler(ours)
        elif isinstance(handler, logging.StreamHandler):
            handler.handleError = partial(_told_once, handler)
