"""Arguments of a configuration: names against signatures, values against type hints."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import wraps
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from agreid_plugin.errors import InputError, unknown

PLAIN_TYPES = (bool, int, float, str, list, tuple, dict, NoneType)
LISTS = (list, tuple, Sequence, Iterable, Collection)
DICTS = (dict, Mapping)
WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "None",
    **dict.fromkeys(LISTS, "a list"),
    **dict.fromkeys(DICTS, "a dictionary"),
}
"""What messages call kinds of values."""


@dataclass(frozen=True)
class TypeMismatch:
    """A value of the wrong kind.

    Attributes:
        where: its place, as `objectives.cls`.
        value: the value.
        hint: the type hint that it should fit.
    """

    where: str
    value: Any
    hint: Any

    def __str__(self) -> str:
        return f"{self.where}={self.value!r} should be {_describe_hint(self.hint)}"


def require_kinds(name: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of a wrong kind.

    Args:
        name: what the message calls the function; nothing for arguments that speak for themselves.
        function: what is going to be called, or a class.
        arguments: name -> value; those that the function does not name are left to it.
    """
    hints, parameters = _hints(function), _parameters(function)
    for argument, value in arguments.items():
        if argument not in hints or argument not in parameters or _is_default(value, parameters[argument].default):
            continue
        found = find_mismatch(argument, value, hints[argument])
        if found is not None:
            raise InputError(f"{name}: {found}" if name else str(found))


def find_mismatch(where: str, value: Any, hint: Any) -> TypeMismatch | None:
    """Return what does not fit a type hint, the value itself or the innermost entry of it; None if all does."""
    if not isinstance(value, PLAIN_TYPES):
        return None
    kinds = [kind for kind in _alternatives(hint) if _fits(value, kind)]
    if not kinds:
        return TypeMismatch(where, value, hint)
    found = [_within(where, value, kind) for kind in kinds]
    return None if None in found else found[0]


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function.__init__ if isinstance(function, type) else function)
    except (NameError, TypeError, AttributeError):  # hints that only a type checker can read
        return {}


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # what is written in C may have none
        return {}


def _is_default(value: Any, default: Any) -> bool:
    """Return whether a value is the default, which fits in spite of its hint."""
    return type(value) is type(default) and value == default


def _alternatives(hint: Any) -> list[Any]:
    if get_origin(hint) in (Union, UnionType):
        return [kind for each in get_args(hint) for kind in _alternatives(each)]
    return [NoneType if hint is None else hint]


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of a kind, without a look at its entries."""
    kind = get_origin(hint) or hint
    if kind is Literal:
        return value in get_args(hint)
    if kind in (Any, object) or not isinstance(kind, type) or issubclass(kind, Enum):
        return True
    if kind in LISTS:
        return isinstance(value, list | tuple)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is bool:
        return isinstance(value, bool) or value in (0, 1)
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol that cannot be checked at runtime
        return True


def _within(where: str, value: Any, hint: Any) -> TypeMismatch | None:
    """Return the first entry of a list or a dictionary that does not fit."""
    inner = [kind for kind in get_args(hint) if kind is not Ellipsis]
    if isinstance(value, dict) and len(inner) == 2:
        entries = ((name, entry, inner[1]) for name, entry in value.items())
    elif isinstance(value, list | tuple) and inner:
        entries = ((place, entry, inner[min(place, len(inner) - 1)]) for place, entry in enumerate(value))
    else:
        return None
    found = (find_mismatch(f"{where}.{name}", entry, kind) for name, entry, kind in entries)
    return next((each for each in found if each is not None), None)


def _describe_hint(hint: Any) -> str:
    known = [_word(kind) for kind in _alternatives(hint)]
    words = list(dict.fromkeys(word for word in known if word))
    return " or ".join(words) or str(hint)


def _word(hint: Any) -> str:
    """Return what a kind is called; nothing of what a configuration cannot write."""
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    return WORDS.get(get_origin(hint) or hint, "")


VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
OURS = __name__.partition(".")[0]


def check_arguments(to: Callable[..., Any] | None = None, given: Iterable[str] = ()) -> Callable[[type], type]:
    """Have a class refuse wrong names and kinds of arguments in one line, before its constructor is run.

    Args:
        to: what the class passes the rest of its arguments, `**options`, on to: those behind its `*`, if it has one.
        given: some of these that the class gives by itself.
    """

    def decorate(kind: type) -> type:
        build, passed = kind.__init__, _options(to) - set(given) if to else set()

        @wraps(build)
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            allowed = list(_names(build))[1 + len(args) :]  # without self and those given by place
            require_arguments(kind.__name__, build, kwargs, passed, allowed)
            require_kinds(kind.__name__, to or build, {name: kwargs[name] for name in passed & kwargs.keys()})
            build(self, *args, **kwargs)

        kind.__init__ = __init__
        return kind

    return decorate


def _options(function: Callable[..., Any]) -> set[str]:
    """Return the arguments behind `*`, or all that can be given by name where there is no `*`."""
    parameters = _names(function)
    return {name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY} or set(parameters)


def require_arguments(
    name: str,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    passed: Iterable[str] = (),
    allowed: Iterable[str] | None = None,
) -> None:
    """Refuse arguments that a function does not take, or of ours not of this kind, and the lack of those it needs.

    See `require_names` for the arguments.
    """
    require_names(name, function, arguments, passed, allowed)
    if function.__module__.partition(".")[0] == OURS:  # hints of other toolboxes promise less
        require_kinds(name, function, arguments)


def require_names(
    name: str,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    passed: Iterable[str] = (),
    allowed: Iterable[str] | None = None,
    given: Collection[str] = (),
) -> None:
    """Refuse arguments that a function does not take, and the lack of those it needs.

    Args:
        name: what the message calls the function.
        function: what is going to be called.
        arguments: name -> value.
        passed: names that it takes and passes on.
        allowed: names of its arguments that may be given; all of them without any.
        given: names of those that are added later.
    """
    parameters, passed = _names(function), list(passed)
    allowed = list(parameters if allowed is None else allowed)
    free = any(each.kind in VARIADIC for each in inspect.signature(function).parameters.values()) and not passed
    for argument in arguments:
        if argument not in allowed and argument not in passed and not free:
            raise unknown(f"argument of {name}", argument, {*allowed, *passed})
    needed = [each for each in allowed if parameters[each].default is inspect.Parameter.empty]
    missing = [each for each in needed if each not in arguments and each not in given]
    for each in missing:
        near = get_close_matches(each, [argument for argument in arguments if argument not in allowed], n=1)
        if near:
            raise unknown(f"argument of {name}", near[0], allowed)
    if missing:
        raise InputError(f"{name} needs {', '.join(missing)}: give {'it' if len(missing) == 1 else 'them'} a value")


def _names(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the arguments that can be given by name."""
    parameters = inspect.signature(function).parameters
    return {name: each for name, each in parameters.items() if each.kind not in VARIADIC}
