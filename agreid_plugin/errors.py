"""Errors: bad input in one line, runs that cannot continue, stop signals; findings of checks."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from signal import Signals
from typing import TypeVar

MAX_SHOWN = 20  # known names in a message about an unknown one
MAX_LENGTH = 2000  # characters of a message, which may quote a file

Given = TypeVar("Given")


class InputError(ValueError):
    """Bad input: a file, key or value that the user can correct.

    The message is one line saying what is wrong, where, and what to do: line breaks in it, as in an odd file name,
    become spaces, control characters are escaped, and it is cut where it is too long. The command prints it and exits
    with 2.
    """

    def __init__(self, *args: object):
        super().__init__(*(_one_line(arg) if isinstance(arg, str) else arg for arg in args))


class MissingInputError(InputError, FileNotFoundError):
    """A file or folder that does not exist: bad input, and the error that Python and the hosts raise for it."""


def input_error_like(error: BaseException, message: str) -> InputError:
    """Return bad input that can also be caught as the error of a host or a library that it stands for."""
    kind = type(error)
    members = {"__str__": ValueError.__str__, "__reduce__": lambda self: (InputError, self.args)}
    try:
        found = type(kind.__name__, (InputError, kind), members)(message)
    except TypeError:  # a kind that is made of more than a message
        return InputError(message)
    vars(found).update(vars(error))
    return found


def printable(text: str) -> str:
    """Return a text, as a file's name, with line breaks, control characters and undecodable bytes escaped."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _one_line(text: str) -> str:
    line = printable(" ".join(text.splitlines()))
    return line if len(line) <= MAX_LENGTH else f"{line[: MAX_LENGTH // 2]} ... {line[-MAX_LENGTH // 2 :]}"


class RunError(RuntimeError):
    """A run that cannot continue though its input is correct: a process was killed, or a wait timed out.

    The command prints the line and exits with 1.

    Args:
        message: one line that says what happened, where and when.
        trace: the traceback of the process in which it happened, shown before the line.
    """

    def __init__(self, message: str, trace: str = ""):
        super().__init__(message)
        self.trace = trace


@dataclass(frozen=True)
class Finding:
    """The result of one check of an installation.

    Attributes:
        ok: whether all is well.
        text: what was found, in one line.
        warns: whether it is a warning although all is well.
    """

    ok: bool
    text: str
    warns: bool = False


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its kind if it has none."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean X?)`` for the known name nearest to `name`, or an empty string if none is near."""
    known = list(known)
    folded = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name, known, n=1) or get_close_matches(name.lower(), folded, n=1)
    return f" (did you mean {folded.get(near[0], near[0])}?)" if near else ""


def unknown(kind: str, name: object, known: Iterable[str]) -> InputError:
    """Build the error for a name that is not among the `known` ones: nearest name first, then all of them."""
    known = sorted(known)
    shown = known if len(known) <= MAX_SHOWN else [*known[:MAX_SHOWN], f"... ({len(known)} in all)"]
    return InputError(f"{kind} {name!r} unknown{did_you_mean(str(name), known)}; known: {', '.join(shown) or 'none'}")


@contextmanager
def error_context(where: str) -> Iterator[None]:
    """Prefix the message of an `InputError` with its place, as a key of a configuration."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def require_within(name: str, value: float, low: float, high: float) -> float:
    """Return a finite number within bounds, or refuse it by name."""
    if not (isinstance(value, int | float) and math.isfinite(value) and low <= value <= high):
        bounds = f"between {low} and {high}" if math.isfinite(high) else f"{low} or more"
        raise InputError(f"{name}={value!r} should be {bounds}")
    return value


def require_int(name: str, value: int, least: int = 1) -> int:
    """Return an integer of at least `least`, or refuse the value by name."""
    if not isinstance(value, int) or value < least:
        raise InputError(f"{name}={value!r} should be a whole number, {least} or more")
    return value


def require_known(kind: str, name: str, known: Iterable[str]) -> str:
    """Return a name that is among the known ones, or refuse it; see `unknown`."""
    known = list(known)
    if name not in known:
        raise unknown(kind, name, known)
    return name


def require_given(name: str, value: Given | None) -> Given:
    """Return a value that is needed here, or ask for it by name if it is None."""
    if value is None:
        raise InputError(f"{name}=None should be given")
    return value


class Stopped(SystemExit):
    """A run was ended by a signal; the exit code is that of shells: 130, 143 or 129."""

    def __init__(self, number: int):
        super().__init__(128 + number)
        self.signal = Signals(number)
