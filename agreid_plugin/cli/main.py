"""Arguments in, one call, errors out: exit code 0, or 2 with one line for bad input."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from agreid_plugin import __version__
from agreid_plugin.cli import ablate, bench, convert, data, doctor, explain, listing, report, runs, search
from agreid_plugin.errors import InputError, did_you_mean

COMMANDS = (runs, search, explain, ablate, report, convert, data, bench, listing, doctor)
"""Modules that each add their sub-commands with `add_to(subparsers)`."""


HELP_WIDTH = 100


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the nearest name for a misspelt one; examples stay as written."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{"formatter_class": argparse.RawDescriptionHelpFormatter, **kwargs})
        self.description = textwrap.fill(self.description, HELP_WIDTH) if self.description else None

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with 2."""
        raise InputError(f"{message}; see '{self.prog} --help'")

    def _check_value(self, action: argparse.Action, value: str) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action, f"{value!r} unknown{did_you_mean(str(value), known)}; known: {', '.join(known)}"
            )


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command."""
    parser = OneLineParser(
        prog="fastreid",
        description="Train, evaluate and inspect (aerial-ground) person re-identification models.",
        epilog="'fastreid COMMAND --help' explains a command, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"agreid-plugin {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=OneLineParser)
    for module in COMMANDS:
        module.add_to(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        args = build_parser().parse_args(argv)
        return args.run(args) or 0
    except BrokenPipeError:  # `fastreid list | head` has read enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - or Python complains once more at exit
        return 0
    except KeyboardInterrupt:
        print("fastreid: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        message = input_error_in(error)
        if message is None:
            raise
        print(f"fastreid: error: {message}", file=sys.stderr)
        return 2


def input_error_in(error: BaseException) -> str | None:
    """Return the line of an `InputError`, also of one from a worker process, which arrives inside a traceback."""
    text = str(error)
    if f"{InputError.__name__}: " in text:
        return text.rsplit(f"{InputError.__name__}: ", 1)[1].strip()
    if isinstance(error, InputError):
        return text
    if isinstance(error, ModuleNotFoundError) and error.name == "fastreid":
        return "fast-reid is not installed: pip install --no-deps fastreid==1.4.0 (README, 'Your own environment')"
    return None
