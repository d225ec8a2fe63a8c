"""Arguments by name: what a configuration may write, checked before a constructor fails on it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import Any

from agreid_plugin.errors import InputError, unknown
from agreid_plugin.hosts.mmengine.config.type_checks import require_kinds

FREE = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
OURS = __name__.partition(".")[0]


def checked(to: Callable[..., Any] | None = None, given: Iterable[str] = ()) -> Callable[[type], type]:
    """Have a class refuse wrong names and kinds of arguments in one line, before its constructor is run.

    Args:
        to: what the class passes the rest of its arguments, `**options`, on to.
        given: arguments of `to` that the class gives by itself.
    """

    def decorate(kind: type) -> type:
        build, passed = kind.__init__, _names(to).keys() - set(given) if to else set()

        @wraps(build)
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            own = list(_names(build))[1 + len(args) :]  # without self and those given by place
            require_arguments(kind.__name__, build, kwargs, passed, own)
            require_kinds(kind.__name__, to or build, {name: kwargs[name] for name in passed & kwargs.keys()})
            build(self, *args, **kwargs)

        kind.__init__ = __init__
        return kind

    return decorate


def require_arguments(
    name: str,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    passed: Iterable[str] = (),
    own: Iterable[str] | None = None,
) -> None:
    """Refuse arguments that a function does not take, or of ours not of this kind, and the lack of those it needs.

    See `require_names` for the arguments.
    """
    require_names(name, function, arguments, passed, own)
    if function.__module__.partition(".")[0] == OURS:  # hints of other toolboxes promise less
        require_kinds(name, function, arguments)


def require_names(
    name: str,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    passed: Iterable[str] = (),
    own: Iterable[str] | None = None,
    given: Collection[str] = (),
) -> None:
    """Refuse arguments that a function does not take, and the lack of those it needs.

    Args:
        name: what the message calls the function.
        function: what is going to be called.
        arguments: name -> value.
        passed: names that it takes and passes on.
        own: names of its arguments that may be given; all of them without any.
        given: names of those that are added later.
    """
    parameters, passed = _names(function), list(passed)
    own = list(parameters if own is None else own)
    free = any(each.kind in FREE for each in inspect.signature(function).parameters.values()) and not passed
    for argument in arguments:
        if argument not in own and argument not in passed and not free:
            raise unknown(f"argument of {name}", argument, {*own, *passed})
    needed = [each for each in own if parameters[each].default is inspect.Parameter.empty]
    missing = [each for each in needed if each not in arguments and each not in given]
    if missing:
        raise InputError(f"{name} needs {', '.join(missing)}: give {'it' if len(missing) == 1 else 'them'} a value")


def _names(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the arguments that can be given by name."""
    parameters = inspect.signature(function).parameters
    return {name: each for name, each in parameters.items() if each.kind not in FREE}
