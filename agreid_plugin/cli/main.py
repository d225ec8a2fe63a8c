"""Entry point of the `fastreid` command: parsing, dispatch, and exit codes 0, 1 (failed run) and 2 (bad input)."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from agreid_plugin.errors import InputError, RunError, Stopped, did_you_mean
from agreid_plugin.host import input_error_in
from agreid_plugin.trust import trust
from agreid_plugin.version import __version__

COMMANDS = {
    "runs": ("train", "eval"),
    "extract": ("extract",),
    "index": ("index",),
    "search": ("search",),
    "visualize": ("visualize",),
    "export": ("export",),
    "explain": ("explain",),
    "ablate": ("ablate",),
    "report": ("report",),
    "convert": ("convert",),
    "data": ("data",),
    "listing": ("list",),
    "doctor": ("doctor",),
}
"""Module of `agreid_plugin.cli` -> sub-commands that its `add_to(subparsers)` adds."""

HELP_WIDTH = 100


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the nearest name for a misspelt one; examples stay as written."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{"formatter_class": argparse.RawDescriptionHelpFormatter, **kwargs})
        self.description = textwrap.fill(self.description, HELP_WIDTH) if self.description else None

    def error(self, message: str) -> NoReturn:
        """Raise it as bad input, which `main` prints."""
        raise InputError(f"{message}; see '{self.prog} --help'")

    def parse_known_args(self, *args: Any, **kwargs: Any) -> tuple[argparse.Namespace, list[str]]:
        """Parse, and say what to do about KEY VALUE pairs on both sides of an option, which argparse cannot take."""
        found, rest = super().parse_known_args(*args, **kwargs)
        takes_pairs = any(action.dest == "overrides" for action in self._get_positional_actions())
        if rest and takes_pairs and not any(word.startswith("-") for word in rest):
            self.error(f"unrecognized arguments: {' '.join(rest)}: put all KEY VALUE pairs together, after the options")
        return found, rest

    def _check_value(self, action: argparse.Action, value: str) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action, f"{value!r} unknown{did_you_mean(str(value), known)}; known: {', '.join(known)}"
            )


def build_parser(command: str = "") -> argparse.ArgumentParser:
    """Build the parser of one sub-command, or of all where it is none of them; only their modules are imported."""
    parser = OneLineParser(
        prog="fastreid",
        description="Train, evaluate and inspect (aerial-ground) person re-identification models.",
        epilog="'fastreid COMMAND --help' explains a command, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"agreid-plugin {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    modules = [module for module, commands in COMMANDS.items() if command in commands]
    for module in modules or COMMANDS:
        import_module(f"agreid_plugin.cli.{module}").add_to(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        command = next(iter(sys.argv[1:] if argv is None else argv), "")
        args = build_parser(command).parse_args(argv)
        trust(getattr(args, "trust_checkpoint", False))
        return args.run(args) or 0
    except BrokenPipeError:  # `fastreid list | head` has read enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - or Python complains once more at exit
        return 0
    except Stopped as stopped:
        if os.environ.get("RANK", "0") == "0":  # one of many processes speaks
            print(f"fastreid: stopped by {stopped.signal.name}{resume_command(argv)}", file=sys.stderr)
        return stopped.code
    except KeyboardInterrupt:
        print("fastreid: interrupted", file=sys.stderr)
        return 130
    except RunError as error:
        print(error.trace, end="", file=sys.stderr)
        print(f"fastreid: error: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        message = input_error_in(error)
        if message is None:
            raise
        print(f"fastreid: error: {message}", file=sys.stderr)
        return 2
    finally:
        trust(False)


def resume_command(argv: Sequence[str] | None) -> str:
    """Return how to go on with a training run that was stopped; nothing for other commands."""
    command, *rest = sys.argv[1:] if argv is None else argv
    if command != "train":
        return ""
    return "; continue with: " + shlex.join(
        ["fastreid", "train", "--resume", *(each for each in rest if each != "--resume")]
    )
